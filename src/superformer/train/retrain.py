"""One sub-network of a run by itself: with its inherited weights, or trained alone.

A network is the supernet of a space with one point, so training it is training (`superformer.train.loop`) with a recipe
for one network (`superformer.recipes`). Retraining does so with a recipe's ``retrain`` changes, from inherited weights
or from scratch, at the same or a larger input size, in ``DIR/retrained/KEY-WEIGHTS``. The result is ``DIR/model``;
``DIR/retrained.json`` compares inherited, fine-tuned and scratch on the test pictures (S3, figure 5)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data, files
from superformer.cost import cost
from superformer.evaluation.evaluator import TrainedRun
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.recipes import Recipe, read_changes, retrain_recipe
from superformer.runs import Run, note_command, stored
from superformer.runs.processes import World
from superformer.runs.storage import StoredNetwork, load_network, load_supernet, save_network
from superformer.space.arch import Arch
from superformer.space.schema import family
from superformer.train.loop import check_settings, recipe_skeleton, train
from superformer.train.optimizer import unmatched


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
    run.require_trained()
    arch, where = run.arch(which), f"{run.folder} retrained"
    weights, size, rest = read_changes(run.recipe(), changes, where)
    larger = family(arch.family).rescaled(arch, size) if size not in (None, arch.resolution) else arch
    recipe = retrain_recipe(run.recipe(), larger, weights, rest, run.facts()["img_size"], where)
    recipe = without_dead_words(run, recipe)
    home, model = run.folder / "retrained", run.folder / "model"

    world, begun = World.join(), time.monotonic()
    if not Run(home / f"{larger.key}-{weights}").recipe_file.exists():
        check_settings(recipe, run.facts()["data"])
    if world.first:
        note_command(run.folder)
    inherited = write_inherited(run, arch, home / f"{arch.key}-inherited")
    start = inherited if weights == "finetuned" else None
    done = train_network(run, recipe, home / f"{larger.key}-{weights}", start, console)
    if not world.first:
        return Retrained(model, [])

    net, seconds = load_supernet(done.supernet_file), time.monotonic() - begun
    rows = [_row(run, load_network(inherited).net, which, "inherited", 0, 0)]
    rows.append(_row(run, net, which, weights, recipe.train.epochs, seconds))
    table = run.folder / "retrained.json"
    old = stored.read(table).get("rows", [])
    new = {(r["key"], r["weights"]) for r in rows}  # rows of the same network and way take the place of older ones
    rows = [r for r in old if (r["key"], r["weights"]) not in new] + rows
    _save(run, net, model)
    files.write_object(table, {"rows": rows})
    return Retrained(model, rows)


def _row(run: Run, net: Network, name: str, weights: str, epochs: float, seconds: float) -> dict[str, Any]:
    arch = net.space.smallest()
    opened = TrainedRun.of(run, net, arch.resolution)
    accuracy = opened.evaluator(opened.pictures.test())([arch])[0]
    counted = cost(net.space, [arch], num_classes=net.num_classes)
    return {
        "name": name, "key": arch.key, "weights": weights, "accuracy": accuracy, "macs": int(counted.macs[0]),
        "params": int(counted.params[0]), "epochs": epochs, "seconds": round(seconds, 1), "img_size": arch.resolution,
    }  # fmt: skip


def write_inherited(run: Run, arch: Arch, folder: Path) -> Path:
    """The folder of a sub-network with its inherited weights, written now if there is none."""
    world = World.join()
    if world.first and not (folder / CONFIG).exists():
        _save(run, TrainedRun.of(run).network(arch), folder)
    world.wait()
    return folder


def train_network(run: Run, recipe: Recipe, home: Path, start: Path | None, console: Console | None = None) -> Run:
    """Train the network of a recipe (`superformer.recipes`) in ``home``, from the weights of the network in
    ``start`` if there is one. Killed, the same call goes on."""
    own, changes = Run(home), dict[str, Any]()
    if start is not None:
        begun = own.recipe_file.exists()  # the same words, even if the run was moved since
        changes["start"] = own.recipe().start if begun else recipe.start.model_copy(update={"network": str(start)})
    changed = without_dead_words(run, recipe).model_copy(update=changes)
    return train(changed, run.facts()["data"], home, console=console)


def without_dead_words(run: Run, recipe: Recipe) -> Recipe:
    """What the supernet's recipe keeps from decay, the network of a recipe need not have."""
    net = recipe_skeleton(recipe, len(run.facts()["classes"]))
    dead = unmatched(run.recipe().optimizer.no_decay, net)
    words = tuple(word for word in recipe.optimizer.no_decay if word not in dead)
    return recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update={"no_decay": words})})


def network_to_export(folder: str | Path, which: str | None = None) -> StoredNetwork:
    """The network that a run hands over: the retrained one, or a sub-network with its inherited weights."""
    run = Run.open(folder)
    if which is None:
        return load_network(run.model_folder())
    run.require_trained()
    settings, net = run.recipe().data, TrainedRun.of(run).network(run.arch(which))
    return StoredNetwork(net, tuple(run.facts()["classes"]), settings.mean, settings.std, _prepared(run, net))


def _save(run: Run, net: Network, folder: Path) -> None:
    """Write a network with what its user must know of the run: classes, and how pictures are prepared."""
    settings = run.recipe().data
    save_network(net, folder, run.facts()["classes"], settings.mean, settings.std, **_prepared(run, net))


def _prepared(run: Run, net: Network) -> dict[str, Any]:
    """How pictures are cut: those that are not larger than the input lose no border (`superformer.data.augment`)."""
    settings, size = run.recipe().data, net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], settings, size)
    small = min(pictures.train.picture(0).shape[:2]) <= size
    return {"crop": 1.0 if small else settings.crop, "interpolation": settings.interpolation}
