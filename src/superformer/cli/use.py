"""What is published: spaces, models, recipes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from superformer.cli import early
from superformer.cli.arguments import Draw, Json, Name, RunFolder, app, console, facts, listed, say, table
from superformer.errors import SuperformerError
from superformer.spaces import catalogue


@app.command()
def spaces(name: Name = None, as_json: Json = False) -> None:
    """The published search spaces; with NAME its choices and its range of MACs and parameters.

    Example: superformer spaces vit-resnas-tiny
    """
    if name is None:
        rows = [entry["summary"] for entry in catalogue.spaces().values()]
        if not as_json:
            rows = [{k: v for k, v in row.items() if k not in ("paths", "img_size")} for row in rows]
        listed(rows, "Published search spaces", as_json, "superformer spaces NAME shows a space's choices")
        return
    space = catalogue.space(name)
    if as_json:
        print(json.dumps({**space["summary"], "space": space["space"]}))
        return
    facts(space["summary"])
    console.print(table(space["table"], "\nChoices, from the smallest network to the largest"))


@app.command()
def models(name: Name = None, as_json: Json = False, draw: Draw = None) -> None:
    """The published architectures; with NAME its stages, blocks, MACs and parameters.

    Example: superformer models vit_resnas_tiny --draw tiny.svg
    """
    if draw is not None and name is None:
        raise SuperformerError("--draw needs the name of a network: superformer models NAME --draw FILE.svg")
    if name is None:
        rows = [entry["summary"] for entry in catalogue.models().values()]
        if not as_json:
            rows = [{k: v for k, v in row.items() if k not in ("key", "resolution")} for row in rows]
        listed(rows, "Published architectures", as_json, "superformer models NAME shows a network block by block")
        return
    summary = catalogue.model(name)["summary"]

    import superformer as sf
    from superformer.draw.sketch import sketch
    from superformer.spaces import arch as published

    arch = published(name)
    if draw is not None:
        sf.draw(arch, name).save(draw)
    if as_json:
        print(json.dumps({**summary, "arch": json.loads(arch.to_json())}))
        return
    facts(summary)
    console.print()
    console.print(sketch(arch, plain=console.options.ascii_only), highlight=False)
    if draw is not None:
        console.print(f"\nThe picture is in {escape(draw)}", highlight=False, soft_wrap=True)


@app.command()
def recipes(name: Name = None, as_json: Json = False) -> None:
    """The published recipes; with NAME all of its settings.

    Example: superformer recipes s3-laptop
    """
    from superformer import recipes as published

    if name is None:
        found = [published.resolve(n) for n in published.names()]
        rows = [{"name": r.name, "networks": r.sampling.rule, "gradients": r.gradients.rule, "sharing": r.sharing,
                 "epochs": r.train.epochs, "batch": r.train.batch_size} for r in found]  # fmt: skip
        listed(
            rows,
            "Published recipes",
            as_json,
            "superformer recipes NAME shows every setting; superformer train --recipe NAME uses it",
        )
        return
    recipe = published.resolve(name)
    print(
        json.dumps(recipe.model_dump(mode="json")) if as_json else published.dump(recipe), end="\n" if as_json else ""
    )


# What was found, put to use: export, bench, report; runs listed and gone on with; the demo.


To = Annotated[
    str, typer.Option("--to", metavar="onnx|timm|hf", help="ONNX, a folder for timm, or a folder for Hugging Face.")
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="The folder to write; DIR/export/FORMAT of the run otherwise."),
]
OtherArch = Annotated[
    str | None,
    typer.Option("--arch", metavar="WHICH", help="Another network than the retrained one, with inherited weights."),
]
Folders = Annotated[
    list[str] | None, typer.Argument(metavar="[DIR]...", help="Folders with runs; or several runs, to compare them.")
]


@app.command()
def export(run: RunFolder, to: To, arch: OtherArch = None, out: Out = None) -> None:
    """Hand the network over: to ONNX Runtime, timm or Hugging Face. Ends with a proof: the largest difference of the
    logits.

    Example: superformer export --run runs/first --to onnx

    The retrained network of the run, unless --arch names another (best, a key of the front, a file): that has its
    inherited weights."""
    early.export(run, arch, to)
    from superformer.interop.export import export as run_export
    from superformer.train.retrain import network_to_export

    proof = run_export(network_to_export(run, arch), Path(out or Path(run) / "export" / to), to, console)
    say(f"{proof}")
    say(f"The export is in {proof.files[0].parent}")


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(metavar="MODEL|RUN", help="A published model, one of timm, a folder with a network, or a run."),
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="WHICH", help="Of a run: only these (model is the retrained one); repeatable."),
    ] = None,
    runtimes: Annotated[str, typer.Option(metavar="LIST", help="What runs the networks.")] = "eager,compiled,onnx",
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each network, runtime and batch.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Latency (batch 1) and throughput of networks on this machine: in torch, compiled, and in ONNX Runtime.

    Example: superformer bench runs/first, or superformer bench s3_tiny --runtimes eager,onnx
    """
    words = [r.strip() for r in runtimes.split(",")]
    early.bench(what, arch or [], words)
    from superformer.analysis import bench as benchmark

    found = benchmark.bench(
        what, words, threads, seconds=seconds, which=arch or [], console=None if as_json else console
    )
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        {
            "network": row["name"],
            "runtime": row["runtime"],
            "latency": f"{1e3 * row['latency']:.2f} ms",
            "90 %": f"{1e3 * row['p90']:.2f} ms",
            "pictures/s": f"{row['throughput']:.0f}",
            "at batch": row["batch"],
        }
        for row in benchmark.summary(found)
        if "error" not in row
    ]
    console.print(table(rows, f"{found['machine']}; threads: {threads}"))
    for row in benchmark.summary(found):
        if "error" in row:
            say(f"{row['name']} does not run with {row['runtime']}: {row['error']}")


@app.command()
def report(run: RunFolder) -> None:
    """Write DIR/report.html: one page about a run, to be opened in any browser, without a network.

    Example: superformer report --run runs/first
    """
    early.run(run)
    from superformer.report import write

    say(f"The report is in {write(run, console)}")


@app.command()
def runs(folders: Folders = None, as_json: Json = False) -> None:
    """The runs of a folder (runs, if none is named) and how far they are; several runs side by side, with what differs.

    Example: superformer runs runs/first runs/second
    """
    from superformer.runs.folder import overview

    rows, lines = overview([Path(f) for f in folders or ["runs"]])
    if as_json:
        print(json.dumps({"runs": rows, "differences": lines}))
        return
    shown = [{**row, "best": "" if row["best"] is None else f"{100 * row['best']:.2f} %"} for row in rows]
    console.print(table(shown, "Runs"))
    for line in lines:
        say(f"  {line}")
    say("superformer resume --run DIR goes on with a run", dim=True)


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with the command that last wrote to a run, where it was.

    Example: superformer resume --run runs/first
    """
    from superformer.runs.folder import last_command, set_command

    last = last_command(Path(run)) or last_command(Path(run) / "spaces" / "0")  # where evolve-space begins
    if last is None:
        raise SuperformerError(f"no command is noted in {run}: give the words that began it")
    if Path(last["folder"]).is_dir():
        os.chdir(last["folder"])
    say("superformer " + " ".join(last["words"]), dim=True)
    sys.argv[1:] = last["words"]
    set_command(last["words"])
    raise typer.Exit(app(standalone_mode=False) or 0)


@app.command()
def demo(
    run: Annotated[str, typer.Option("--run", metavar="DIR", help="The folder of the run.")] = "runs/demo",
) -> None:
    """Everything on the embedded digits: evolve the space, train, search, retrain, compare, export, report. About five
    minutes.

    Example: superformer demo --run runs/demo
    """
    from superformer.demo import run as run_demo

    run_demo(run, console)
