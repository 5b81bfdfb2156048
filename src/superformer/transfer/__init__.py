"""Other data and other tasks: what ``superformer transfer`` does.

A backbone (`source`, `backbone`), a head (`heads`) and examples (`examples`) become a model that is trained (`loop`,
`training`), judged (`evaluation`, `metrics`), drawn (`drawing`) and handed over (`export`). Small classification sets
are the same retraining as everywhere, with other data and a new classifier (`classification`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files
from superformer.errors import SuperformerError, nearest
from superformer.kernels import keep_freed
from superformer.machine import torch_threads
from superformer.progress import quiet, take_begin, teller
from superformer.runs import RunError
from superformer.runs.processes import World
from superformer.train.time_budget import Stopwatch, check_minutes
from superformer.transfer import classification
from superformer.transfer.drawing import draw_examples
from superformer.transfer.evaluation import judge
from superformer.transfer.examples import load
from superformer.transfer.folder import TransferRun
from superformer.transfer.loop import train_task
from superformer.transfer.model import cost_of, load_model
from superformer.transfer.settings import Transfer, asked_for, resolve
from superformer.transfer.source import Source

SPLITS = {"test": "test", "search": "choice"}
"""Parts of the data, by the words of ``superformer eval``."""


def transfer(
    task: str | None, data_spec: str, out: str | Path | None = None, *changes: str, run: str | Path | None = None,
    arch: str | None = None, backbone: str | None = None, checkpoint: str | None = None, head: str | None = None,
    recipe: str | Path | None = None, minutes: float | None = None, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a network for a task and judge it on the test pictures; killed, the same call goes on.

    The network is one of a ``run`` (the retrained one, or ``arch``), or a ``backbone``: a name of ours or timm's, with
    the weights of ``checkpoint``, or a folder. ``out``: the folder of the transfer, by default one in the run's.
    ``recipe``: a published one (`superformer.transfer.settings.names`) or a file, ``TASK-laptop`` otherwise;
    ``changes``: its ``key=value`` words. ``minutes``: as many epochs as fit. Returns what ``scores.json`` holds of the
    test pictures."""
    check_minutes(minutes)
    watch = Stopwatch(start=take_begin())
    meant, head, _ = asked_for(task, head, recipe)
    folder = place(out, run, meant, head, data_spec)
    inside, world = World.joined(), World.join()
    keep_freed()
    try:
        source = Source.of(run, arch, backbone, checkpoint)
        shown = quiet(console if world.first else None)
        if meant == "classify":
            return classification.classify(source, data_spec, folder, changes, recipe, minutes, shown)
        settings = resolve(meant, head, recipe, changes, {"data": dict(source.prepared)})
        source = source.asked(settings.backbone.pretrained)
        own = TransferRun(folder)
        with torch_threads(settings.train.threads):
            _tell_source(source, settings, shown)
            train_task(own, settings, source, data_spec, world, shown, minutes, watch)
            return evaluate(folder, "test", shown) if world.first else {}
    finally:
        if not inside:
            world.leave()


def place(out: str | Path | None, run: str | Path | None, task: str, head: str, spec: str) -> Path:
    """The folder of a transfer; of a run's network, one in the run unless another is named."""
    if out is not None:
        return Path(out)
    if run is None:
        raise SuperformerError("where is the result to go? --out DIR names its folder")
    name = Path(spec.partition(",")[0].rpartition("=")[2]).name
    return Path(run) / "transfer" / f"{task}-{head}-{name}"


def _tell_source(source: Source, settings: Transfer, console: Console) -> None:
    tell = teller(console)
    tell(f"{settings.task} with {settings.head_used} on {source.name}; weights: {source.weights}")
    if source.weights == "random":
        tell("note: the backbone begins with random weights; --checkpoint FILE.safetensors gives it others")


def evaluate(
    folder: str | Path, split: str = "test", console: Console | None = None, scales: bool = False
) -> dict[str, Any]:
    """The task's metrics of a transfer on its test pictures, or on those to choose by (``search``). Computed once, and
    again if the pictures changed; kept in ``scores.json`` with pictures of some examples. ``scales``: of segmentation,
    as the mean of what is found at six scales and mirrored."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    if classification.there(folder):
        return classification.evaluate(folder, split)
    run = TransferRun.open(folder)
    known, mark = run.scores(), files.digest(run.network_file.read_bytes())
    settings, facts, name = run.settings(), run.facts(), f"{split}-scales" if scales else split
    if scales and settings.task != "segment":
        raise SuperformerError(f"--scales is for segmentation, and {folder} is of --task {settings.task}")
    data = load(settings.task, facts["data"], settings.data)  # reads headers only
    if data.fingerprint != facts["fingerprint"]:
        raise RunError(f"the pictures of {facts['data']} are not those that {folder} was trained on")
    seen = {"network": mark, "judged_on": data.tested if split == "test" else data.fingerprint}
    if name in known and all(known[name].get(k, v) == v for k, v in seen.items()):  # older rows tell no pictures
        return dict(known[name])
    part, device = getattr(data, SPLITS[split]), World.join().device
    if not len(part):
        raise SuperformerError(f"{folder} has no pictures to choose by (data.choice=0): nothing can be judged on them")
    model = load_model(run, data).to(device)
    found = judge(model, data, part, settings, device, console=console, scales=scales)
    found |= {"task": settings.task, "head": settings.head_used, "cost": cost_of(model, settings), **seen}
    files.write_object(run.scores_file, {**known, name: found})
    if name == "test":
        draw_examples(run, model, data, settings, device)
    return found


def flat(found: dict[str, Any]) -> dict[str, Any]:
    """What ``eval --json`` prints: the metrics as they are, and what they are of."""
    rest: Sequence[str] = ("task", "head", "pictures", "by_class", "cost")
    return {**found["metrics"], **{k: found[k] for k in rest if k in found}}
