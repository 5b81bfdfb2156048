"""What one arm of a claim gives with one seed: a run like any other, and numbers read from it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any, cast

from superformer import data, files
from superformer.analysis.attention import attention_distances
from superformer.analysis.correlation import against_macs, coefficients
from superformer.analysis.settings import Settings
from superformer.analysis.subject import Subject, standalone, trained_alone
from superformer.claims.arms import COMPARED, RANKED, SPREAD, TUNED, Arm
from superformer.claims.searches import (
    AGAIN,
    NEARLY,
    chosen_accuracy,
    found_accuracy,
    limit_of,
    mlp_ratio,
    searched_accuracy,
)
from superformer.cost import cost
from superformer.evaluation.evaluator import TrainedRun
from superformer.recipes import from_tree, space_of
from superformer.runs import Run
from superformer.search.space_evolution import et_error, evolve_space
from superformer.space import point
from superformer.train.loop import train

RANDOM, LOOKED_AT = 16, 64
"""Networks whose median tells how good a supernet's are; pictures whose attention is measured."""
EARLY, LATE = 20 / 300, 0.8
"""The share of a training that is early (ViTAS v2, section 6.4: 20 epochs of 300), and that after which it is late."""
ENDS = 0.2
"""The first and the last share of a training whose conflicts are told (NASViT, table 4)."""
GROUPED = Settings(architectures=400, groups=8)
"""Networks over ranges of MACs of equal width (the paper has 2,000 in 8)."""
DRAWN, TOP, USED = 100, 10, 0.8
"""Networks that tell the E-T error of a space, and the best of them for its top-tier error (the paper: 1,000, 50); the
least share of the limit on MACs that they cost, lest spaces win by being larger."""
Values = dict[str, float]


def measured(arm: Arm) -> Values:
    """The numbers of an arm."""
    other = {"alone": _alone, "et_error": _evolved, "best_error": _evolved}
    return other.get(arm.claim.measure, _supernet)(arm)


def _supernet(arm: Arm) -> Values:
    run = arm.trained()
    values, measure = _health(run) | _accuracies(run), arm.claim.measure
    single: dict[str, Callable[[Run, Arm], float]] = {
        "found": found_accuracy, "searched": searched_accuracy, "chosen": chosen_accuracy, "ratio": mlp_ratio,
        "weights": _weighed, "distance": _distance,
    }  # fmt: skip
    several: dict[str, Callable[[Run, Arm], Values]] = {
        "spread": _spread, "kendall": _ranks, "kendall_macs": _ranks_of_macs, "kendall_in_ranges": _ranks_of_macs,
    }  # fmt: skip
    if measure in single:
        values[measure] = single[measure](run, arm)
    return values | (several[measure](run, arm) if measure in several else {})


def _health(run: Run) -> Values:
    """The mean loss early and late in training; how often gradients conflicted, first, last and in the mean."""
    rows = run.metrics()
    steps = [r for r in rows if r["kind"] == "step"]
    last = steps[-1]["step"]
    early = [r["loss"] for r in steps if r["step"] <= EARLY * last] or [steps[0]["loss"]]
    late = [r["loss"] for r in steps if r["step"] > LATE * last]
    values = {"early_loss": statistics.fmean(early), "late_loss": statistics.fmean(late)}
    conflicts = [(r["step"] / last, r["ratio"]) for r in rows if r["kind"] == "conflict"]
    parts = {"conflict": (0.0, 1.0), "first_conflict": (0.0, ENDS), "last_conflict": (1 - ENDS, 1.0)}
    for name, (begin, end) in parts.items():
        if found := [ratio for place, ratio in conflicts if begin <= place <= end]:
            values[name] = statistics.fmean(found)
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


def _spread(run: Run, arm: Arm) -> Values:
    """How far networks of one budget, each trained by itself, are apart on the test pictures (their standard deviation
    and range), or trainings of one of them that differ in their seed."""
    most, classes = limit_of(run, "macs", arm.claim.place)["macs"][1], len(run.facts()["classes"])
    archs = run.space().sample(SPREAD, seed=arm.seed, macs=(NEARLY * most, most), num_classes=classes)
    one = arm.asked["networks"] == 1
    pairs = [(archs[0], 100 + k) for k in range(SPREAD)] if one else [(arch, None) for arch in archs]
    found = []
    for arch, seed in pairs:
        trained = TrainedRun.of(trained_alone(run, arch, "scratch", run.recipe().train.epochs, seed))
        found += trained.evaluator(trained.pictures.test())([trained.space.smallest()])
    return {"spread": statistics.stdev(found), "least": min(found), "most": max(found)}


def _weighed(run: Run, arm: Arm) -> float:
    """Random networks with inherited weights, tuned for a while, or new and trained as long as the supernet: the mean
    accuracy on the search split (S3, figure 5)."""
    archs, weights = run.space().sample(COMPARED, seed=arm.seed), arm.asked["weights"]
    if weights == "inherited":
        return statistics.fmean(TrainedRun.of(run).evaluator()(archs))
    epochs = run.recipe().train.epochs * (1.0 if weights == "scratch" else TUNED)
    return statistics.fmean(standalone(run, arch, cast(Any, weights), epochs) for arch in archs)


def _distance(run: Run, arm: Arm) -> float:
    """How far, in pixels, the first or the last third of the largest network's blocks look (S3, figure 4)."""
    trained = TrainedRun.of(run)
    recipe, size = run.recipe(), run.facts()["img_size"]
    batches = [x for x, _ in data.eval_batches(trained.pictures.search, recipe.data, size, 32, LOOKED_AT)]
    rows = attention_distances(trained.net, batches, trained.space.largest())
    third = max(len(rows) // 3, 1)
    return statistics.fmean(row["top5"] for row in (rows[:third] if arm.asked["blocks"] == "first" else rows[-third:]))


def _ranks(run: Run, arm: Arm) -> Values:
    """How the supernet ranks networks, against their accuracy after a training alone: the same networks for all arms
    and seeds."""
    reference = arm.reference.trained()
    archs = run.space().sample(RANKED, seed=0)
    inside = TrainedRun.of(run).evaluator()(archs)
    alone = [standalone(reference, arch, "scratch", reference.recipe().train.epochs) for arch in archs]
    return {name: value for name, value in coefficients(inside, alone).items() if value is not None}


def _ranks_of_macs(run: Run, arm: Arm) -> Values:
    """Accuracy in the supernet against MACs: over all networks, and the mean over ranges of MACs (figure 5)."""
    found = against_macs(Subject.open(run.folder), GROUPED.model_copy(update={"seed": arm.seed}))
    inside = [g["kendall"] for g in found["groups"] if g["kendall"] is not None]
    values = {f"{name}_macs": found[name] for name in ("pearson", "spearman", "kendall") if found[name] is not None}
    return values | ({"kendall_in_ranges": statistics.fmean(inside)} if inside else {})


def _alone(arm: Arm) -> Values:
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


def _evolved(arm: Arm) -> Values:
    """The E-T error of a space of an evolution (``evolved=0`` is the first one), and its best network: of random ones
    that use the limit up, with inherited weights, on the search split; in percent."""
    own, number = arm.recipe, int(arm.asked["evolved"])
    folder = arm.folder("evolved", own)
    evolve_space(own, arm.data, folder, console=arm.console)
    run = Run.open(folder if number == own.evolve.rounds else folder / "spaces" / str(number))
    trained = TrainedRun.of(run)
    space, classes = trained.space, trained.net.num_classes
    largest = float(cost(space, [space.largest()], classes).macs[0])
    most = min(own.evolve.macs_max or largest, largest)
    archs = space.sample(DRAWN, seed=arm.seed, macs=(USED * most, most), num_classes=classes)
    errors = [100 * (1 - accuracy) for accuracy in trained.evaluator()(archs)]
    return {"et_error": et_error(errors, TOP), "best_error": min(errors), "expected_error": statistics.fmean(errors)}
