"""What was found, put to use: export, bench, report; runs listed and gone on with; the demo."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from superformer.cli import early
from superformer.cli.app import app
from superformer.cli.show import console, say, table
from superformer.cli.words import Json, RunFolder
from superformer.errors import SuperformerError

To = Annotated[str, typer.Option("--to", metavar="onnx|timm|hf", help="ONNX, a folder for timm, or a folder for Hugging Face.")]
Out = Annotated[str | None, typer.Option("--out", metavar="DIR", help="The folder to write; DIR/export/FORMAT of the run otherwise.")]
OtherArch = Annotated[
    str | None, typer.Option("--arch", metavar="WHICH", help="Another network than the retrained one, with inherited weights.")
]
Folders = Annotated[list[str] | None, typer.Argument(metavar="[DIR]...", help="Folders with runs; or several runs, to compare them.")]


@app.command()
def export(run: RunFolder, to: To, arch: OtherArch = None, out: Out = None) -> None:
    """Hand the network over: to ONNX Runtime, timm or Hugging Face. Ends with a proof: the largest difference of the logits.

    Example: superformer export --run runs/first --to onnx

    The retrained network of the run, unless --arch names another (best, a key of the front, a file): that has its inherited weights.
    """
    early.export(run, arch, to)
    from superformer.export import export as run_export
    from superformer.retrain import handed_over

    proof = run_export(handed_over(run, arch), Path(out or Path(run) / "export" / to), to, console)
    say(f"{proof}")
    say(f"The export is in {proof.files[0].parent}")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="MODEL|RUN", help="A published model, one of timm, a folder with a network, or a run.")],
    arch: Annotated[
        list[str] | None, typer.Option("--arch", metavar="WHICH", help="Of a run: only these (model is the retrained one); repeatable.")
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
    from superformer import bench as benchmark

    found = benchmark.bench(what, words, threads, seconds=seconds, which=arch or [], console=None if as_json else console)
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
    from superformer import runs as all_runs

    rows, lines = all_runs.overview([Path(f) for f in folders or ["runs"]])
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
    from superformer import provenance

    last = provenance.last(Path(run)) or provenance.last(Path(run) / "spaces" / "0")  # where evolve-space begins
    if last is None:
        raise SuperformerError(f"no command is noted in {run}: give the words that began it")
    if Path(last["folder"]).is_dir():
        os.chdir(last["folder"])
    say("superformer " + " ".join(last["words"]), dim=True)
    sys.argv[1:] = last["words"]
    provenance.began(last["words"])
    raise typer.Exit(app(standalone_mode=False) or 0)


@app.command()
def demo(run: Annotated[str, typer.Option("--run", metavar="DIR", help="The folder of the run.")] = "runs/demo") -> None:
    """Everything on the embedded digits: evolve the space, train, search, retrain, compare, export, report. About five minutes.

    Example: superformer demo --run runs/demo
    """
    from superformer.demo import run as run_demo

    run_demo(run, console)
