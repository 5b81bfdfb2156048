"""Retraining: the found network by itself, from its inherited weights or from scratch, at the same or a larger input size.

A network is the supernet of a space with one point, so retraining is training (`superformer.train.loop`) with the recipe's ``retrain``
changes, in ``DIR/retrained/KEY-WEIGHTS``. The result is ``DIR/model`` (`superformer.stored`); ``DIR/retrained.json`` compares inherited,
fine-tuned and scratch on the test pictures (S3, figure 5).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data, files, provenance
from superformer.cost import cost
from superformer.elastic.conv import recalibrate
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.evaluator import CALIBRATION, FEW, Evaluator
from superformer.families.base import Network
from superformer.part import word
from superformer.recipes import Recipe, changed, overlaid
from superformer.run import Run
from superformer.space import point
from superformer.space.arch import Arch, StageArch, Values
from superformer.stored import Stored, load_network, save_network
from superformer.train.loop import train
from superformer.train.world import World
from superformer.trained import load_supernet

WEIGHTS = ("finetuned", "scratch")


@dataclass(frozen=True)
class Retrained:
    """What retraining gave: the folder of the network, and the rows of the table (accuracies on the test pictures)."""

    model: Path
    rows: list[dict[str, Any]]


def retrain(folder: str | Path, which: str = "best", *changes: str, console: Console | None = None) -> Retrained:
    """Train a sub-network of a run by itself; killed, the same call goes on.

    ``which``: best, smallest, largest, a key of the front, or a file. ``changes``: ``weights=scratch``, ``img_size=384`` and any setting of
    the recipe.
    """
    shown = console or Console(quiet=True)
    run = Run.open(folder)
    run.trained()
    arch = run.arch(which)
    weights, size, rest = _own_words(run, changes)
    larger = at_size(arch, size)
    recipe = _recipe(run, larger, weights, rest)
    here = run.folder / "retrained" / f"{larger.key}-{weights}"
    start = run.folder / "retrained" / f"{arch.key}-inherited"
    world = World.join()
    if world.first:
        provenance.note(run.folder)
    if world.first and not (start / "config.json").exists():
        _save(run, inherited(run, arch), start)
    world.wait()
    if weights == "finetuned":
        begun_with = Run(here).recipe().start if Run(here).recipe_file.exists() else recipe.start.model_copy(update={"network": str(start)})
        recipe = recipe.model_copy(update={"start": begun_with})  # the same words, even if the run was moved since
    begun = time.monotonic()
    done = train(recipe, run.facts()["data"], here, console=shown)
    if not world.first:
        return Retrained(run.folder / "model", [])
    rows = [
        _row(run, load_network(start).net, which, "inherited", 0, 0),
        _row(run, load_supernet(done.supernet_file), which, weights, recipe.train.epochs, time.monotonic() - begun),
    ]
    return _keep(run, load_supernet(done.supernet_file), rows)


def inherited(run: Run, arch: Arch) -> Network:
    """A sub-network with the weights it has in the supernet; its batch norms are estimated on training pictures."""
    net, recipe, size = load_supernet(run.supernet_file), run.recipe(), int(run.facts()["img_size"])
    model = net.extract(arch).eval()
    pictures = data.load(run.facts()["data"], recipe.data, size)
    run.same_pictures(pictures.fingerprint)
    if any(True for m in model.modules() if hasattr(m, "running_mean")):
        recalibrate(model, (x for x, _ in data.eval_batches(pictures.train, recipe.data, size, FEW, limit=CALIBRATION * FEW)))
    return model


def handed_over(folder: str | Path, which: str | None = None) -> Stored:
    """The network that a run hands over: the retrained one, or a sub-network with its inherited weights."""
    run = Run.open(folder)
    if which is None:
        if not (run.folder / "model" / "config.json").exists():
            raise SuperformerError(
                f"{run.folder} has no retrained network yet: superformer retrain --run {run.folder}, or --arch best for inherited weights"
            )
        return load_network(run.folder / "model")
    run.trained()
    recipe, net = run.recipe(), inherited(run, run.arch(which))
    return Stored(net, tuple(run.facts()["classes"]), recipe.data.mean, recipe.data.std, _prepared(run, net))


def at_size(arch: Arch, size: int | None) -> Arch:
    """An architecture for another input size. Windows grow with the pictures, as S3's for 384 pixels did (7 became 12, 14 became 24)."""
    if size is None or size == arch.resolution:
        return arch

    def scaled(block: Values) -> Values:
        return Values({**block, "window": max(1, round(int(block["window"]) * size / arch.resolution))}) if "window" in block else block

    stages = arch.stages if arch.family != "swin" else tuple(StageArch(tuple(map(scaled, s.blocks)), s.choices, s.at) for s in arch.stages)
    return replace(arch, resolution=size, stages=stages)


def _own_words(run: Run, changes: Sequence[str]) -> tuple[str, int | None, list[str]]:
    """The way, the input size, and the words that change the recipe."""
    weights, size, rest = run.recipe().retrain.weights, None, []
    for text in changes:
        key, value = word(text)
        if key == "weights":
            if value not in WEIGHTS:
                raise SuperformerError(f"weights must be finetuned or scratch: {nearest(str(value), WEIGHTS)}")
            weights = value
        elif key == "img_size":
            if not isinstance(value, int) or value < 1:
                raise SuperformerError(f"img_size must be a number of pixels, not {value!r}")
            size = value
        else:
            rest.append(text)
    return weights, size, rest


def _recipe(run: Run, arch: Arch, weights: str, changes: Sequence[str]) -> Recipe:
    """The recipe of the supernet, for one network: nothing to sample, no smaller one to teach, no gradients to join."""
    recipe = run.recipe()
    tree = recipe.model_dump(mode="json")
    ways = recipe.retrain
    larger = weights == "finetuned" and arch.resolution > run.facts()["img_size"]
    for part in (ways.finetuned if weights == "finetuned" else ways.scratch, ways.larger if larger else {}):
        tree = overlaid(tree, part)
    single = {
        "name": f"{recipe.name}-{weights}",
        "space": json.loads(point(arch).to_json()),
        "narrow": {},
        "img_size": None,
        "sharing": "ordinal",
        "sampling": {"rule": "single"},
        "gradients": {"rule": "sum", "clip": tree["gradients"]["clip"]},
        "start": {},
    }
    tree = {**tree, **single, "loss": {**tree["loss"], "distill": "none"}, "train": {**tree["train"], "channel_sort": 0}}
    return changed(tree, changes, f"{run.folder} retrained")


def _save(run: Run, net: Network, folder: Path) -> None:
    recipe = run.recipe()
    save_network(net, folder, run.facts()["classes"], recipe.data.mean, recipe.data.std, **_prepared(run, net))


def _prepared(run: Run, net: Network) -> dict[str, Any]:
    """How pictures are cut: those that are not larger than the input lose no border (`superformer.data.frames`)."""
    settings, size = run.recipe().data, net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], settings, size)
    small = min(pictures.train.picture(0).shape[:2]) <= size
    return {"crop": 1.0 if small else settings.crop, "interpolation": settings.interpolation}


def _row(run: Run, net: Network, name: str, weights: str, epochs: float, seconds: float) -> dict[str, Any]:
    arch, recipe = net.space.smallest(), run.recipe()
    pictures = data.load(run.facts()["data"], recipe.data, arch.resolution)
    accuracy = Evaluator.of(net, recipe, pictures, pictures.test(), arch.resolution)([arch])[0]
    counted = cost(net.space, [arch], num_classes=net.num_classes)
    return {
        "name": name, "key": arch.key, "weights": weights, "accuracy": accuracy, "macs": int(counted.macs[0]),
        "params": int(counted.params[0]), "epochs": epochs, "seconds": round(seconds, 1), "img_size": arch.resolution,
    }  # fmt: skip


def _keep(run: Run, net: Network, rows: list[dict[str, Any]]) -> Retrained:
    """Write the network and the table; rows of the same network and way take the place of older ones."""
    model, table = run.folder / "model", run.folder / "retrained.json"
    old = json.loads(table.read_text())["rows"] if table.exists() else []
    new = {(r["key"], r["weights"]) for r in rows}
    rows = [r for r in old if (r["key"], r["weights"]) not in new] + rows
    _save(run, net, model)
    files.write(table, json.dumps({"rows": rows}, indent=1))
    return Retrained(model, rows)
