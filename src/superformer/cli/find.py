"""From pictures to a network: train, evolve-space, search, retrain, eval, analyse."""

from __future__ import annotations

import json
import math
from pathlib import Path

from superformer.cli import arguments as arg
from superformer.cli.arguments import (
    app,
    computing,
    console,
    minutes_of,
    over_seeds,
    percent,
    progress_console,
    recipe_for,
    say,
    table,
    trained_run,
)
from superformer.cli.transfer import evaluate_transfer, is_transfer
from superformer.settings import read_amount, read_bytes, read_key_value, read_seconds, require_alone


@app.command()
def train(
    recipe: arg.RecipeName, data: arg.DataSpec, run: arg.RunFolder, hours: arg.Hours = None,
    minutes: arg.Minutes = None, changes: arg.Changes = None, device: arg.Device = "auto",
    processes: arg.Processes = "same",
) -> None:  # fmt: skip
    """Train the supernet of a recipe on your pictures. Killed or interrupted, the same words go on where it was.

    Example: superformer train --recipe s3-laptop --data digits --run runs/first

    With other parts: add key=value words, such as sharing=cyclic gradients.rule=project sampling.rule=multi
    sampling.networks=4 (superformer recipes NAME lists all keys). With --hours 8 or --minutes 30: for as many epochs as
    fit. On several GPUs: torchrun --nproc-per-node 8 -m
    superformer -- train ..."""
    time = minutes_of(hours, minutes, changes)
    settings = recipe_for(Path(run), recipe, changes)
    with computing():
        from superformer.train.loop import train as run_training

        done = run_training(settings, data, run, console=console, minutes=time)
    say(f"The supernet is in {done.supernet_file}")
    say(f"Next: superformer search --run {run} --macs-max ..., or superformer eval --run {run}", dim=True)


@app.command()
def evolve_space(
    recipe: arg.RecipeName, data: arg.DataSpec, run: arg.RunFolder, changes: arg.Changes = None,
    device: arg.Device = "auto",
    processes: arg.Processes = "same",
) -> None:  # fmt: skip
    """Improve the search space itself (S3): train a supernet, see which choices lead to smaller errors, move the space,
    and again.

    Example: superformer evolve-space --recipe s3-laptop --data digits --run runs/evolved

    evolve.rounds=2 evolve.samples=40 set how often and how carefully; evolve.start=fresh trains each supernet anew, not
    from the one before. At the end the run holds the supernet of the last space. On several GPUs: torchrun
    --nproc-per-node 8 -m superformer -- evolve-space ..."""
    settings = recipe_for(Path(run) / "spaces" / "0", recipe, changes)
    with computing():
        from superformer.draw.evolution import draw
        from superformer.search.space_evolution import evolve_space as run_evolution

        run_evolution(settings, data, run, console=console, draw=draw)
    say(f"The trace is in {run}/evolution.json")
    say(f"Next: superformer search --run {run} --macs-max ...", dim=True)


@app.command()
def search(
    run: arg.RunFolder, macs_max: arg.MacsMax = None, params_max: arg.ParamsMax = None,
    latency_max: arg.LatencyMax = None, memory_max: arg.MemoryMax = None, throughput_min: arg.ThroughputMin = None,
    cost_max: arg.CostMax = None, method: arg.MethodName = None, hours: arg.Hours = None, minutes: arg.Minutes = None,
    changes: arg.Changes = None, as_json: arg.Json = False, device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Find the best sub-networks of a trained supernet within limits. Killed, the same words go on; nothing is
    evaluated twice.

    Example: superformer search --run runs/first --macs-max 4M --latency-max 3ms

    key=value words set the method (evolution: rounds, parents, p; nsga2: population, generations; predictor: first,
    front) and what is sought: objectives=accuracy,macs,latency,memory,throughput  seed=1  threads=2  runtime=onnx
    device=cuda  depth=budget (equal blocks: as many as the limits allow)

    On another device, with times of its own (superformer latency --help): --latency-max 8ms device=pi5"""
    amounts = {"macs": (macs_max, read_amount), "params": (params_max, read_amount)}
    amounts |= {"latency": (latency_max, read_seconds), "memory": (memory_max, read_bytes)}
    limits = {name: (0.0, read(text, f"--{name}-max")) for name, (text, read) in amounts.items() if text is not None}
    if throughput_min is not None:
        limits["throughput"] = (read_amount(throughput_min, "--throughput-min"), math.inf)
    own = dict(map(read_key_value, changes or []))

    from superformer.recipes.searching import method_with_changes, split_options

    opened = trained_run(run)
    method_with_changes(opened.recipe().search, method, split_options(own)[1])
    if cost_max:
        from superformer.runs.devices import read_limit

        limits |= dict(read_limit(text, opened) for text in cost_max)
    with computing():
        from superformer.search import search as run_search

        found = run_search(run, limits, method, own, progress_console(as_json), minutes_of(hours, minutes))
    if as_json and found:
        print(json.dumps(found))
    elif found:
        say(f"Next: superformer retrain --run {run}, or superformer eval --run {run} --arch best", dim=True)


@app.command()
def retrain(
    run: arg.RunFolder, arch: arg.ArchName = "best", seeds: arg.Seeds = 1, hours: arg.Hours = None,
    minutes: arg.Minutes = None, changes: arg.Changes = None, as_json: arg.Json = False, device: arg.Device = "auto",
    processes: arg.Processes = "same",
) -> None:  # fmt: skip
    """Train a found network by itself: its inherited weights tuned, or new ones from scratch. Killed, the same words go
    on.

    Example: superformer retrain --run runs/first

    weights=scratch begins anew; img_size=384 trains at the network's own size first (unless that was done) and then
    tunes the result for larger pictures; loss.teachers=[DIR] adds teachers; any other key of the recipe, such as
    train.epochs=20, too. All training pictures are used (data.search=0.1 keeps some apart). The network is in DIR/model
    afterwards, of several seeds the first one's; the table compares accuracies on the test pictures."""
    from superformer.recipes import read_changes

    time = minutes_of(hours, minutes, changes)
    read_changes(trained_run(run).recipe(), changes or (), f"{run} retrained")
    trained_run(run, arch)  # last: a network that is found is checked, which needs torch
    with computing():
        from superformer.train.retrain import retrain as run_retraining

        told = progress_console(as_json)
        done = run_retraining(run, arch, *(changes or []), seeds=seeds, console=told, minutes=time)
    if not done.rows:  # one of several processes, which the first one speaks for
        return
    if as_json:
        print(json.dumps(done.rows))
        return
    columns = ("name", "weights", "accuracy", "macs", "img_size", "epochs", "key")  # what 80 characters hold
    rows = [{c: row[c] for c in columns} | {"accuracy": over_seeds(row)} for row in done.rows]
    for row, shown in zip(done.rows, rows, strict=True):
        if any("deviation" in r for r in done.rows):
            shown["seeds"] = len(row.get("seeds", ())) or ""
        if row["key"] != row.get("of", row["key"]):  # larger pictures
            shown["weights"] = "tuned larger"
    console.print(table(rows, "Accuracy on the test split"))
    say(f"The network is in {done.model}" + (f" (seed {done.rows[-1]['seeds'][0]})" if seeds > 1 else ""))
    inherited = [row for row in done.rows if row["weights"] == "inherited"]  # the last, then the network as it is now
    if inherited and inherited[-1]["accuracy"] > done.rows[-1]["accuracy"]:
        command = f"superformer export --run {run} --arch {arch} --to onnx"
        say(f"On these pictures the inherited weights are better; {command} hands those over")
    say(f"Next: superformer export --run {run} --to onnx", dim=True)


@app.command(name="eval")
def evaluate(
    run: arg.RunFolder, arch: arg.ArchNames = None, split: arg.Split = "test", scales: arg.Scales = False,
    as_json: arg.Json = False, device: arg.Device = "auto",
) -> None:  # fmt: skip
    """The accuracy of sub-networks of a trained supernet, with the weights they inherit; of a transfer, the task's
    metrics.

    Example: superformer eval --run runs/first --arch smallest --arch largest"""
    if is_transfer(run) and not arch:
        require_alone("eval of a transfer")
        evaluate_transfer(run, split, as_json, scales)
        return
    trained_run(run, *(arch or []))
    with computing():
        from superformer.evaluation.evaluator import evaluate as run_evaluation

        rows = run_evaluation(run, arch or ["smallest", "largest"], split)
    if not rows:  # one of several processes, which the first one speaks for
        return
    if as_json:
        print(json.dumps(rows))
    else:
        shown = [{**row, "accuracy": percent(row["accuracy"])} for row in rows]
        console.print(table(shown, f"Accuracy on the {split} split, inherited weights"))


@app.command()
def analyse(
    run: arg.RunFolder, words: arg.AnalysisParts = None, as_json: arg.Json = False, device: arg.Device = "auto"
) -> None:
    """What a run tells about its method: error distributions (also by the number of blocks), rank correlations,
    conflicts, distances and maps of attention, seeds.

    Example: superformer analyse --run runs/first attention conflicts

    PARTs: distributions, depths, conflicts, latency, attention, maps, budgets, seeds, correlations, weights; without
    any, those that cost little. key=value words: architectures=10 epochs=20 samples=100 seeds=3 pictures=64. The result
    is in DIR/analysis.json, and in the report.

    maps draws what a token attends to over a picture, in DIR/attention.svg: picture=3 (of the search split) or
    picture=cat.jpg, query=0.25,0.25 (of height and width) or query=class, blocks=1-2,3-7, heads=true, arch=best. depths
    samples=100 draws errors by the number of blocks of each stage, in DIR/depths.svg."""
    parts, changes = [w for w in words or [] if "=" not in w], dict(read_key_value(w) for w in words or [] if "=" in w)

    from superformer.analysis.settings import chosen
    from superformer.runs import Run

    Run.open(run)
    chosen(parts, changes)
    with computing():
        from superformer.analysis.run import analyse as run_analysis

        found = run_analysis(run, progress_console(as_json), parts, changes)
    if as_json:
        print(json.dumps(found))
    else:
        say(f"{', '.join(k for k in found if k != 'supernet')}: in {run}/analysis.json")
        say(f"Next: superformer report --run {run}", dim=True)
