"""Retraining: the found network by itself, from its inherited weights or from scratch, at the same or a larger input size.

It is trained as `superformer.alone` does, with the recipe's ``retrain`` changes, in ``DIR/retrained/KEY-WEIGHTS``. The result is
``DIR/model`` (`superformer.stored`); ``DIR/retrained.json`` compares inherited, fine-tuned and scratch on the test pictures (S3, figure 5).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files, provenance
from superformer.alone import kept, prepared, save, trained
from superformer.cost import cost
from superformer.evaluation.opened import Opened
from superformer.families.base import Network
from superformer.run import Run
from superformer.single import retraining
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
    recipe, net = run.recipe(), Opened.of(run).network(run.arch(which))
    return Stored(net, tuple(run.facts()["classes"]), recipe.data.mean, recipe.data.std, prepared(run, net))


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
