"""Latency of whole populations, predicted from networks that were measured, here or on another device
(`superformer.cost.kit`). Other costs that add up as times do, such as energy, are predicted in the same way.

A network's latency is taken to be a sum, as its MACs are: a base that all networks of the space share, and for each
part (what leads into a stage, the blocks of a stage, the end) so many seconds a block, a MAC and a parameter.
`LatencyTable.build` measures some tens of networks of the space in turn and finds these numbers by least squares on
relative errors; none is negative, so that more blocks never take less time. The error is told on networks that took no
part in the fit. How networks compare is taken from their fastest runs (medians of busy machines say more about the
machine than about the networks), how long they take from the medians: all times are those of the fastest runs, times
how much longer the medians were, which is one number for all.

This is simpler than timing every setting of every block, and holds for every runtime, where blocks cannot be timed one
by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer import files
from superformer.cost.latency import Timing, Turns, measure_in_turn
from superformer.cost.runtimes import Size
from superformer.errors import StoppedError, SuperformerError
from superformer.families.network import Network
from superformer.kernels import device_name
from superformer.machine import machine
from superformer.space import Genes, Space
from superformer.space.arch import Arch
from superformer.space.costs import AT_ONCE, Cost, Terms, skeleton
from superformer.spaces import model

Floats = NDArray[np.float64]
Timer = Callable[[Sequence[Arch], float], Sequence[float]]
"""Seconds that each architecture takes, measured for so many seconds in all."""

VERSION = 2
"""1 predicted the fastest runs, not the medians."""
MOST = {"eager": 64, "compiled": 32, "onnx": 32}
"""Networks that are measured for the fit, if the time allows; making one ready takes seconds with ONNX, and half a
minute compiled."""
LEAST = 24
HELD_OUT = 0.25
"""Networks measured besides to tell the error, as a part of those for the fit."""
RUNS = 20
"""Runs that a network needs, so that some of them are not disturbed."""
AT_A_TIME = 250_000_000
"""Parameters of networks that are in memory together."""


class LatencyError(SuperformerError):
    """A latency table that does not hold here."""


@dataclass(frozen=True)
class Fit:
    """How good a table is: on ``held_out`` networks that were not among the ``networks`` of the fit.

    Errors are relative; ``rank`` is Spearman's correlation of predicted and measured times; ``slowest`` and ``fastest``
    were measured."""

    networks: int
    held_out: int
    median_error: float
    p90_error: float
    rank: float
    fastest: float
    slowest: float
    points: tuple[tuple[float, float], ...] = ()
    """Of the held-out networks: predicted, measured."""


@dataclass(frozen=True)
class Checked:
    """A network that was measured for real, beside what the table said."""

    arch: Arch
    predicted: float
    timing: Timing


@dataclass(frozen=True)
class LatencyTable:
    """Seconds of each part of a space's networks for one batch.

    ``parts`` has seconds a block, a MAC and a parameter (of one picture); what does not differ between the networks is
    in ``base``. A table that was ``imported`` tells of another ``machine``, by the name ``device``, and may be of
    another ``cost`` than latency, in a ``unit`` of its own."""

    machine: str
    threads: int
    runtime: str
    device: str
    batch: int
    num_classes: int
    img_size: Size | None
    family: str
    options: dict[str, Any]
    stages: int
    base: float
    parts: dict[str, tuple[float, float, float]]
    fit: Fit
    imported: bool = False
    cost: str = "latency"
    unit: str = "s"

    def latency(self, space: Space, archs: Genes | Iterable[Arch] | Arch) -> Floats:
        """Predicted seconds of an undisturbed run on one batch, of architectures or of rows of genes."""
        if not isinstance(archs, np.ndarray):
            archs = space.encode([archs] if isinstance(archs, Arch) else archs)
        if (space.family, dict(space.options), len(space.stages)) != (self.family, self.options, self.stages):
            raise LatencyError(
                f"the table was made for {self.family} networks of {self.stages} stages with the options "
                f"{self.options}; {space.name} has {space.family} networks of {len(space.stages)} stages with "
                f"{dict(space.options)}: build a table for it"
            )
        total = np.full(len(archs), self.base)
        for rows, part, counted in _counts(space, archs, self.num_classes, self.img_size):
            if part not in self.parts:
                lacks = f"{part} of {space.name}"
                raise LatencyError(f"the table knows nothing about {lacks}: build a table for this space")
            total[rows] += counted @ np.asarray(self.parts[part])
        return total

    def against(
        self, space: Space, archs: Sequence[Arch], seconds: float = 2.0, models: Sequence[Network] | None = None
    ) -> list[Checked]:
        """Networks (of a front) measured for real, for ``seconds`` each, beside what is predicted of them."""
        models = [model(a, self.num_classes) for a in archs] if models is None else models
        how = Turns(threads=self.threads, seconds=seconds, device=self.device)
        timings = measure_in_turn(models, self.img_size, batch=self.batch, runtime=self.runtime, **how)
        return [Checked(a, float(p), t) for a, p, t in zip(archs, self.latency(space, archs), timings, strict=True)]

    @staticmethod
    def build(
        space: Space,
        num_classes: int = 1000,
        img_size: Size | None = None,
        *,
        batch: int = 1,
        threads: int = 1,
        runtime: str = "eager",
        device: str = "cpu",
        seconds: float = 30.0,
        networks: int | None = None,
        seed: int = 0,
        timer: Timer | None = None,
    ) -> LatencyTable:
        """Measure networks of the space, drawn with ``seed``, for about ``seconds``, and fit a table.

        ``networks`` for the fit: without a number as many as the time allows. ``timer`` replaces the measuring."""
        timer = timer or _timer(num_classes, img_size, batch, threads, runtime, device)
        if networks is None:
            longest = timer([space.largest()], seconds / 30)[0]
            networks = int(np.clip(seconds / (RUNS * longest * (1 + HELD_OUT)), LEAST, MOST.get(runtime, LEAST)))
        measured = timer(space.decode(drawn(space, networks, seed)), seconds)
        here = machine(device_name(device), runtime), threads, runtime, device, batch, num_classes, img_size
        return LatencyTable.of(space, networks, seed, measured, *here)

    @staticmethod
    def of(space: Space, networks: int, seed: int, measured: Sequence[float], *here: Any, **more: Any) -> LatencyTable:
        """The table of what all networks took that `drawn` draws: the same values, the same table, wherever they were
        measured. ``here``: the first fields of a table, from the machine to the size of pictures."""
        num_classes, img_size = here[5:]
        genes, values = drawn(space, networks, seed), np.asarray(measured, dtype=np.float64)
        fitted, rest = slice(0, networks), slice(networks, None)
        base, parts = _solve(_tabulate(space, genes[fitted], num_classes, img_size), values[fitted])
        fit = Fit(networks, len(genes) - networks, 0.0, 0.0, 0.0, float(values.min()), float(values.max()))
        given = *here, space.family, dict(space.options), len(space.stages), base, parts, fit
        table = LatencyTable(*given, **more)
        return replace(table, fit=_fit_error(table.fit, table.latency(space, genes[rest]), values[rest]))

    @staticmethod
    def file_name(runtime: str, threads: int, batch: int, device: str = "cpu") -> str:
        """Of the table in a run's folder."""
        where = "" if device == "cpu" else f"-{device.replace(':', '')}"
        return f"latency-{runtime}-{threads}-{batch}{where}.json"

    def save(self, path: Path) -> None:
        files.write_object(path, {"version": VERSION, **asdict(self)})

    @staticmethod
    def _read(data: dict[str, Any], threads: int, runtime: str, device: str, batch: int) -> LatencyTable:
        if data.pop("version", None) != VERSION:
            raise LatencyError(f"this table of latencies is not of version {VERSION}: build it again")
        try:
            size = data.pop("img_size")
            parts = {str(name): (float(a), float(b), float(c)) for name, (a, b, c) in data.pop("parts").items()}
            size = tuple(size) if isinstance(size, list) else size
            fit = data.pop("fit")
            points = tuple((float(predicted), float(measured)) for predicted, measured in fit.pop("points", ()))
            table = LatencyTable(img_size=size, parts=parts, fit=Fit(**fit, points=points), **data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LatencyError(f"this is not a table of latencies ({error}): build it again") from error
        here: dict[str, Any] = {"threads": threads, "runtime": runtime, "device": device, "batch": batch}
        if not table.imported:
            here = {"machine": machine(device_name(device), runtime), **here}
        other = []
        for name, now in here.items():
            if (then := getattr(table, name)) != now:
                other.append(f"{name}: {then} then, {now} now")
        if other:
            raise LatencyError(
                f"this table of latencies was measured under other conditions ({'; '.join(other)}): build one here"
            )
        return table

    @staticmethod
    def load(path: Path, *, threads: int, runtime: str = "eager", device: str = "cpu", batch: int = 1) -> LatencyTable:
        """The table of a file, if it holds for this machine and for what is asked."""
        try:
            return LatencyTable._read(files.read_object(path, "build it again"), threads, runtime, device, batch)
        except (files.DamagedError, StoppedError) as error:
            raise LatencyError(f"the table of latencies {error}") from error
        except LatencyError as error:
            raise LatencyError(f"{path}: {error}") from error


# --- what is counted ---


def _counts(space: Space, genes: Genes, num_classes: int, img_size: Size | None) -> Iterator[tuple[slice, str, Floats]]:
    """Of each part, for some rows at a time: blocks, MACs and parameters. The terms are those of
    `superformer.space.costs`."""
    terms = Terms(skeleton(space, num_classes), img_size)
    for start in range(0, len(genes), AT_ONCE):
        rows = slice(start, min(start + AT_ONCE, len(genes)))
        values = space.population(genes[rows])
        widths = terms.net.bind(values.choices, [s.choices for s in values.stages])
        for i, stage in enumerate(values.stages):
            scope = {**values.choices, **stage.choices}
            yield rows, f"into stage {i}", _stack(terms.enter(i, widths, scope), np.ones(values.n))
            for p, block in enumerate(stage.blocks):
                cost = terms.block(i, p, widths, {**scope, **block})
                for part, these in _kinds(f"stage {i}", {**stage.choices, **block}, stage.active[:, p]):
                    yield rows, part, _stack(cost, these)
        yield rows, "end", _stack(terms.exit(widths, values.choices), np.ones(values.n))


def _kinds(
    part: str, values: dict[str, NDArray[Any]], active: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Blocks of different kinds (values that are words: local, global) are parts of their own."""
    words = [v for v in values.values() if v.dtype.kind == "U"]
    if not words:
        yield part, active
        return
    kinds = functools.reduce(lambda one, other: np.char.add(np.char.add(one, " "), other), words)
    for kind in np.unique(kinds):
        yield f"{part} {kind}", active & (kinds == kind)


def _stack(cost: Cost, active: NDArray[Any]) -> Floats:
    """Blocks, MACs and parameters of some architectures, as columns; nothing where the part does not run."""
    columns = [np.broadcast_to(np.asarray(c, dtype=np.float64), active.shape) for c in (1, *cost)]
    counted: Floats = np.stack(columns, 1) * active[:, None]
    return counted


def _tabulate(space: Space, genes: Genes, num_classes: int, img_size: Size | None) -> dict[str, Floats]:
    """The sums over each part of whole networks."""
    found: dict[str, Floats] = {}
    for rows, part, counted in _counts(space, genes, num_classes, img_size):
        found.setdefault(part, np.zeros((len(genes), 3)))[rows] += counted
    return found


# --- the fit ---


def held_out(networks: int) -> int:
    """How many tell the error of a fit to so many."""
    return max(2, round(networks * HELD_OUT))


def drawn(space: Space, networks: int, seed: int) -> Genes:
    """The networks that are measured: so many for the fit, then those that tell its error."""
    return space.sample_genes(networks + held_out(networks), np.random.default_rng(seed))


def typical(fastest: Sequence[float], medians: Sequence[float]) -> list[float]:
    """How long networks take that were measured together: their fastest runs, times how much longer medians were."""
    disturbed = float(np.median([median / least for median, least in zip(medians, fastest, strict=True)]))
    return [least * disturbed for least in fastest]


def _solve(parts: dict[str, Floats], measured: Floats) -> tuple[float, dict[str, tuple[float, float, float]]]:
    """The base and the seconds of each part that predict the measured times best; columns that never differ belong to
    the base."""
    from scipy.optimize import nnls

    columns = np.concatenate([np.ones((len(measured), 1)), *parts.values()], 1)
    scale = columns.max(0)
    differs = np.ptp(columns, 0) > 0
    differs[0] = True
    solved = np.zeros(columns.shape[1])
    relative = columns[:, differs] / scale[differs] / measured[:, None]
    solved[differs] = nnls(relative, np.ones(len(measured)), maxiter=100 * len(scale))[0] / scale[differs]
    rates = solved[1:].reshape(-1, 3).tolist()
    return float(solved[0]), {part: (a, b, c) for part, (a, b, c) in zip(parts, rates, strict=True)}


def _fit_error(fit: Fit, predicted: Floats, measured: Floats) -> Fit:
    from scipy.stats import spearmanr

    errors = np.abs(predicted / measured - 1)
    same = np.ptp(predicted) == 0 or np.ptp(measured) == 0
    rank = 0.0 if same else float(spearmanr(predicted, measured).statistic)
    points = tuple(zip(predicted.tolist(), measured.tolist(), strict=True))
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return replace(fit, median_error=median, p90_error=p90, rank=rank, points=points)


def _timer(num_classes: int, img_size: Size | None, batch: int, threads: int, runtime: str, device: str) -> Timer:
    """Measures stand-alone networks in turn; in groups if they need much memory, with the first network in each group
    to tell the drift."""

    def time(archs: Sequence[Arch], seconds: float) -> list[float]:
        models: list[Network] = []
        times: list[float] = []
        for k, arch in enumerate(archs):
            models.append(model(arch, num_classes))
            if sum(p.numel() for m in models for p in m.parameters()) < AT_A_TIME and k + 1 < len(archs):
                continue
            how = Turns(threads=threads, seconds=seconds / len(archs), device=device)
            timings = measure_in_turn(models, img_size, batch=batch, runtime=runtime, **how)
            found = [t.fastest for t in timings]
            first = typical(found, [t.median for t in timings])
            times += [t * times[0] / found[0] for t in found[1:]] if times else first
            models = models[:1]
        return times

    return time
