"""The accuracy and the loss of sub-networks of one supernet on fixed pictures.

They are evaluated together, as a tree (`superformer.evaluation.prefix_tree`): those that begin alike share the work up
to where they differ. In a `Race` those that cannot win any more are stopped after some pictures. Where there are few
pictures, `varied_copies` of them are more to judge a network by."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer import data
from superformer.cost import cost
from superformer.data.augment import normalise
from superformer.elastic.conv import BatchNorm, recalibrate
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.prefix_tree import Node, grow, prefix_order, walk
from superformer.families.network import Network
from superformer.kernels import counting, precision
from superformer.recipes import Recipe
from superformer.recipes.settings import Data
from superformer.runs import Run
from superformer.runs.processes import World, device_here, synchronise
from superformer.runs.storage import load_supernet
from superformer.space import Space
from superformer.space.arch import Arch

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Pictures and labels, from the beginning each time it is called."""
SPLITS = ("test", "search")
TOGETHER, BATCH, LAP = 64, 256, 32
"""Networks of one tree; pictures of one batch, and of a race between two looks at who is left."""
CALIBRATION_BATCH, ORDERED_BATCHES = 64, 8
"""Pictures of a batch that batch norms are estimated on; batches of runs from before ``data.calibration``."""
CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


class Score(NamedTuple):
    """Of a network on some pictures: the share it gets right, and its mean cross-entropy (not a number: unknown)."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Race:
    """The accuracy that each network must be able to reach; one that cannot is stopped.

    Without a ``margin`` the bound is exact: what it would be with all of the remaining pictures right. With one, a
    network is taken to get no more of the rest right than of those so far, and so many standard errors besides."""

    needed: Sequence[float]
    margin: float | None = None

    def of(self, some: Sequence[int]) -> Race:
        return Race([self.needed[k] for k in some], self.margin)

    def lost(self, right: Tensor, seen: int, pictures: int) -> set[int]:
        """Those that cannot win any more, after ``seen`` of all pictures."""
        share = torch.ones_like(right)
        if self.margin is not None and seen:
            so_far = right / seen
            share = (so_far + self.margin * ((so_far * (1 - so_far) + 1 / seen) / seen).sqrt()).clamp(max=1)
        bound = (right + (pictures - seen) * share) / pictures
        return set(torch.nonzero(bound < torch.tensor(self.needed, dtype=bound.dtype)).flatten().tolist())


def varied_copies(x: Tensor, settings: Data) -> Iterator[Tensor]:
    """Normalised pictures (n, 3, height, width), then copies of them, varied as training varies its pictures: where it
    shifts them, a copy moved as far as can be into each corner; where it mirrors them, the mirrored ones."""
    high, wide = x.shape[-2:]
    most, mirrored = _variation(settings, high)

    def corners() -> Iterator[Tensor]:
        yield x
        if most:
            black = normalise(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), settings).to(x.device)
            around = black.expand(len(x), -1, high + 2 * most, wide + 2 * most).contiguous()
            around[:, :, most : most + high, most : most + wide] = x
            for down, right in CORNERS:
                top, left = most - down * most, most - right * most
                yield around[:, :, top : top + high, left : left + wide].contiguous()

    for one in corners():
        yield one
        if mirrored:
            yield one.flip(-1)


def count_copies(settings: Data, size: int) -> int:
    """What `varied_copies` makes of each picture, itself among them."""
    most, mirrored = _variation(settings, size)
    return (1 + len(CORNERS) * (most > 0)) * (1 + mirrored)


def _variation(settings: Data, size: int) -> tuple[int, bool]:
    """How far training shifts pictures, and whether it mirrors them."""
    most = round(settings.shift * size) if settings.augment == "shift" else 0
    return most, settings.augment != "none" and settings.mirror > 0


def needs_recalibration(net: Network) -> bool:
    """Whether a sub-network's batch norms have no statistics of its own until they are estimated."""
    return net.space.size > 1 and any(isinstance(m, BatchNorm) for m in net.modules())


def sides_of(net: Network, recipe: Recipe) -> tuple[str, ...]:
    """Those of bilateral sharing that a recipe trains, and so judges."""
    return net.sharing.sides if recipe.sampling.sides == "both" else ("left",)


def calibration_batches(
    pictures: data.DataSet, recipe: Recipe, img_size: int, device: torch.device | None
) -> Iterator[Tensor]:
    """Training pictures that batch norms are estimated on: of all classes alike, shuffled by the recipe's seed, whole
    batches of them (of fewer pictures one that is not). In runs from before ``data.calibration`` a fixed subset in the
    order of the data set, class after class where that is its order."""
    train, batches = pictures.train, recipe.data.calibration
    if batches:
        most = min(batches, len(train) // CALIBRATION_BATCH) * CALIBRATION_BATCH or len(train)
        chosen = train.subset(most, recipe.seed)
    else:
        chosen = train.subset(ORDERED_BATCHES * CALIBRATION_BATCH)
    for x, _ in data.eval_batches(chosen, recipe.data, img_size, CALIBRATION_BATCH):
        yield x.to(device)


def calibration_key(net: Network, recipe: Recipe) -> str:
    """What calibration changes of a sub-network's scores; nothing where nothing is estimated, or nothing was to set."""
    batches = recipe.data.calibration if needs_recalibration(net) else 0
    return f":{batches} batches of seed {recipe.seed}" if batches else ""


class Evaluator:
    """Accuracy and loss on fixed pictures.

    ``calibration``: batches of training pictures, on which the statistics of batch norms are estimated for each
    network; needed where there are any. With several ``sides`` (bilateral sharing) the score is the mean of theirs, as
    ViTAS scores. ``pictures``: how many there are, which only races need; ``amp``: the precision they are seen in."""

    def __init__(
        self,
        net: Network,
        batches: Batches,
        calibration: Sequence[Tensor] = (),
        sides: Sequence[str] = ("left",),
        pictures: int | None = None,
        amp: str = "off",
    ):
        self.net, self.calibration, self.amp = net, tuple[Tensor, ...](), amp
        if needs_recalibration(net):
            if not calibration:
                raise SuperformerError("networks with batch norm need calibration: a few batches of training pictures")
            self.net = copy.deepcopy(net)  # estimating statistics must not change the supernet's
            synchronise(self.net, None)  # this process evaluates by itself; the others would never answer
            self.calibration = tuple(calibration)
        self.batches, self.sides, self.pictures = batches, tuple(sides), pictures

    @staticmethod
    def of(
        net: Network,
        recipe: Recipe,
        pictures: data.DataSet,
        part: data.Pictures,
        img_size: int,
        limit: int | None = None,
        device: torch.device | None = None,
        varied: bool = False,
    ) -> Evaluator:
        """On a part of a data set, as a recipe prepares pictures; batch norms are estimated on its training pictures.
        ``varied``: on each picture's `varied_copies`, too."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for x, labels in data.eval_batches(part, recipe.data, img_size, BATCH, limit=limit, device=device):
                for one in varied_copies(x.to(device), recipe.data) if varied else (x.to(device),):
                    yield one, labels.to(device)

        known = len(part) if limit is None else min(limit, len(part))
        known *= count_copies(recipe.data, img_size) if varied else 1
        some = calibration_batches(pictures, recipe, img_size, device) if needs_recalibration(net) else ()
        return Evaluator(net, batches, tuple(some), sides_of(net, recipe), known, recipe.train.amp)

    def __call__(self, archs: Sequence[Arch]) -> list[float]:
        return [score.accuracy for score in self.scores(archs)]

    def scores(self, archs: Sequence[Arch], race: Race | None = None) -> list[Score]:
        """The accuracy and the loss of each architecture; with a race, not numbers for those that were stopped."""
        was, found, order = self.net.training, dict[int, Score](), prefix_order(archs)
        self.net.eval()
        try:
            for start in range(0, len(order), TOGETHER):
                some = order[start : start + TOGETHER]
                scores = self._one_tree([archs[k] for k in some], None if race is None else race.of(some))
                found |= zip(some, scores, strict=True)
        finally:
            self.net.train(was)
        return [found[k] for k in range(len(archs))]

    def _one_tree(self, archs: Sequence[Arch], race: Race | None) -> list[Score]:
        device = next(self.net.parameters()).device
        right, loss = torch.zeros(2, len(archs), dtype=counting(device), device=device)  # read when all is done
        left, seen = set(range(len(archs))), 0
        for side in self.sides:
            root = None
            for x, labels in self._laps(race):
                calibration = self.calibration if root is None else ()
                if root is None:
                    root = grow(self.net, archs, (int(x.shape[-2]), int(x.shape[-1])), side)
                if race is not None and self.pictures:
                    left -= race.lost(right.cpu(), seen, len(self.sides) * self.pictures)
                    if not root.prune(left):
                        break
                for k, logits in self._walk(root, x, calibration):
                    right[k] += (logits.argmax(1) == labels).sum()
                    loss[k] += F.cross_entropy(logits.float(), labels, reduction="sum")
                seen += len(labels)
        pairs = (torch.stack([right, loss], 1) / max(seen, 1)).tolist()
        return [Score(*pair) if k in left else Score(math.nan, math.nan) for k, pair in enumerate(pairs)]

    def right(self, archs: Sequence[Arch]) -> Tensor:
        """Whether each architecture is right about each picture, 1 or 0 (networks, pictures); of sides the mean."""
        was, found = self.net.training, list[Tensor]()
        self.net.eval()
        try:
            for side in self.sides:
                root, columns = None, list[Tensor]()
                for x, labels in self.batches():
                    calibration = self.calibration if root is None else ()
                    root = root or grow(self.net, archs, (int(x.shape[-2]), int(x.shape[-1])), side)
                    out = torch.zeros(len(archs), len(labels), dtype=torch.bool, device=x.device)
                    for k, logits in self._walk(root, x, calibration):
                        out[k] = logits.argmax(1) == labels
                    columns.append(out)
                found.append(torch.cat(columns, 1).cpu().double())  # not every device has float64
        finally:
            self.net.train(was)
        return torch.stack(found).mean(0)

    def _walk(self, root: Node, x: Tensor, calibration: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        with precision(x.device, self.amp):
            yield from walk(root, x, calibration)

    def _laps(self, race: Race | None) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches; for a race in smaller parts, after each of which some can be stopped."""
        for x, labels in self.batches():
            size = len(x) if race is None else LAP
            for start in range(0, len(x), size):
                yield x[start : start + size], labels[start : start + size]


@dataclass(frozen=True)
class TrainedRun:
    """Its supernet (or another network trained on its pictures), its pictures, and how networks are judged by them."""

    run: Run
    recipe: Recipe
    net: Network
    pictures: data.DataSet
    img_size: int
    device: torch.device | None = None

    @classmethod
    def of(
        cls, run: Run, net: Network | None = None, img_size: int | None = None, device: torch.device | None = None
    ) -> Self:
        """``net``: if not the run's supernet; ``img_size``: if not that of its training; ``device``: if not that of
        this process. Pictures that changed since are refused."""
        run.require_trained()
        device = device_here() if device is None else device
        recipe, size = run.recipe(), img_size or int(run.facts()["img_size"])
        pictures = data.load(run.facts()["data"], recipe.data, size)
        run.require_pictures(pictures.fingerprint)
        net = net or load_supernet(run.supernet_file)
        return cls(run, recipe, net.to(device), pictures, size, device)

    @property
    def space(self) -> Space:
        return self.net.space

    def network(self, arch: Arch) -> Network:
        """A sub-network with the weights it inherits; its batch norms are estimated on training pictures."""
        net = self.net.extract(arch)
        recalibrate(net, calibration_batches(self.pictures, self.recipe, self.size_for(net), self.device))
        return net

    def size_for(self, net: Network) -> int:
        """The size of pictures for one of its networks: its own, where the supernet resizes them and it does not."""
        return net.space.img_size if self.net.resizes and not net.resizes else self.img_size

    def evaluator(self, part: data.Pictures | None = None, limit: int | None = None, varied: bool = False) -> Evaluator:
        """Of sub-networks, on the search split or on another ``part`` of the pictures (see `Evaluator.of`)."""
        part = self.pictures.search if part is None else part
        if not len(part):
            raise SuperformerError(
                f"{self.run.folder} has no search split (data.search=0): nothing can be judged on it"
            )
        return Evaluator.of(self.net, self.recipe, self.pictures, part, self.img_size, limit, self.device, varied)


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks of a trained supernet, a row each. Processes share the networks,
    and the first one gets the rows."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.require_trained()
    archs = [run.arch(word) for word in words]
    inside, world = World.joined(), World.join()
    try:
        trained = TrainedRun.of(run, device=world.device)
        scores = world.divided(archs, trained.evaluator(trained.pictures.test() if split == "test" else None))
    finally:
        if not inside:
            world.leave()
    if not world.first:
        return []
    costs = cost(trained.space, archs, num_classes=trained.net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
