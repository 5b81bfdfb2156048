"""One sub-network of a run by itself: with its inherited weights, or trained alone.

A network is the supernet of a space with one point, so training it is training (`superformer.train.loop`) with a recipe
for one network (`superformer.recipes`). Retraining does so with a recipe's ``retrain`` changes, from inherited weights
or from scratch, in ``DIR/retrained/KEY-WEIGHTS``. For larger pictures the papers tune the network that was trained at
its own size (S3, section 4.3; ViT-ResNAS, section 3.1): two trainings, of which the first is used if it is there. The
result is ``DIR/model``; ``DIR/retrained.json`` compares inherited, fine-tuned and scratch on the test pictures (S3,
figure 5), with mean and deviation over seeds (ViTAS v1, appendix C)."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data, files
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.progress import quiet, take_begin, teller
from superformer.recipes import Recipe, Retraining, from_tree, read_changes, retrain_recipe
from superformer.runs import Run, note_command, stored
from superformer.runs.processes import World
from superformer.runs.storage import StoredNetwork, load_network, load_supernet, save_network
from superformer.space.arch import Arch
from superformer.space.schema import family
from superformer.train.loop import train
from superformer.train.optimizer import unmatched
from superformer.train.preparation import check_settings, recipe_skeleton
from superformer.train.time_budget import Stopwatch, TooShortError, check_minutes


@dataclass(frozen=True)
class Retrained:
    """What retraining gave: the folder of the network, and the rows of the table (accuracies on the test pictures)."""

    model: Path
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class _Stage:
    """A training of one network. ``origin``: what it begins with, for the table; ``minutes``: that it has."""

    run: Run
    recipe: Recipe
    arch: Arch
    seed: int
    start: Path | Run | None
    origin: str
    seconds: float = 0.0
    minutes: float | None = None

    @property
    def weight(self) -> float:
        """How long it takes, compared with others of the same network."""
        return self.recipe.train.epochs * self.arch.resolution**2


def retrain(
    folder: str | Path, which: str = "best", *changes: str, seeds: int = 1, console: Console | None = None,
    minutes: float | None = None,
) -> Retrained:  # fmt: skip
    """Train a sub-network of a run by itself; killed, the same call goes on.

    ``which``: best, smallest, largest, a key of the front, or a file. ``changes``: ``weights=scratch``,
    ``img_size=384`` and any setting of the recipe; for larger pictures the settings are those of the tuning, and the
    training before it is the recipe's. ``seeds``: so many trainings, from the recipe's seed on; the network is the
    first one's, not the best on the test pictures. ``minutes``: for all of it; trainings have as many epochs as fit."""
    check_minutes(minutes)
    watch = Stopwatch(start=take_begin())
    if seeds < 1:
        raise SuperformerError(f"retraining needs at least one seed, not {seeds}")
    run = Run.open(folder)
    run.require_trained()
    arch, asked = run.arch(which), read_changes(run.recipe(), changes, f"{run.folder} retrained")
    check_start(run, arch, asked)
    inside, world = World.joined(), World.join()
    try:
        if not _last(run, arch, asked).recipe_file.exists():
            own = without_dead_words(run, _recipe(run, arch, asked))
            check_settings(own, run.facts()["data"], None if minutes is None else minutes / seeds)
        if world.first:
            note_command(run.folder)
        inherited = write_inherited(run, arch, run.folder / "retrained" / f"{arch.key}-inherited")
        judging = watch.seconds
        rows = [table_row(run, load_network(inherited).net, which, "inherited", of=arch.key)] if world.first else []
        judging = watch.seconds - judging
        each = [_stages(run, arch, replace(asked, seed=asked.seed + k), inherited) for k in range(seeds)]
        if minutes is not None:
            each = _share(each, 60 * minutes - world.first_says(watch.seconds), world.first_says(judging))
        done = [[_trained(run, stage, console) for stage in stages] for stages in each]
    finally:
        if not inside:
            world.leave()
    model = run.folder / "model"
    if not world.first:
        return Retrained(model, [])

    for stages in zip(*done, strict=True):  # the same training of every seed
        rows.append(_row_of_seeds(run, which, asked.weights, stages, arch.key))
    table, seed = run.folder / "retrained.json", run.recipe().seed
    old = stored.read(table).get("rows", [])
    for new in rows:  # one that was there already keeps its time
        new["seconds"] = new["seconds"] or next((r["seconds"] for r in old if _same(new, r, seed)), 0)
    rows = [row for row in old if not any(_replaces(new, row, seed) for new in rows)] + rows
    save_model(run, load_supernet(done[0][-1].run.supernet_file), model)
    files.write_object(table, {"rows": rows})
    return Retrained(model, rows)


def check_start(run: Run, arch: Arch, asked: Retraining) -> None:
    """Refuse a network to begin with (``start.network``) that is not the one which is trained, at whatever size."""
    if (given := asked.start.get("network")) is None:
        return
    found = load_network(given).net.space.smallest()
    wanted = _at(arch, asked.img_size)
    same = found.family == wanted.family and _at(found, wanted.resolution) == wanted
    if not same:
        what = f"start.network={given} holds {found.key} ({found.family}, {found.resolution} pixels)"
        raise SuperformerError(
            f"{what}, which is not {arch.key} at another size: name that one with --arch, or its run"
        )


def _at(arch: Arch, size: int | None) -> Arch:
    """The architecture for pictures of another size."""
    return arch if size in (None, arch.resolution) else family(arch.family).rescaled(arch, size)


def _last(run: Run, arch: Arch, asked: Retraining, size: int | None = None) -> Run:
    """Where the training ends, at the size that is asked for, or has been at another."""
    mark = f"-seed{asked.seed}" if asked.seed != run.recipe().seed else ""
    mark += f"-{hashlib.sha256(repr(sorted(asked.start.items())).encode()).hexdigest()[:8]}" if asked.start else ""
    return Run(run.folder / "retrained" / f"{_at(arch, size or asked.img_size).key}-{asked.weights}{mark}")


def _recipe(run: Run, arch: Arch, asked: Retraining, *, first: bool = False) -> Recipe:
    """The settings of the training that is asked for, or of the one at the network's own size before it."""
    macs = float(cost(run.space(), [arch], num_classes=len(run.facts()["classes"])).macs[0])
    wanted = arch if first else _at(arch, asked.img_size)
    words = [*(asked.first() if first else asked.changes), f"seed={asked.seed}"]
    larger = wanted.resolution > arch.resolution
    return retrain_recipe(run.recipe(), wanted, asked, words, macs, f"{run.folder} retrained", larger)


def _stages(run: Run, arch: Arch, asked: Retraining, inherited: Path) -> list[_Stage]:
    """The trainings with one seed: at the network's own size and then, if they are larger, with the pictures that are
    asked for. What is there already is used, what is half done goes on."""
    wanted, last, stages = _at(arch, asked.img_size), _last(run, arch, asked), list[_Stage]()
    earlier = last.recipe_file.exists() and last.earlier_version
    start: Path | Run | None = None
    origin = ""
    if asked.weights == "finetuned":
        start, origin = inherited, "inherited"
    if asked.start:
        start, origin = None, " ".join(str(value) for value in asked.start.values())

    if wanted.resolution > arch.resolution and not asked.start and not earlier:  # earlier, inherited weights were tuned
        first = _last(run, arch, asked, arch.resolution)
        own = first.recipe() if first.recipe_file.exists() else _recipe(run, arch, asked, first=True)  # whatever words
        stages.append(_Stage(first, own, arch, asked.seed, start, origin))
        start, origin = first, f"{asked.weights}, {arch.resolution} pixels"
    own = _recipe(run, arch, asked)
    if earlier:  # it keeps its settings; words must not change them
        own = from_tree(last.recipe().model_dump(mode="json"), f"{run.folder} retrained", asked.changes)
    return [*stages, _Stage(last, own, wanted, asked.seed, start, origin)]


def _share(each: list[list[_Stage]], left: float, judging: float) -> list[list[_Stage]]:
    """The trainings, with the time that each has: those that were begun what they were given, the others shares of what
    is ``left`` without ``judging`` each network at the end."""
    stages = [stage for own in each for stage in own]
    known = {id(s): s.run.facts().get("time", {}).get("minutes") for s in stages if s.run.recipe_file.exists()}
    left -= 60 * sum(minutes for minutes in known.values() if minutes is not None) + judging * len(stages)
    new = sum(s.weight for s in stages if id(s) not in known)
    if new and left <= 0:
        begun = f"{len(known)} of {len(stages)} trainings were begun"
        short = f"the time is too short: {begun}, and nothing is left for the others; give more minutes"
        raise TooShortError(short, (judging * len(stages) - left) / 60)

    def timed(stage: _Stage) -> _Stage:
        return replace(stage, minutes=known.get(id(stage), left * stage.weight / max(new, 1e-9) / 60))

    return [list(map(timed, own)) for own in each]


def _trained(run: Run, stage: _Stage, console: Console | None) -> _Stage:
    begun, there = time.monotonic(), stage.run.supernet_file.exists()
    tell = teller(quiet(console if World.join().first else None))
    tell(f"{stage.arch.key}, {stage.arch.resolution} pixels, seed {stage.seed}, from {stage.origin or 'new weights'}")
    train_network(run, stage.recipe, stage.run.folder, stage.start, console, stage.minutes)
    return replace(stage, seconds=0.0 if there else time.monotonic() - begun)


def _row_of_seeds(run: Run, name: str, weights: str, stages: Sequence[_Stage], of: str) -> dict[str, Any]:
    """A row of the table: of several seeds the means, with the deviation of the accuracy."""
    rows = [
        table_row(run, load_supernet(s.run.supernet_file), name, weights, s.run.recipe().train.epochs, s.seconds)
        for s in stages
    ]
    row = {**rows[0], "from": stages[0].origin, "of": of, "seeds": [stage.seed for stage in stages]}
    if len(rows) > 1:
        found = [float(r["accuracy"]) for r in rows]
        row |= {"accuracy": statistics.mean(found), "deviation": statistics.stdev(found), "accuracies": found}
        row["seconds"] = round(sum(r["seconds"] for r in rows), 1)
    return row


def _same(new: dict[str, Any], old: dict[str, Any], seed: int) -> bool:
    """Whether both rows are of the same trainings."""
    return _replaces(new, old, seed) and _replaces(old, new, seed)


def _replaces(new: dict[str, Any], old: dict[str, Any], seed: int) -> bool:
    """Whether a row takes the place of an older one: the same network and way, with its seeds among the new ones."""
    same = all(new[k] == old[k] for k in ("key", "weights"))
    return same and {*old.get("seeds", [seed])} <= {*new.get("seeds", [seed])}


def table_row(
    run: Run, net: Network, name: str, weights: str, epochs: float = 0, seconds: float = 0, **more: Any
) -> dict[str, Any]:
    """What a network costs, and its accuracy on the test pictures."""
    arch = net.space.smallest()
    opened = TrainedRun.of(run, net, arch.resolution)
    pictures = opened.pictures.test()
    accuracy = opened.evaluator(pictures)([arch])[0]
    counted = cost(net.space, [arch], num_classes=net.num_classes)
    return {
        "name": name, "key": arch.key, "weights": weights, "accuracy": accuracy, "macs": int(counted.macs[0]),
        "params": int(counted.params[0]), "epochs": epochs, "seconds": round(seconds, 1), "img_size": arch.resolution,
        "pictures": len(pictures), **more,
    }  # fmt: skip


def write_inherited(run: Run, arch: Arch, folder: Path) -> Path:
    """The folder of a sub-network with its inherited weights, written now if there is none."""
    world = World.join()
    if world.first and not (folder / CONFIG).exists():
        save_model(run, TrainedRun.of(run).network(arch), folder)
    world.wait()
    return folder


def train_network(
    run: Run, recipe: Recipe, home: Path, start: Path | Run | None, console: Console | None = None,
    minutes: float | None = None,
) -> Run:  # fmt: skip
    """Train the network of a recipe (`superformer.recipes`) in ``home``, from the weights of the network in
    ``start`` if there is one: its folder, or the run that trained it, which also has heads that only training needs.
    Killed, the same call goes on."""
    own, changes = Run(home), dict[str, Any]()
    if start is not None:
        begun = own.recipe_file.exists()  # the same words, even if the run was moved since
        given = {"run": str(start.folder)} if isinstance(start, Run) else {"network": str(start)}
        changes["start"] = own.recipe().start if begun else recipe.start.model_copy(update=given)
    changed = without_dead_words(run, recipe).model_copy(update=changes)
    return train(changed, run.facts()["data"], home, console=console, minutes=minutes)


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


def save_model(run: Run, net: Network, folder: Path) -> None:
    """Write a network with what its user must know of the run: classes, and how pictures are prepared."""
    settings = run.recipe().data
    save_network(net, folder, run.facts()["classes"], settings.mean, settings.std, **_prepared(run, net))


def _prepared(run: Run, net: Network) -> dict[str, Any]:
    """How pictures are cut: those that are not larger than the input lose no border (`superformer.data.augment`)."""
    settings, size = run.recipe().data, net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], settings, size)
    small = min(pictures.train.picture(0).shape[:2]) <= size
    return {"crop": 1.0 if small else settings.crop, "interpolation": settings.interpolation}
