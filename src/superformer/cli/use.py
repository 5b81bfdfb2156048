"""What is published (spaces, models, recipes), and what was found, put to use (export, bench, report, runs, ...)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, percent, print_facts, print_rows, say, table, trained_run
from superformer.cli.transfer import bench_transfer, export_transfer, is_dense
from superformer.errors import SuperformerError, nearest, unknown
from superformer.files import catalogue
from superformer.settings import RUNTIMES, read_amount, require_alone


@app.command()
def spaces(name: arg.Name = None, as_json: arg.Json = False) -> None:
    """The published search spaces; with NAME its choices and its range of MACs and parameters.

    Example: superformer spaces vit-resnas-tiny"""
    known = catalogue("spaces")
    if name is None:
        hint, details = "superformer spaces NAME shows a space's choices", ("paths", "img_size")
        print_rows([e["summary"] for e in known.values()], "Published search spaces", as_json, hint, details)
        return
    if name not in known:
        raise unknown("space", name, known)
    space = known[name]
    if as_json:
        print(json.dumps({**space["summary"], "space": space["space"]}))
        return
    print_facts(space["summary"])
    console.print(table(space["table"], "\nChoices, from the smallest network to the largest"))


@app.command()
def models(
    name: arg.Name = None, as_json: arg.Json = False, draw: arg.DrawFile = None,
    macs: arg.ScaledMacs = None, params: arg.ScaledParams = None,
) -> None:  # fmt: skip
    """The published architectures; with NAME its stages, blocks, MACs and parameters.

    Example: superformer models vit_resnas_tiny --draw tiny.svg

    --macs 600M or --params 5M: the network uniformly scaled to a budget, widths and depth in proportion."""
    known = catalogue("models")
    budget = {n: read_amount(text, f"--{n}") for n, text in (("macs", macs), ("params", params)) if text is not None}
    if name is None:
        if draw is not None or budget:
            word = "--draw" if draw is not None else f"--{next(iter(budget))}"
            raise SuperformerError(f"{word} needs the name of a network: superformer models NAME {word} ...")
        hint, details = "superformer models NAME shows a network block by block", ("key", "resolution")
        print_rows([e["summary"] for e in known.values()], "Published architectures", as_json, hint, details)
        return
    if name not in known:
        raise unknown("model", name, known)

    from superformer.draw import draw as drawing
    from superformer.draw.sketch import sketch
    from superformer.spaces import arch as published_arch

    arch, summary = published_arch(name), known[name]["summary"]
    if budget:
        arch, summary = scaled_model(arch, summary, budget)
    if draw is not None:
        drawing(arch, name).save(draw)
    if as_json:
        print(json.dumps({**summary, "arch": json.loads(arch.to_json())}))
        return
    print_facts(summary)
    console.print()
    console.print(sketch(arch, plain=console.options.ascii_only), highlight=False)
    if draw is not None:
        console.print(f"\nThe picture is in {escape(draw)}", highlight=False, soft_wrap=True)


def scaled_model(arch: Any, summary: Mapping[str, Any], budget: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A network scaled to a budget, and what is told of it."""
    from superformer.cost import cost
    from superformer.cost.scaling import scaled
    from superformer.space import point

    found = scaled(arch, **budget)
    counted = cost(point(found), found)
    now: dict[str, Any] = {"blocks": "+".join(str(len(s.blocks)) for s in found.stages), "key": found.key}
    now |= {"macs": int(counted.macs[0]), "params": int(counted.params[0])}
    return found, {**summary, **now, "scaled_from": arch.key}


@app.command()
def recipes(name: arg.Name = None, as_json: arg.Json = False) -> None:
    """The published recipes; with NAME all of its settings.

    Example: superformer recipes s3-laptop"""
    from superformer.recipes import dump, names, resolve

    if name is None:
        rows = [{"name": r.name, "networks": r.sampling.rule, "gradients": r.gradients.rule, "sharing": r.sharing,
                 "epochs": r.train.epochs, "batch": r.train.batch_size} for r in map(resolve, names())]  # fmt: skip
        hint = "superformer recipes NAME shows every setting; superformer train --recipe NAME uses it"
        print_rows(rows, "Published recipes", as_json, hint)
    elif as_json:
        print(json.dumps(resolve(name).model_dump(mode="json")))
    else:
        print(dump(resolve(name)), end="")


@app.command(cls=arg.Int8Command)
def export(
    run: arg.RunFolder, to: arg.ExportFormat, arch: arg.OtherArch = None, out: arg.ExportFolder = None,
    int8: arg.Int8 = None, device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Hand the network over: to ONNX Runtime, timm or Hugging Face. Ends with a proof: the largest difference of the
    logits.

    Example: superformer export --run runs/first --to onnx

    The retrained network of the run, unless --arch names another (best, a key of the front, a file): that has its
    inherited weights.

    --to onnx --int8 writes model.int8.onnx, too, and compares the two: accuracy on the test pictures, time, size.
    --int8 static finds the scales of inputs on training pictures; dynamic, the default, while the network runs."""
    from superformer.interop import format_module
    from superformer.runs import Run

    format_module(to)
    if int8 is not None and to != "onnx":
        raise SuperformerError(f"--int8 is for --to onnx, not for {to}")
    require_alone("export")
    if is_dense(run):
        export_transfer(run, to, out, int8, arch)
        return
    if arch is None:
        Run.open(run).model_folder()
    else:
        trained_run(run, arch)
    with computing():
        from superformer.interop.export import export as run_export
        from superformer.train.retrain import network_to_export

        network, folder, rows = network_to_export(run, arch), Path(out or Path(run) / "export" / to), []
        proof = run_export(network, folder, to, console)
        if int8 is not None:
            from superformer.interop.int8 import add_int8

            rows = [add_int8(Run.open(run), network, folder, arch or "model", int8, console=console)]
    say(f"{proof}")
    if rows:
        console.print(arg.int8_table(rows))
    say(f"The export is in {proof.files[0].parent}")


@app.command(cls=arg.Int8Command)
def bench(
    what: arg.Benched,
    arch: arg.BenchArchs = None,
    runtimes: Annotated[str, typer.Option(metavar="LIST", help="What runs the networks.")] = "eager,compiled,onnx",
    threads: arg.Threads = 1,
    seconds: arg.Seconds = 0.5,
    int8: arg.Int8 = None,
    as_json: arg.Json = False,
    device: arg.Device = "auto",
) -> None:
    """Latency (batch 1) and throughput of networks on this machine: in torch, compiled, and in ONNX Runtime.

    Example: superformer bench runs/first, or superformer bench s3_tiny --runtimes eager,onnx

    Of a run, --int8 compares each network with itself in 8 bits (in ONNX Runtime): accuracy on the test pictures, time
    and size; --int8 static finds scales on training pictures beforehand."""
    from superformer.runs import Run

    require_alone("bench")
    if is_dense(what):
        bench_transfer(what, threads, seconds, as_json)
        return
    words, run = [r.strip() for r in runtimes.split(",")], Run(Path(what))
    for runtime in words:
        if runtime not in RUNTIMES:
            raise SuperformerError(f"unknown runtime {runtime!r}: {nearest(runtime, RUNTIMES)}")
    for name in arch or []:
        if run.recipe_file.exists() and name != "model":
            run.arch(name)
    if int8 is not None and not run.recipe_file.exists():
        raise SuperformerError(f"--int8 needs a run, whose test pictures judge, and {what} is none")
    with computing():
        from superformer.analysis import bench as benchmark

        shown = None if as_json else console
        found = benchmark.bench(what, words, threads, seconds=seconds, which=arch or [], console=shown)
        if int8 is not None:
            found["int8"] = benchmark.bench_int8(what, int8, threads, seconds, arch or [], shown)
    if as_json:
        print(json.dumps(found))
        return
    rows, failures = [], []
    for row in benchmark.summary(found):
        if "error" in row:
            failures.append(f"{row['name']} does not run with {row['runtime']}: {row['error']}")
            continue
        times = {"latency": f"{1e3 * row['latency']:.2f} ms", "90 %": f"{1e3 * row['p90']:.2f} ms"}
        speed = {"pictures/s": f"{row['throughput']:.0f}", "at batch": row["batch"]}
        rows.append({"network": row["name"], "runtime": row["runtime"], "device": row["device"], **times, **speed})
    console.print(table(rows, f"{found['machine']}; threads: {threads}"))
    for failure in failures:
        say(failure)
    if found.get("int8"):
        console.print(arg.int8_table(found["int8"]))


@app.command()
def report(run: arg.RunFolder, device: arg.Device = "auto") -> None:
    """Write DIR/report.html: one page about a run, to be opened in any browser, without a network.

    Example: superformer report --run runs/first"""
    from superformer.runs import Run

    require_alone("report")
    if not is_dense(run):
        Run.open(run)

    from superformer.report import write

    say(f"The report is in {write(run, console)}")


@app.command()
def runs(folders: arg.RunFolders = None, as_json: arg.Json = False) -> None:
    """The runs of a folder (runs, if none is named) and how far they are; several runs side by side, with what differs.

    Example: superformer runs runs/first runs/second"""
    from superformer.runs import overview

    places = [Path(f) for f in folders or ["runs"]]

    def there(name: str) -> bool:
        return any((f / name).exists() or any(f.glob(f"*/{name}")) for f in places)

    others = there("transfer.yaml")
    rows, lines = overview(places) if there("recipe.yaml") or not others else ([], [])
    if others:
        from superformer.transfer.folder import overview as transfers

        rows += transfers(places)
    if as_json:
        print(json.dumps({"runs": rows, "differences": lines}))
        return
    console.print(table([{**r, "best": "" if r["best"] is None else percent(r["best"])} for r in rows], "Runs"))
    for line in lines:
        say(f"  {line}")
    say("superformer resume --run DIR goes on with a run", dim=True)


@app.command()
def resume(run: arg.RunFolder) -> None:
    """Go on with the command that last wrote to a run, where it was.

    Example: superformer resume --run runs/first"""
    from superformer.runs import last_command

    last = last_command(Path(run)) or last_command(Path(run) / "spaces" / "0")  # where evolve-space begins
    if last is None:
        raise SuperformerError(f"no command is noted in {run}: give the words that began it")
    if Path(last["folder"]).is_dir():
        os.chdir(last["folder"])
    say("superformer " + " ".join(last["words"]), dim=True)
    sys.argv[1:] = last["words"]
    raise typer.Exit(app(standalone_mode=False) or 0)


@app.command()
def demo(run: arg.RunFolder = "runs/demo", device: arg.Device = "auto") -> None:
    """Everything on the embedded digits: evolve the space, train, search, retrain, compare, export, report. About five
    minutes.

    Example: superformer demo --run runs/demo"""
    require_alone("demo")
    with computing():
        from superformer.demo import run as run_demo

        run_demo(run, console)
