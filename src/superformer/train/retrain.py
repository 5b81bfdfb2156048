"""The recipe of one sub-network by itself: the run's, where nothing is left to draw (no sampling, no smaller networks
to teach, no gradients to join), and for another input size if one is asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console

from superformer import data, files
from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.trained_run import TrainedRun
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.recipes import Recipe, changed, overlaid
from superformer.runs import folder as provenance
from superformer.runs.folder import Run
from superformer.runs.processes import World
from superformer.runs.storage import Stored, load_network, load_supernet, save_network
from superformer.settings import word
from superformer.space import point
from superformer.space.arch import Arch, StageArch, Values
from superformer.train.loop import train

Weights = Literal["finetuned", "scratch"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
"""How a network begins: with the weights it inherits from the supernet, or with new ones."""


def single(recipe: Mapping[str, Any], weights: Weights, space: object) -> dict[str, Any]:
    """A recipe, as a tree, for one network at its own input size: ``space`` is that of its point (`only`)."""
    return {
        **recipe,
        "name": f"{recipe['name']}-{weights}",
        "space": space,
        "narrow": {},
        "img_size": None,
        "sharing": "ordinal",
        "sampling": {"rule": "single"},
        "gradients": {"rule": "sum", "clip": recipe["gradients"]["clip"]},
        "loss": {**recipe["loss"], "distill": "none"},
        "train": {**recipe["train"], "channel_sort": 0},
        "start": {},
    }


def only(arch: Arch) -> object:
    """The space of one architecture, as recipes have it."""
    return json.loads(point(arch).to_json())


@dataclass(frozen=True)
class Retraining:
    """What is to be retrained: a sub-network, the same for its new input size, how it begins, and its recipe."""

    arch: Arch
    larger: Arch
    weights: Weights
    recipe: Recipe


def retraining(run: Run, which: str, changes: Sequence[str]) -> Retraining:
    """What the words of a retraining ask for; a mistake in them is an error."""
    run.trained()
    arch = run.arch(which)
    weights, size, rest = words(run, changes)
    larger = at_size(arch, size)
    return Retraining(arch, larger, weights, _recipe(run, larger, weights, rest))


def at_size(arch: Arch, size: int | None) -> Arch:
    """An architecture for another input size. Windows grow with the pictures, as S3's for 384 pixels did (7 became 12,
    14 became 24)."""
    if size is None or size == arch.resolution:
        return arch

    def scaled(block: Values) -> Values:
        return (
            Values({**block, "window": max(1, round(int(block["window"]) * size / arch.resolution))})
            if "window" in block
            else block
        )

    stages = (
        arch.stages
        if arch.family != "swin"
        else tuple(StageArch(tuple(map(scaled, s.blocks)), s.choices, s.at) for s in arch.stages)
    )
    return replace(arch, resolution=size, stages=stages)


def words(run: Run, changes: Sequence[str]) -> tuple[Weights, int | None, list[str]]:
    """The way, the input size, and the words that change the recipe. A mistake in them is an error."""
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
    tree = run.recipe().model_dump(mode="json")
    changed(single(tree, weights, tree["space"]), rest, f"{run.folder} retrained")
    return weights, size, rest


def _recipe(run: Run, arch: Arch, weights: Weights, changes: Sequence[str]) -> Recipe:
    """The recipe of the supernet, for one network: nothing to sample, no smaller one to teach, no gradients to join."""
    recipe = run.recipe()
    tree = recipe.model_dump(mode="json")
    ways = recipe.retrain
    larger = weights == "finetuned" and arch.resolution > run.facts()["img_size"]
    for part in (ways.finetuned if weights == "finetuned" else ways.scratch, ways.larger if larger else {}):
        tree = overlaid(tree, part)
    return changed(single(tree, weights, only(arch)), changes, f"{run.folder} retrained")


# One sub-network of a run by itself: with its inherited weights, or trained alone.
#
# A network is the supernet of a space with one point, so training it is training (`superformer.train.loop`) with a
# recipe that `superformer.train.retrain` writes.


def save(run: Run, net: Network, folder: Path) -> None:
    """Write a network (`superformer.runs.storage`) with what its user must know of the run: classes, and how pictures
    are prepared."""
    settings = run.recipe().data
    save_network(net, folder, run.facts()["classes"], settings.mean, settings.std, **prepared(run, net))


def prepared(run: Run, net: Network) -> dict[str, Any]:
    """How pictures are cut: those that are not larger than the input lose no border (`superformer.data.augment`)."""
    settings, size = run.recipe().data, net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], settings, size)
    small = min(pictures.train.picture(0).shape[:2]) <= size
    return {"crop": 1.0 if small else settings.crop, "interpolation": settings.interpolation}


def kept(run: Run, arch: Arch, folder: Path) -> Path:
    """The folder of a sub-network with its inherited weights, written now if there is none."""
    world = World.join()
    if world.first and not (folder / CONFIG).exists():
        save(run, TrainedRun.of(run).network(arch), folder)
    world.wait()
    return folder


def trained(run: Run, recipe: Recipe, home: Path, start: Path | None, console: Console | None = None) -> Run:
    """Train the network of a recipe (see `superformer.train.retrain`) in ``home``, from the weights of the network in
    ``start`` if there is one.

    Killed, the same call goes on.
    """
    own = Run(home)
    if start is not None:
        begun = (
            own.recipe().start if own.recipe_file.exists() else recipe.start.model_copy(update={"network": str(start)})
        )
        recipe = recipe.model_copy(update={"start": begun})  # the same words, even if the run was moved since
    return train(recipe, run.facts()["data"], home, console=console)


# Retraining: the found network by itself, from its inherited weights or from scratch, at the same or a larger input
# size.
#
# It is trained as `superformer.train.retrain` does, with the recipe's ``retrain`` changes, in ``DIR/retrained/KEY-
# WEIGHTS``. The result is ``DIR/model`` (`superformer.runs.storage`); ``DIR/retrained.json`` compares
# inherited, fine-tuned and scratch on the test pictures (S3, figure 5).


@dataclass(frozen=True)
class Retrained:
    """What retraining gave: the folder of the network, and the rows of the table (accuracies on the test pictures)."""

    model: Path
    rows: list[dict[str, Any]]


def retrain(folder: str | Path, which: str = "best", *changes: str, console: Console | None = None) -> Retrained:
    """Train a sub-network of a run by itself; killed, the same call goes on.

    ``which``: best, smallest, largest, a key of the front, or a file. ``changes``: ``weights=scratch``,
    ``img_size=384`` and any setting of the recipe."""
    run = Run.open(folder)
    asked = retraining(run, which, changes)
    arch, weights, recipe = asked.arch, asked.weights, asked.recipe
    here = run.folder / "retrained" / f"{asked.larger.key}-{weights}"
    world, begun = World.join(), time.monotonic()
    if world.first:
        provenance.note(run.folder)
    start = kept(run, arch, run.folder / "retrained" / f"{arch.key}-inherited")
    done = trained(run, recipe, here, start if weights == "finetuned" else None, console)
    if not world.first:
        return Retrained(run.folder / "model", [])
    rows = [
        _row(run, load_network(start).net, which, "inherited", 0, 0),
        _row(run, load_supernet(done.supernet_file), which, weights, recipe.train.epochs, time.monotonic() - begun),
    ]
    return _keep(run, load_supernet(done.supernet_file), rows)


def handed_over(folder: str | Path, which: str | None = None) -> Stored:
    """The network that a run hands over: the retrained one, or a sub-network with its inherited weights."""
    run = Run.open(folder)
    if which is None:
        return load_network(run.model())
    run.trained()
    recipe, net = run.recipe(), TrainedRun.of(run).network(run.arch(which))
    return Stored(net, tuple(run.facts()["classes"]), recipe.data.mean, recipe.data.std, prepared(run, net))


def _row(run: Run, net: Network, name: str, weights: str, epochs: float, seconds: float) -> dict[str, Any]:
    arch = net.space.smallest()
    opened = TrainedRun.of(run, net, arch.resolution)
    accuracy = opened.evaluator(opened.pictures.test())([arch])[0]
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
    save(run, net, model)
    files.write(table, json.dumps({"rows": rows}, indent=1))
    return Retrained(model, rows)
