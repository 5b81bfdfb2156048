"""Few pictures first: candidates are judged on some pictures of the search split, and on more the better they are.

A race in a round. All of its candidates see the same pictures, in the same order: first those about which a fixed panel
of networks disagrees most (what all get right, or wrong, tells no candidate from another). After each part of the
pictures, what a candidate gets right of the others is predicted from those that saw all of them, by a line through
their numbers; how far these lie from it is the standard error. A candidate goes on if it could matter (reach the front,
the finalists or what the method looks at next, `superformer.search.scores.needed`) within so many standard errors of a
difference of two. What goes on to the end has seen all pictures: parents, survivors, the front and the best are never
estimates. The first candidates of a search all go to the end, to predict from.

What a part told is kept in the history like everything else, under those pictures: as a part of the split it is another
subject, which nobody takes for the whole, older versions neither. A search that was killed finds the same parts again,
and so decides the same."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from superformer.data.stores import digest
from superformer.evaluation.evaluator import TOGETHER, Score, TrainedRun, needs_recalibration
from superformer.recipes.searching import Options
from superformer.runs.processes import World
from superformer.search.history import Evaluation, History
from superformer.search.problem import Floats, Ints
from superformer.search.scores import Scorer, split_name
from superformer.space.arch import Arch

ENOUGH = 2000
"""Pictures from which on a race is worth it, unless a user says otherwise."""
PANEL, PILOTS, SHRUNK = 8, 12, 8
"""Networks of the panel; candidates that always see all pictures; for how many of them the slope of the line is taken
to be 0 beforehand."""
RACED = 16
"""The most accurate that are exact whatever the method looks at: `best` is chosen among them."""
FIRST, LEAST, MORE = 32, 64, 1.5
"""The first part of the pictures is this part of them, but at least so many; each has so many times as many."""


def wanted(options: Options, trained: TrainedRun) -> bool:
    """Whether few pictures come first: as was said, or where there are many pictures. Batch norms are estimated anew
    for each part, which costs more than it saves."""
    if options.judging is not None:
        return options.judging == "racing"
    pictures = min(len(trained.pictures.search), options.pictures or math.inf)
    return not options.racing and pictures >= ENOUGH and not needs_recalibration(trained.net)


def ends(pictures: int, few: int | None = None) -> list[int]:
    """How many pictures candidates have seen after each part: half as many again as before, at last all."""
    out = [min(few or max(LEAST, pictures // FIRST), pictures)]
    while out[-1] < pictures:
        more = math.ceil(MORE * out[-1])
        out.append(more if MORE * more <= pictures else pictures)
    return out


def contested_first(share: Floats, seed: int = 0) -> Ints:
    """Pictures in the order of how much a panel disagrees, by the ``share`` of it that is right about each. Equal ones
    are shuffled."""
    shuffled = np.random.default_rng(seed).permutation(len(share))
    return shuffled[np.argsort(-(share * (1 - share))[shuffled], kind="stable")]


def predicted(right: Floats, seen: Floats, rest: Floats) -> tuple[Floats, float]:
    """How many pictures candidates that have ``right`` so far will have right in all, and the standard error; from
    those that have ``seen`` right so many at that point, and ``rest`` of the others."""
    spread = float(seen.var(ddof=1))
    slope = float(np.cov(seen, rest)[0, 1]) / spread * len(seen) / (len(seen) + SHRUNK) if spread else 0.0
    off = rest - slope * seen
    return right + slope * right + off.mean(), float(off.std(ddof=1))


@dataclass
class FewFirst:
    """The races of a search."""

    main: Scorer
    parts: list[Scorer]
    """Each on some pictures, with a history of them."""
    ends: list[int]
    sure: float
    seen: list[Floats] = field(default_factory=list)
    """Of those that saw all: how many pictures they had right after each part."""
    shown: int = 0
    """Pictures that were looked at, for all candidates."""

    @staticmethod
    def of(trained: TrainedRun, options: Options, main: Scorer, world: World, stack: ExitStack) -> FewFirst:
        part, limit = trained.pictures.search, options.pictures
        pictures = part if limit is None else part.subset(limit)
        name = split_name(trained, limit)

        def history(of: str) -> History | None:
            if main.history is None:
                return None
            made = History(trained.run.history_file, trained.run.fingerprint(), f"{name}:{of}")
            return stack.enter_context(made)

        order = _order(trained, main, world, history("panel"))
        mark, limits = digest([order.tobytes()]), ends(len(order), options.few)
        parts, transform, room = [], trained.pictures.transform, pictures.memory
        for start, end in zip([0, *limits], limits, strict=False):
            shown = pictures.ordered(order[start:end], room)
            room -= shown.memory_of(transform) * shown.fits(transform)  # they share it: the first, which most see
            judge = trained.evaluator(shown)
            own = history(f"{start} to {end} in the order {mark}")
            parts.append(replace(main, evaluator=judge, history=own, number=None))
        return FewFirst(main, parts, limits, options.sure)

    def scores(
        self,
        archs: Sequence[Arch],
        costs: Sequence[Mapping[str, float]],
        round_: int,
        needed: Callable[[Floats], Floats],
        estimates: bool,
    ) -> Generator[int, None, list[Score]]:
        """The scores of a round's candidates; not numbers, or with ``estimates`` what was predicted, of those that
        cannot matter. ``needed``: by the accuracies of all, known or predicted, what each must reach. How many were
        begun is told on the way."""
        start, whole, known = time.perf_counter(), self.ends[-1], self._known(archs)
        right, loss = np.zeros((len(archs), len(self.ends))), np.zeros(len(archs))
        guess, todo = known[:, 0] * whole, np.flatnonzero(np.isnan(known[:, 0]))
        pilots, alive = np.split(todo, [max(PILOTS - len(self.seen), 0)])
        for k in range(len(self.parts)):
            yield from self._see(pilots, k, archs, right, loss)
        guess[pilots] = right[pilots, -1]
        self.seen += list(right[pilots])
        for k in range(len(self.parts)):
            yield from self._see(alive, k, archs, right, loss)
            if not len(alive):
                break
            seen = np.array(self.seen).reshape(-1, len(self.ends))
            guess[alive], error = predicted(right[alive, k], seen[:, k], seen[:, -1] - seen[:, k])
            could = guess[alive] + self.sure * math.sqrt(2) * error >= whole * needed(guess / whole)[alive]
            alive = alive[could] if k + 1 < len(self.parts) else alive
        self.seen += list(right[alive])
        scores = [Score(*pair) for pair in known.tolist()]
        if estimates:
            scores = [Score(g / whole, s.loss) for g, s in zip(guess, scores, strict=True)]
        full = [*pilots, *alive]
        for n in full:
            scores[n] = Score(right[n, -1] / whole, loss[n] / whole)
        self._keep(archs, costs, round_, full, scores, (time.perf_counter() - start) / max(len(todo), 1))
        return scores

    def _see(
        self, some: Ints, k: int, archs: Sequence[Arch], right: Floats, loss: Floats
    ) -> Generator[int, None, None]:
        """Show some candidates the k-th part of the pictures."""
        part, group = self.parts[k], TOGETHER * self.main.world.size
        pictures, sides = self.ends[k] - (self.ends[k - 1] if k else 0), len(part.evaluator.sides)
        for at in range(0, len(some), group):
            few = some[at : at + group]
            found, fresh = part.scores([archs[n] for n in few])
            before = right[few, k - 1] if k else 0.0
            right[few, k] = before + np.array([round(s.accuracy * pictures * sides) / sides for s in found])
            loss[few] += [s.loss * pictures for s in found]
            self.shown += fresh * pictures
            yield fresh if k == 0 else 0

    def _known(self, archs: Sequence[Arch]) -> Floats:
        """The scores (n, 2) of those that are known without a race: what a race saw to the end, it finds again part by
        part, as it did when it had not seen all yet."""
        world, found = self.main.world, torch.full((len(archs), 2), math.nan, dtype=torch.float64)
        found = found.to(world.carrier)
        if self.main.history is not None and self.parts[0].history is not None:
            paths = [a.path for a in archs]
            whole, raced = self.main.history.get(paths), self.parts[0].history.get(paths)
            for n, path in enumerate(paths):
                if path in whole and path not in raced:
                    pair = [whole[path].get(name, math.nan) for name in Score._fields]
                    found[n] = torch.tensor(pair, dtype=torch.float64)
        world.spread([found])
        return np.asarray(found.cpu().numpy())

    def _keep(
        self,
        archs: Sequence[Arch],
        costs: Sequence[Mapping[str, float]],
        round_: int,
        full: Sequence[int],
        scores: Sequence[Score],
        seconds: float,
    ) -> None:
        """What saw all pictures is in the history as if it had seen them at once."""
        if self.main.history is None:
            return
        rows = []
        for n in full:
            values = {"accuracy": scores[n].accuracy, "loss": scores[n].loss, **costs[n]}
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            rows.append(Evaluation(archs[n].path, archs[n].to_json(), finite, seconds))
        self.main.history.put(rows, self.main.number, round_)


def _order(trained: TrainedRun, main: Scorer, world: World, history: History | None) -> Ints:
    """The order of the pictures, by a panel that is always the same: the smallest, the largest and random networks. The
    first process asks it, once."""
    judge, space = main.evaluator, trained.space
    assert judge.pictures is not None
    told = torch.zeros(judge.pictures, dtype=torch.float64, device=world.carrier)
    if history is not None:
        panel = (space.smallest(), space.largest(), *space.sample(PANEL - 2, seed=0))
        archs = list({arch.path: arch for arch in panel}.values())
        key = f"{len(archs)} networks"
        known = history.get([key]).get(key)
        if known is None:
            share = judge.right(archs).mean(0).tolist()
            known = {str(n): value for n, value in enumerate(share)}
            history.put([Evaluation(key, "", known)])
        told += torch.tensor([known[str(n)] for n in range(len(told))], dtype=torch.float64)
    world.spread([told])
    return contested_first(told.cpu().numpy())
