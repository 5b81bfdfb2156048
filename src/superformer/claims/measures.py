"""What one arm of a claim gives with one seed: a run like any other, and numbers read from it.

A supernet that several arms need is trained once: its folder is named after all that it depends on."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from superformer import data, files
from superformer.analysis.attention import attention_distances
from superformer.analysis.correlation import against_macs, coefficients
from superformer.analysis.settings import Settings
from superformer.analysis.subject import Subject, standalone, trained_alone
from superformer.claims.declaration import Claim
from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.evaluation.evaluator import TrainedRun
from superformer.recipes import Recipe, from_tree, resolve, space_of
from superformer.runs import Run
from superformer.search import search
from superformer.search.space_evolution import evolve_space
from superformer.settings import read_key_value
from superformer.space import point
from superformer.space.arch import Arch
from superformer.spaces import model
from superformer.train.loop import train
from superformer.train.retrain import retrain
from superformer.train.time_budget import with_epochs

RANDOM, RANKED = 16, 24
"""Networks whose median tells how good a supernet's are; networks that are trained alone to compare ranks."""
LATE = 0.8
"""The share of a training after which it is late."""
ALIKE, NEARLY, COMPARED, TUNED, LOOKED_AT = 3, 0.95, 10, 0.2, 64
"""Random networks that stand for all, and the least share of the limit that they cost; networks that are trained
alone, from inherited weights for this share of the supernet's epochs; pictures whose attention is measured."""
MIDDLE, TIMED, FIRST, SPREAD = 0.5, 24, 10, 6
"""Where between the smallest and the largest network's cost the limit of a search lies; random networks of which those
that take as long as the found one are taken; the best found ones that are looked at; networks whose spread is told."""
GROUPED = Settings(architectures=96, groups=8)
"""Networks over ranges of MACs of equal width (the paper has 2,000 in 8)."""
AGAIN = "delete it: it is made again"
Values = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One arm with one seed. ``epochs``: of its trainings, None: the recipe's. A warm-up has at most a third."""

    claim: Claim
    words: tuple[str, ...]
    seed: int
    data: str
    home: Path
    epochs: float | None = None
    console: Console | None = None

    @property
    def recipe(self) -> Recipe:
        own = () if self.claim.of_one_supernet else self.words
        whole = resolve(self.claim.recipe, [*self.claim.common, *own, f"seed={self.seed}"])
        if self.epochs is None:
            return whole
        return with_epochs(whole, self.epochs, min(whole.optimizer.warmup_epochs, self.epochs / 3))

    def folder(self, kind: str, recipe: Recipe) -> Path:
        """Named after all that is trained there."""
        text = json.dumps([self.data, recipe.model_dump(mode="json")], sort_keys=True)
        return self.home / kind / f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def trained(self) -> Run:
        """Its supernet."""
        own = self.recipe
        return train(own, self.data, self.folder("supernets", own), console=self.console)


def measured(arm: Arm, others: Callable[[str], Run]) -> Values:
    """The numbers of an arm. ``others``: the supernet of another arm with the same seed."""
    other = {"alone": _alone, "et_error": _evolved, "best_error": _evolved}
    return other.get(arm.claim.measure, _supernet)(arm, others)


def _supernet(arm: Arm, others: Callable[[str], Run]) -> Values:
    run = arm.trained()
    values = _health(run) | _accuracies(run)
    if arm.claim.measure == "found":
        values["found"] = _found(run, arm.claim.search, arm.seed, arm.console)
    elif arm.claim.measure == "searched":
        values["searched"] = _searched(run, [*arm.claim.search, *arm.words, f"seed={arm.seed}"], arm.console)
    elif arm.claim.measure == "chosen":
        values["chosen"] = _chosen(run, arm)
    elif arm.claim.measure == "spread":
        values |= _spread(run, arm)
    elif arm.claim.measure == "ratio":
        values["ratio"] = _ratio(run, arm)
    elif arm.claim.measure == "weights":
        values["weights"] = _weighed(run, dict(map(read_key_value, arm.words))["weights"], arm.seed)
    elif arm.claim.measure == "distance":
        values["distance"] = _distance(run, dict(map(read_key_value, arm.words))["blocks"])
    elif arm.claim.measure == "kendall":
        values |= _ranks(run, others(arm.claim.order[0]), arm.seed)
    elif arm.claim.measure == "kendall_macs":
        values |= _ranks_of_macs(run, arm.seed)
    return values


def _health(run: Run) -> Values:
    """The mean loss late in training, and how often gradients conflicted."""
    rows = run.metrics()
    steps = [r for r in rows if r["kind"] == "step"]
    late = [r["loss"] for r in steps if r["step"] > LATE * steps[-1]["step"]]
    values = {"late_loss": statistics.fmean(late)}
    if conflicts := [r["ratio"] for r in rows if r["kind"] == "conflict"]:
        values["conflict"] = statistics.fmean(conflicts)
    return values


def _accuracies(run: Run) -> Values:
    """Of the smallest, the largest and random networks with inherited weights, on the test pictures; known, if another
    claim has asked."""
    known = run.folder / "judged.json"
    if known.exists():
        return {name: float(value) for name, value in files.read_object(known, AGAIN).items()}
    trained = TrainedRun.of(run)
    space = trained.space
    archs = [space.smallest(), space.largest(), *space.sample(RANDOM, seed=0)]
    smallest, largest, *others = trained.evaluator(trained.pictures.test())(archs)
    found = {"smallest": smallest, "largest": largest, "median": statistics.median(others)}
    files.write_object(known, found)
    return found


def _limits(run: Run, kind: str) -> dict[str, tuple[float, float]]:
    """Half-way between what the smallest and the largest network cost."""
    space, classes = run.space(), len(run.facts()["classes"])
    ends = [space.smallest(), space.largest()]
    if kind == "latency":
        low, high = _times(ends, classes)
    else:
        low, high = (float(m) for m in cost(space, ends, classes).macs)
    return {kind: (0.0, low + MIDDLE * (high - low))}


def _times(archs: Sequence[Arch], classes: int) -> list[float]:
    """Seconds for a picture, one thread, measured in turn."""
    return [timing.median for timing in measure_in_turn([model(arch, classes).eval() for arch in archs])]


def _best(run: Run, words: Sequence[str], console: Console | None, kind: str = "macs") -> str:
    """The key of what a search finds within the limit; ``method=NAME`` among the words is another method."""
    changes = dict(map(read_key_value, words))
    known = run.folder / f"limit-{kind}.json"  # times are never measured twice alike
    tree: dict[str, Any] = files.read_object(known, AGAIN) if known.exists() else {"limits": _limits(run, kind)}
    asked = "of " + " ".join(words)
    if kind == "macs" or asked not in tree:
        files.write_object(known, tree)
        limits = {name: (float(low), float(high)) for name, (low, high) in tree["limits"].items()}
        tree[asked] = str(search(run.folder, limits, changes.pop("method", None), changes, console)["best"])
        files.write_object(known, tree)
    return str(tree[asked])


def _found(run: Run, words: Sequence[str], seed: int, console: Console | None) -> float:
    """The best network within the limit, retrained; test accuracy."""
    best = _best(run, [*words, f"seed={seed}"], console)
    return float(retrain(run.folder, best, console=console).rows[-1]["accuracy"])


def _searched(run: Run, words: Sequence[str], console: Console | None) -> float:
    """The best network within the limit, with inherited weights; test accuracy."""
    best, trained = run.arch(_best(run, words, console)), TrainedRun.of(run)
    return trained.evaluator(trained.pictures.test())([best])[0]


def _chosen(run: Run, arm: Arm) -> float:
    """A network within the limit, retrained from new weights; test accuracy. ``which=found``: what the search finds,
    ``baseline``: the largest one scaled to the limit, ``random``: the mean of some that cost almost as much as the
    found one, so that all arms have its MACs, or take as long."""
    which = dict(map(read_key_value, arm.words))["which"]
    best = run.arch(_best(run, [*arm.claim.search, f"seed={arm.seed}"], arm.console, arm.claim.limit))
    if which == "random":
        archs = _like(run, best, arm.claim.limit, arm.seed)
    else:
        archs = [best if which == "found" else run.arch("baseline")]
    files.make_folder(run.folder / "chosen")
    rows = []
    for arch in archs:
        named = run.folder / "chosen" / f"{arch.key}.json"
        files.write(named, arch.to_json())
        rows.append(retrain(run.folder, str(named), "weights=scratch", console=arm.console).rows[-1]["accuracy"])
    return statistics.fmean(rows)


def _like(run: Run, best: Arch, kind: str, seed: int) -> list[Arch]:
    """Random networks that cost as much, kept in a file as times are never measured twice alike."""
    known = run.folder / f"like-{kind}-{best.key}-{seed}.json"
    if known.exists():
        return [Arch.from_json(json.dumps(tree)) for tree in files.read_object(known, AGAIN)["archs"]]
    space, classes = run.space(), len(run.facts()["classes"])
    if kind == "latency":
        archs = space.sample(TIMED, seed=seed)
        most, *times = _times([best, *archs], classes)
        archs = [archs[k] for k in sorted(range(TIMED), key=lambda k: abs(times[k] - most))[:ALIKE]]
    else:
        most = float(cost(space, [best], classes).macs[0])
        archs = space.sample(ALIKE, seed=seed, macs=(NEARLY * most, most))
    files.write_object(known, {"archs": [json.loads(arch.to_json()) for arch in archs]})
    return archs


def _ratio(run: Run, arm: Arm) -> float:
    """The mean ratio of hidden units to the width of tokens, in the first or the last third of the blocks of the best
    networks that a search finds, against that of all networks of the space."""
    words = dict(map(read_key_value, arm.words))
    _best(run, [*arm.claim.search, f"seed={arm.seed}"], arm.console)
    rows = run.front()["front"][:FIRST]

    def mean(archs: Sequence[Arch]) -> float:
        found = []
        for arch in archs:
            own = [
                float(block["mlp"]) / float(stage.choices["width"]) for stage in arch.stages for block in stage.blocks
            ]
            third = max(len(own) // 3, 1)
            found.append(statistics.fmean(own[:third] if words["blocks"] == "first" else own[-third:]))
        return statistics.fmean(found)

    return mean([Arch.from_json(json.dumps(row["arch"])) for row in rows]) / mean(run.space().sample(200, seed=0))


def _spread(run: Run, arm: Arm) -> Values:
    """How far networks of one budget, each trained by itself, are apart on the test pictures (their standard deviation
    and range), or trainings of one of them that differ in their seed."""
    most = float(_limits(run, "macs")["macs"][1])
    archs = run.space().sample(SPREAD, seed=arm.seed, macs=(NEARLY * most, most))
    one = dict(map(read_key_value, arm.words))["networks"] == 1
    pairs = [(archs[0], 100 + k) for k in range(SPREAD)] if one else [(arch, None) for arch in archs]
    found = []
    for arch, seed in pairs:
        trained = TrainedRun.of(trained_alone(run, arch, "scratch", run.recipe().train.epochs, seed))
        found += trained.evaluator(trained.pictures.test())([trained.space.smallest()])
    return {"spread": statistics.stdev(found), "least": min(found), "most": max(found)}


def _weighed(run: Run, weights: str, seed: int) -> float:
    """Random networks with inherited weights, tuned for a while, or new and trained as long as the supernet: the mean
    accuracy on the search split (S3, figure 5)."""
    archs = run.space().sample(COMPARED, seed=seed)
    if weights == "inherited":
        return statistics.fmean(TrainedRun.of(run).evaluator()(archs))
    epochs = run.recipe().train.epochs * (1.0 if weights == "scratch" else TUNED)
    return statistics.fmean(standalone(run, arch, cast(Any, weights), epochs) for arch in archs)


def _distance(run: Run, blocks: str) -> float:
    """How far, in pixels, the first or the last third of the largest network's blocks look (S3, figure 4)."""
    trained = TrainedRun.of(run)
    recipe, size = run.recipe(), run.facts()["img_size"]
    batches = [x for x, _ in data.eval_batches(trained.pictures.search, recipe.data, size, 32, LOOKED_AT)]
    rows = attention_distances(trained.net, batches, trained.space.largest())
    third = max(len(rows) // 3, 1)
    return statistics.fmean(row["top5"] for row in (rows[:third] if blocks == "first" else rows[-third:]))


def _ranks(run: Run, reference: Run, seed: int) -> Values:
    """How the supernet ranks networks, against their accuracy after a training alone (the same for all arms)."""
    archs = run.space().sample(RANKED, seed=seed)
    trained = TrainedRun.of(run)
    inside = trained.evaluator()(archs)
    alone = [standalone(reference, arch, "scratch", reference.recipe().train.epochs) for arch in archs]
    return {name: value for name, value in coefficients(inside, alone).items() if value is not None}


def _ranks_of_macs(run: Run, seed: int) -> Values:
    """Accuracy in the supernet against MACs: over all networks, and the mean over ranges of MACs (figure 5)."""
    found = against_macs(Subject.open(run.folder), GROUPED.model_copy(update={"seed": seed}))
    inside = [g["kendall"] for g in found["groups"] if g["kendall"] is not None]
    values = {f"{name}_macs": found[name] for name in ("pearson", "spearman", "kendall") if found[name] is not None}
    return values | ({"kendall_in_ranges": statistics.fmean(inside)} if inside else {})


def _alone(arm: Arm, others: Callable[[str], Run]) -> Values:
    """The largest network of the arm's space, trained by itself; test accuracy."""
    whole = arm.recipe
    tree: dict[str, Any] = whole.model_dump(mode="json")
    tree |= {"space": json.loads(point(space_of(whole).largest()).to_json()), "narrow": {}}
    tree["sampling"] = {"rule": "single"}
    own = from_tree(tree, whole.name, [])
    run = train(own, arm.data, arm.folder("alone", own), console=arm.console)
    trained = TrainedRun.of(run)
    (accuracy,) = trained.evaluator(trained.pictures.test())([trained.space.smallest()])
    return {"alone": accuracy, **_health(run)}


def _evolved(arm: Arm, others: Callable[[str], Run]) -> Values:
    """The E-T error of the arm's last space, and the best network that was seen in it."""
    own = arm.recipe
    found = evolve_space(own, arm.data, arm.folder("evolved", own), console=arm.console)
    last = found["spaces"][-1]
    return {"et_error": float(last["et_error"]), "best_error": float(last["best"])}
