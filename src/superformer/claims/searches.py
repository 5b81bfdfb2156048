"""What a claim finds by searching, each search in a folder of its own within the supernet's run: a search keeps to the
candidates of its own history (`superformer.search.front` takes the best of all that a history knows), and what another
one finds later does not replace it."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superformer import files
from superformer.claims.arms import ALIKE, Arm
from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun
from superformer.runs import SUPERNET, Run, stored
from superformer.search import search
from superformer.settings import read_key_value
from superformer.space.arch import Arch
from superformer.spaces import model
from superformer.train.retrain import retrain

NEARLY, TIMED, FIRST, DRAWN = 0.95, 24, 10, 200
"""Of random networks that stand for all of a budget: the least share of it that they cost, and how many are timed to
take those that take as long; the best found ones that are looked at, and how many random ones beside them."""
AGAIN = "delete it: it is made again"


@dataclass(frozen=True)
class Found:
    """What a search found within its limit: the best, the front from the most accurate down, and what one would draw
    by hand (the largest network, scaled to the limit)."""

    best: Arch
    front: list[Arch]
    baseline: Arch | None


def found_by(run: Run, arm: Arm, words: Sequence[str] = ()) -> Found:
    """What the search of a claim finds with these words more, once; ``method=NAME`` among them is another method."""
    claim, words = arm.claim, [*arm.claim.search, *words, f"seed={arm.seed}"]
    told = f"{claim.limit} {claim.place:g} {' '.join(words)}"
    folder = run.folder / "searches" / hashlib.sha256(told.encode()).hexdigest()[:12]
    known = folder / "found.json"
    if not known.exists():
        changes, limits = dict(map(read_key_value, words)), limit_of(run, claim.limit, claim.place)
        copy_run(run, folder)
        found = search(folder, limits, changes.pop("method", None), changes, arm.console)
        best = next((row for row in found["front"] if row["key"] == found["best"]), None)
        if best is None:
            raise SuperformerError(f"{folder}: the search ({told}) found nothing within its limit {limits}")
        front, by_hand = [row["arch"] for row in found["front"][:FIRST]], found["baseline"]
        kept = {"best": best["arch"], "front": front, "baseline": by_hand and by_hand["arch"]}
        files.write_object(known, {"words": told, **kept})
    tree = files.read_object(known, AGAIN)
    baseline = None if tree["baseline"] is None else _arch(tree["baseline"])
    return Found(_arch(tree["best"]), [_arch(own) for own in tree["front"]], baseline)


def _arch(tree: Any) -> Arch:
    return Arch.from_json(json.dumps(tree))


def copy_run(run: Run, folder: Path) -> None:
    """A trained run without what was found or judged in it; its weights are the same file, where the disk allows it."""
    files.make_folder(folder)
    weights = folder / SUPERNET
    if not weights.exists():
        try:
            os.link(run.supernet_file, weights)
        except OSError:
            files.write(weights, run.supernet_file.read_bytes())
    for name in (stored.SPACE, stored.FACTS, stored.RECIPE):
        files.write(folder / name, (run.folder / name).read_bytes())


def limit_of(run: Run, kind: str, place: float) -> dict[str, tuple[float, float]]:
    """Between what the smallest and the largest network cost; kept, as times are never measured twice alike."""
    known = run.folder / f"limit-{kind}-{place:g}.json"
    if not known.exists():
        space, classes = run.space(), len(run.facts()["classes"])
        ends = [space.smallest(), space.largest()]
        low, high = _times(ends, classes) if kind == "latency" else map(float, cost(space, ends, classes).macs)
        files.write_object(known, {"most": low + place * (high - low)})
    return {kind: (0.0, float(files.read_object(known, AGAIN)["most"]))}


def _times(archs: Sequence[Arch], classes: int) -> list[float]:
    """Seconds for a picture, one thread, measured in turn."""
    return [timing.median for timing in measure_in_turn([model(arch, classes).eval() for arch in archs])]


def retrained_accuracy(run: Run, arch: Arch, arm: Arm) -> float:
    """Of a network that is trained from new weights, for as many epochs as the supernet; on the test pictures."""
    files.make_folder(run.folder / "chosen")
    named = run.folder / "chosen" / f"{arch.key}.json"
    files.write(named, arch.to_json())
    words = ["weights=scratch", f"train.epochs={run.recipe().train.epochs!r}", *arm.claim.retrain]
    return float(retrain(run.folder, str(named), *words, console=arm.console).rows[-1]["accuracy"])


def found_accuracy(run: Run, arm: Arm) -> float:
    """The best network within the limit, retrained."""
    return retrained_accuracy(run, found_by(run, arm).best, arm)


def searched_accuracy(run: Run, arm: Arm) -> float:
    """The best network within the limit, with inherited weights; test accuracy."""
    best, trained = found_by(run, arm, arm.claim.arms[arm.name]).best, TrainedRun.of(run)
    return trained.evaluator(trained.pictures.test())([best])[0]


def chosen_accuracy(run: Run, arm: Arm) -> float:
    """A network within the limit, retrained. ``which=found``: what the search finds, ``baseline``: the largest one
    scaled to the limit, ``random``: the mean of some that cost almost as much as the found one, so that all arms have
    its MACs, or take as long."""
    found, which = found_by(run, arm), arm.asked["which"]
    if which == "random":
        return statistics.fmean(retrained_accuracy(run, arch, arm) for arch in _like(run, found.best, arm))
    arch = found.best if which == "found" else found.baseline
    if arch is None:
        raise SuperformerError(f"{run.folder}: no network scaled by hand lies within the limit of {arm.claim.title!r}")
    return retrained_accuracy(run, arch, arm)


def _like(run: Run, best: Arch, arm: Arm) -> list[Arch]:
    """Random networks that cost as much, kept in a file as times are never measured twice alike."""
    kind, seed = arm.claim.limit, arm.seed
    known = run.folder / f"like-{kind}-{best.key}-{seed}.json"
    if known.exists():
        return [_arch(tree) for tree in files.read_object(known, AGAIN)["archs"]]
    space, classes = run.space(), len(run.facts()["classes"])
    if kind == "latency":
        archs = space.sample(TIMED, seed=seed)
        most, *times = _times([best, *archs], classes)
        archs = [archs[k] for k in sorted(range(TIMED), key=lambda k: abs(times[k] - most))[:ALIKE]]
    else:
        most = float(cost(space, [best], classes).macs[0])
        archs = space.sample(ALIKE, seed=seed, macs=(NEARLY * most, most), num_classes=classes)
    files.write_object(known, {"archs": [json.loads(arch.to_json()) for arch in archs]})
    return archs


def mlp_ratio(run: Run, arm: Arm) -> float:
    """The mean ratio of hidden units to the width of tokens, in the first or the last third of the blocks of the best
    networks that a search finds, against that of random networks within the same limit."""
    best, classes = found_by(run, arm).front, len(run.facts()["classes"])
    most = limit_of(run, "macs", arm.claim.place)["macs"]

    def mean(archs: Sequence[Arch]) -> float:
        found = []
        for arch in archs:
            own = [float(b["mlp"]) / float(stage.choices["width"]) for stage in arch.stages for b in stage.blocks]
            third = max(len(own) // 3, 1)
            found.append(statistics.fmean(own[:third] if arm.asked["blocks"] == "first" else own[-third:]))
        return statistics.fmean(found)

    return mean(best) / mean(run.space().sample(DRAWN, seed=0, macs=most, num_classes=classes))
