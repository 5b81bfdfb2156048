"""A network put to other tasks: transfer, and what other commands do with its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, minutes_of, percent, progress_console, say, table
from superformer.errors import SuperformerError

TASKS = "classify|detect|instance|segment|vqa"
HEADS = "retinanet, faster-rcnn; mask-rcnn, cascade-mask-rcnn; semantic-fpn, upernet, segformer, dpt; soho"
EXAMPLES = "COCO json with pictures; pictures and masks in parallel folders; questions; or as everywhere (classify)."

Task = Annotated[arg.Word, typer.Option("--task", metavar=TASKS, help="What the network is to do.")]
Head = Annotated[arg.Word, typer.Option("--head", metavar="NAME", help=f"{HEADS}.")]
OptionalData = Annotated[arg.Word, typer.Option("--data", metavar="SPEC", help=EXAMPLES)]
OfRun = Annotated[arg.Word, typer.Option("--run", metavar="DIR", help="A run, whose network is the backbone.")]
Which = Annotated[arg.Word, typer.Option("--arch", metavar="WHICH", help=f"Of the run: {arg.WHICH}.")]
Base = Annotated[
    arg.Word, typer.Option("--backbone", metavar="NAME", help="A network of ours or of timm, or a folder with one.")
]
Out = Annotated[
    arg.Word, typer.Option("--out", metavar="DIR", help="Where the result goes; in the run's folder otherwise.")
]
OptionalRecipe = Annotated[
    arg.Word, typer.Option("--recipe", metavar="NAME|FILE", help="TASK-laptop, unless another is named.")
]
Plan = Annotated[bool, typer.Option("--plan", help="Only tell what backbone and head cost; nothing is trained.")]
Classes = Annotated[int | None, typer.Option("--classes", min=1, max=100_000, help="--plan: of the head.")]
Size = Annotated[arg.Word, typer.Option("--size", metavar="800x1280", help="--plan: height and width of the pictures.")]


@app.command()
def transfer(
    task: Task = None, head: Head = None, data: OptionalData = None, run: OfRun = None, arch: Which = None,
    backbone: Base = None, checkpoint: arg.Checkpoint = None, out: Out = None, recipe: OptionalRecipe = None,
    hours: arg.Hours = None, minutes: arg.Minutes = None, plan: Plan = False, classes: Classes = None,
    size: Size = None, changes: arg.Changes = None, as_json: arg.Json = False, device: arg.Device = "auto",
    processes: arg.Processes = "same",
) -> None:  # fmt: skip
    """Put a network to another task, or to other data: detection, instance and semantic segmentation, question
    answering, small classification sets. Killed, the same words go on.

    Example: superformer transfer --backbone s3_tiny --task segment --head upernet --data pets_seg/ --out runs/pets

    Example: superformer transfer --run runs/first --task detect --data coco/ --minutes 30

    --plan --json tells parameters and MACs of backbone and head before anything is trained; --recipe, --data (or
    --classes) and key=value words mean the same there. key=value words change the recipe (docs/transfer.md lists the
    published ones). superformer eval, export, bench and report take the folder."""
    if plan:
        from superformer.transfer.plan import plan_as_asked
        from superformer.transfer.source import Source

        source = Source.of(run, arch, backbone, checkpoint)
        found = plan_as_asked(source, task, head, recipe, changes or [], data, classes, _size(size))
        _show_plan(found, source.name, as_json)
        return
    if data is None:
        raise SuperformerError(f"what is it to learn from? --data takes {EXAMPLES[:-1]}")
    for word, given in (("--classes", classes), ("--size", size)):
        if given is not None:
            raise SuperformerError(f"{word} goes with --plan; the data tell it otherwise")
    time = minutes_of(hours, minutes, changes)
    with computing():
        from superformer.transfer import flat
        from superformer.transfer import place as place_of
        from superformer.transfer import transfer as run_transfer
        from superformer.transfer.settings import asked_for

        meant, own, _ = asked_for(task, head, recipe)
        folder = place_of(out, run, meant, own, data)
        found = run_transfer(
            task, data, folder, *(changes or []), run=run, arch=arch, backbone=backbone, checkpoint=checkpoint,
            head=head, recipe=recipe, minutes=time, console=progress_console(as_json),
        )  # fmt: skip
    if not found:  # one of several processes, which the first one speaks for
        return
    if as_json:
        print(json.dumps(flat(found)))
        return
    show(found, "test")
    say(f"The network is in {folder}")
    say(f"Next: superformer report --run {folder}, superformer export --run {folder} --to onnx", dim=True)


def _show_plan(found: dict[str, Any], name: str, as_json: bool) -> None:
    """What backbone and head cost."""
    if as_json:
        print(json.dumps(found))
        return
    parts = [("together", found), *((name, found[name]) for name in ("backbone", "head"))]
    rows = [{"part": name, "params": p["params"], "macs": p["macs"]} for name, p in parts]
    console.print(table(rows, f"{found['task']} with {found['head_name']} on {name}"))


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(s.isdecimal() and 0 < int(s) <= 16_384 for s in sides):
        raise SuperformerError(f"--size is written 800x1280 (height and width), not {text!r}")
    return int(sides[0]), int(sides[1])


def show(found: dict[str, Any], split: str) -> None:
    """Metrics as a table, and those of the classes."""
    metrics = {name: percent(v) if v is not None else "" for name, v in found["metrics"].items()}
    rows = [{"metric": name, "value": value} for name, value in metrics.items()]
    told = f"{found.get('task', '')} with {found.get('head', '')}" if "task" in found else ""
    console.print(table(rows, f"On the {split} split {told}".strip()))
    by_class = found.get("by_class") or {}
    if 0 < len(by_class) <= 40:
        columns = list(dict.fromkeys(k for own in by_class.values() for k in own))
        lines = [{"class": name, **{c: _figure(own.get(c)) for c in columns}} for name, own in by_class.items()]
        console.print(table(lines, "By class"))


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return percent(value)
    return "" if value is None else str(value)


def is_transfer(folder: str) -> bool:
    """Whether a folder is that of a transfer; told without torch."""
    from superformer.runs.stored import TRANSFER

    return (Path(folder) / TRANSFER).exists()


def evaluate_transfer(folder: str, split: str, as_json: bool, scales: bool) -> None:
    """superformer eval, of a transfer."""
    with computing():
        from superformer.transfer import evaluate, flat

        found = evaluate(folder, split, progress_console(as_json), scales)
    if as_json:
        print(json.dumps(flat(found)))
    else:
        show(found, split)


def is_dense(folder: str) -> bool:
    """Whether it is of another task than classification, whose folder is an ordinary run."""
    from superformer.runs import stored

    return is_transfer(folder) and stored.read(Path(folder) / stored.TRANSFER)["task"] != "classify"


def export_transfer(folder: str, to: str, out: str | None, int8: str | None, arch: str | None) -> None:
    """superformer export, of a transfer."""
    if arch is not None or int8 is not None:
        word = "--arch" if arch is not None else "--int8"
        raise SuperformerError(f"{word} is for runs of supernets, not for a transfer")
    with computing():
        from superformer.transfer.export import export

        proof = export(folder, to, Path(out or Path(folder) / "export" / to), console)
    say(f"{proof}")
    say(f"The export is in {proof.files[0].parent}")


def bench_transfer(folder: str, threads: int, seconds: float, as_json: bool) -> None:
    """superformer bench, of a transfer."""
    with computing():
        from superformer.transfer.timing import bench

        found = bench(folder, threads, seconds)
    if as_json:
        print(json.dumps(found))
        return
    height, width = found["size"]
    rows = [
        {
            "what": r["name"],
            "device": r["device"],
            "pictures": r["batch"],
            "time": f"{1e3 * r['median']:.4g} ms",
            "90 %": f"{1e3 * r['p90']:.4g} ms",
        }
        for r in found["rows"]
    ]
    console.print(table(rows, f"{height} x {width} pixels; {found['machine']}; threads: {threads}"))
    if found["waited"] is not None:
        say(f"{percent(found['waited'])} of the time of training was spent waiting for pictures")
