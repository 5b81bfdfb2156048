"""From pictures to a network: train, evolve-space, search, retrain, eval."""

from __future__ import annotations

import json
import math

from rich.console import Console

from superformer.cli import early
from superformer.cli.arguments import (
    AnalysisWords,
    ArchWord,
    ArchWords,
    Changes,
    DataSpec,
    Json,
    LatencyMax,
    MacsMax,
    MemoryMax,
    MethodName,
    ParamsMax,
    RecipeName,
    RunFolder,
    Split,
    ThroughputMin,
    app,
    console,
    say,
    table,
)


@app.command()
def train(recipe: RecipeName, data: DataSpec, run: RunFolder, changes: Changes = None) -> None:
    """Train the supernet of a recipe on your pictures. Killed or interrupted, the same words go on where it was.

    Example: superformer train --recipe s3-laptop --data digits --run runs/first

    With other parts: add key=value words, such as sharing=cyclic gradients.rule=project sampling.rule=multi
    sampling.networks=4 (superformer recipes NAME lists all keys). On several GPUs: torchrun --nproc-per-node 8 -m
    superformer -- train ..."""
    early.recipe(recipe, changes)
    from superformer.train.loop import train as run_training

    done = run_training(recipe, data, run, *(changes or []), console=console)
    say(f"The supernet is in {done.supernet_file}")
    say(f"Next: superformer search --run {run} --macs-max ..., or superformer eval --run {run}", dim=True)


@app.command()
def evolve_space(recipe: RecipeName, data: DataSpec, run: RunFolder, changes: Changes = None) -> None:
    """Improve the search space itself (S3): train a supernet, see which choices lead to smaller errors, move the space,
    and again.

    Example: superformer evolve-space --recipe s3-laptop --data digits --run runs/evolved

    evolve.rounds=2 evolve.samples=40 set how often and how carefully. At the end the run holds the supernet of the last
    space."""
    early.recipe(recipe, changes)
    from superformer.draw.evolution import draw
    from superformer.search.space_evolution import evolve_space as run_evolution

    run_evolution(recipe, data, run, *(changes or []), console=console, draw=draw)
    say(f"The trace is in {run}/evolution.json")
    say(f"Next: superformer search --run {run} --macs-max ...", dim=True)


@app.command()
def search(
    run: RunFolder,
    macs_max: MacsMax = None,
    params_max: ParamsMax = None,
    latency_max: LatencyMax = None,
    memory_max: MemoryMax = None,
    throughput_min: ThroughputMin = None,
    method: MethodName = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Find the best sub-networks of a trained supernet within limits. Killed, the same words go on; nothing is
    evaluated twice.

    Example: superformer search --run runs/first --macs-max 4M --latency-max 3ms

    key=value words set the method (evolution: rounds, parents, p; nsga2: population, generations; predictor: first,
    front) and what is sought: objectives=accuracy,macs,latency,memory,throughput  seed=1  threads=2  runtime=onnx"""
    from superformer.settings import read_amount, read_bytes, read_key_value, read_seconds

    given = {
        "macs": None if macs_max is None else read_amount(macs_max, "--macs-max"),
        "params": None if params_max is None else read_amount(params_max, "--params-max"),
        "latency": None if latency_max is None else read_seconds(latency_max, "--latency-max"),
        "memory": None if memory_max is None else read_bytes(memory_max, "--memory-max"),
    }
    limits = {name: (0.0, most) for name, most in given.items() if most is not None}
    if throughput_min is not None:
        limits["throughput"] = (read_amount(throughput_min, "--throughput-min"), math.inf)
    own = dict(map(read_key_value, changes or []))
    early.search(run, method, own)
    from superformer.search.run import search as run_search

    found = run_search(run, limits, method, own, Console(quiet=True) if as_json else console)
    if as_json and found:
        print(json.dumps(found))
    elif found:
        say(f"Next: superformer retrain --run {run}, or superformer eval --run {run} --arch best", dim=True)


@app.command()
def retrain(run: RunFolder, arch: ArchWord = "best", changes: Changes = None, as_json: Json = False) -> None:
    """Train a found network by itself: its inherited weights tuned, or new ones from scratch. Killed, the same words go
    on.

    Example: superformer retrain --run runs/first

    weights=scratch begins anew; img_size=384 tunes for larger pictures; loss.teachers=[DIR] adds teachers; any other
    key of the recipe, such as train.epochs=20, too. The network is in DIR/model afterwards; the table compares
    accuracies on the test pictures."""
    early.retrain(run, arch, changes or [])
    from superformer.train.retrain import retrain as run_retraining

    done = run_retraining(run, arch, *(changes or []), console=Console(quiet=True) if as_json else console)
    if as_json:
        print(json.dumps(done.rows))
        return
    columns = ("name", "weights", "accuracy", "macs", "params", "img_size", "epochs", "key")
    rows = [{c: f"{100 * row[c]:.2f} %" if c == "accuracy" else row[c] for c in columns} for row in done.rows]
    console.print(table(rows, "Accuracy on the test split"))
    say(f"The network is in {done.model}")
    if done.rows and done.rows[-2]["accuracy"] > done.rows[-1]["accuracy"]:  # inherited, then as it is now
        say(
            f"On these pictures the inherited weights are better; superformer export --run {run} --arch {arch} --to onnx hands those over"
        )
    say(f"Next: superformer export --run {run} --to onnx", dim=True)


@app.command(name="eval")
def evaluate(run: RunFolder, arch: ArchWords = None, split: Split = "test", as_json: Json = False) -> None:
    """The accuracy of sub-networks of a trained supernet, with the weights they inherit.

    Example: superformer eval --run runs/first --arch smallest --arch largest
    """
    early.trained(run, *(arch or []))
    from superformer.evaluation.trained_run import evaluate as run_evaluation

    rows = run_evaluation(run, arch or ["smallest", "largest"], split)
    if as_json:
        print(json.dumps(rows))
        return
    shown = [{**row, "accuracy": f"{100 * row['accuracy']:.2f} %"} for row in rows]
    console.print(table(shown, f"Accuracy on the {split} split, inherited weights"))


@app.command()
def analyse(run: RunFolder, words: AnalysisWords = None, as_json: Json = False) -> None:
    """What a run tells about its method: error distributions, rank correlations, conflicts, distances of attention,
    seeds.

    Example: superformer analyse --run runs/first attention conflicts

    PARTs: distributions, budgets, correlations, weights, attention, conflicts, latency, seeds; without any, those that
    cost little. key=value words: architectures=10 epochs=20 samples=100 seeds=3 pictures=64. The result is in
    DIR/analysis.json, and in the report."""
    from superformer.settings import read_key_value

    parts, changes = [w for w in words or [] if "=" not in w], dict(read_key_value(w) for w in words or [] if "=" in w)
    early.analyse(run, parts, changes)
    from superformer.analysis.run import analyse as run_analysis

    found = run_analysis(run, Console(quiet=True) if as_json else console, parts, changes)
    if as_json:
        print(json.dumps(found))
        return
    say(f"{', '.join(k for k in found if k != 'supernet')}: in {run}/analysis.json")
    say(f"Next: superformer report --run {run}", dim=True)
