"""Retraining: the found network by itself, from its inherited weights or from scratch, at the same or a larger input size.

It is trained as `superformer.alone` does, with the recipe's ``retrain`` changes, in ``DIR/retrained/KEY-WEIGHTS``. The result is
``DIR/model`` (`superformer.stored`); ``DIR/retrained.json`` compares inherited, fine-tuned and scratch on the test pictures (S3, figure 5).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files, provenance
from superformer.alone import WEIGHTS, Weights, kept, prepared, save, single, trained
from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.opened import Opened
from superformer.families.base import Network
from superformer.part import word
from superformer.recipes import Recipe, changed, overlaid
from superformer.run import Run
from superformer.space.arch import Arch, StageArch, Values
from superformer.stored import Stored, load_network
from superformer.train.world import World
from superformer.trained import load_supernet


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
    run = Run.open(folder)
    run.trained()
    arch = run.arch(which)
    weights, size, rest = _own_words(run, changes)
    larger = at_size(arch, size)
    recipe = _recipe(run, larger, weights, rest)
    here = run.folder / "retrained" / f"{larger.key}-{weights}"
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
    recipe, net = run.recipe(), Opened.of(run).network(run.arch(which))
    return Stored(net, tuple(run.facts()["classes"]), recipe.data.mean, recipe.data.std, prepared(run, net))


def at_size(arch: Arch, size: int | None) -> Arch:
    """An architecture for another input size. Windows grow with the pictures, as S3's for 384 pixels did (7 became 12, 14 became 24)."""
    if size is None or size == arch.resolution:
        return arch

    def scaled(block: Values) -> Values:
        return Values({**block, "window": max(1, round(int(block["window"]) * size / arch.resolution))}) if "window" in block else block

    stages = arch.stages if arch.family != "swin" else tuple(StageArch(tuple(map(scaled, s.blocks)), s.choices, s.at) for s in arch.stages)
    return replace(arch, resolution=size, stages=stages)


def _own_words(run: Run, changes: Sequence[str]) -> tuple[Weights, int | None, list[str]]:
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


def _recipe(run: Run, arch: Arch, weights: Weights, changes: Sequence[str]) -> Recipe:
    """The recipe of the supernet, for one network: nothing to sample, no smaller one to teach, no gradients to join."""
    recipe = run.recipe()
    tree = recipe.model_dump(mode="json")
    ways = recipe.retrain
    larger = weights == "finetuned" and arch.resolution > run.facts()["img_size"]
    for part in (ways.finetuned if weights == "finetuned" else ways.scratch, ways.larger if larger else {}):
        tree = overlaid(tree, part)
    return changed(single(tree, arch, weights), changes, f"{run.folder} retrained")


def _row(run: Run, net: Network, name: str, weights: str, epochs: float, seconds: float) -> dict[str, Any]:
    arch = net.space.smallest()
    opened = Opened.of(run, net, arch.resolution)
    accuracy = opened.judge(opened.pictures.test())([arch])[0]
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
