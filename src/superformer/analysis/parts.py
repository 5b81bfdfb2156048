"""What can be asked of an analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from rich.console import Console

from superformer import data, files
from superformer.analysis import attention, correlation
from superformer.analysis import correlation as seeds
from superformer.analysis import distributions as conflicts
from superformer.analysis import subject as weights
from superformer.analysis.correlation import coefficients
from superformer.analysis.distributions import distributions
from superformer.analysis.subject import Standalone, Subject, standalone
from superformer.errors import SuperformerError, nearest
from superformer.progress import teller
from superformer.runs.folder import Run
from superformer.settings import SettingsBase
from superformer.space.arch import load_json

PARTS = ("distributions", "conflicts", "latency", "attention", "budgets", "seeds", "correlations", "weights")
CHEAP = PARTS[:3]
"""What is there already; the others run networks (attention, budgets), searches (seeds) or trainings (correlations,
weights)."""


class Settings(SettingsBase):
    """``key=value`` words of an analysis."""

    seed: int = Field(0, ge=0)
    samples: int | None = Field(
        None, ge=1, description="distributions: random networks to evaluate; without it, those known already"
    )
    architectures: int = Field(10, ge=2, description="budgets, correlations, weights: random networks")
    groups: int = Field(2, ge=1, description="of MACs: ranges that these are drawn in, as many in each")
    epochs: float | None = Field(
        None, gt=0, description="correlations, weights: of training by itself; without it, the recipe's"
    )
    arch: str | None = Field(None, description="attention: best, smallest, largest, a key of the front, or a file")
    pictures: int = Field(64, ge=1, description="attention: of the search split")
    seeds: int = Field(3, ge=2, description="seeds: searches, with the seeds 0, 1, ...")
    method: str | None = Field(None, description="seeds: the method of the searches, if not that of the recipe")
    search: dict[str, Any] = Field(
        default_factory=dict, description="seeds: settings of that method, such as {population: 20}"
    )
    macs_max: float | None = Field(None, gt=0, description="distributions, seeds: networks up to these MACs")


def chosen(parts: Iterable[str], changes: Mapping[str, Any]) -> Settings:
    """The settings of an analysis; a part or a setting that is not there is an error."""
    for name in parts:
        if name not in PARTS:
            raise SuperformerError(f"unknown part {name!r} of an analysis: {nearest(name, PARTS)}")
    return Settings.read(changes, "analyse")


# Predicted against measured latency of the front, where a search had a table of latencies
# (`superformer.cost.latency_table`).


def predicted(front: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a ``front.json``: points (predicted, measured) in seconds, the median relative error and the rank correlation;
    None if nothing of it was measured."""
    points = [(row["latency"], row["measured"]) for row in front["front"] if "latency" in row and "measured" in row]
    if not points:
        return None
    guess, real = np.asarray(points, dtype=np.float64).T
    return {
        "points": [list(map(float, pair)) for pair in points],
        "median_error": float(np.median(np.abs(guess - real) / real)),
        "spearman": coefficients(guess, real)["spearman"],
    }


# The analysis of a run: its parts, one after the other, gathered in ``DIR/analysis.json``.


FILE = "analysis.json"
AT_ONCE = 16
"""Pictures whose attention is looked at together."""


@dataclass(frozen=True)
class _Asked:
    run: Run
    settings: Settings
    console: Console | None
    train: Standalone

    @property
    def epochs(self) -> float:
        return self.settings.epochs or self.run.recipe().train.epochs


def _distributions(asked: _Asked) -> Any:
    own, most = asked.settings, asked.settings.macs_max
    found = distributions(
        asked.run.folder, own.samples, own.seed, None if most is None else (None, most), asked.console
    )
    if not found:
        raise SuperformerError(
            "no random network of the space was evaluated yet: distributions samples=100 evaluates some"
        )
    return [one.to_dict() for one in found]


def _conflicts(asked: _Asked) -> Any:
    found = conflicts.ratios(asked.run.metrics())
    if not found:
        raise SuperformerError(
            "no conflict of gradients was measured: training with sampling.rule=sandwich and watch.conflicts=10 does"
        )
    return found


def _latency(asked: _Asked) -> Any:
    found = predicted(asked.run.front())
    if found is None:
        raise SuperformerError("no network of the front was measured: superformer search with --latency-max does")
    return found


def _attention(asked: _Asked) -> Any:
    run, own = asked.run, asked.settings
    subject = Subject.open(run.folder)
    arch = run.arch(own.arch or ("best" if run.front_file.exists() else "largest"))
    parts = data.eval_batches(
        subject.pictures.search, subject.recipe.data, subject.img_size, AT_ONCE, limit=own.pictures
    )
    found = attention.reach(subject.network(arch), (x.to(subject.device) for x, _ in parts))
    if not found:
        raise SuperformerError(f"no block of {arch.key} ({subject.space.family}) attends to places of the picture")
    return [{**row, "arch": arch.key} for row in found]


def _budgets(asked: _Asked) -> Any:
    own = asked.settings
    return correlation.against_macs(
        Subject.open(asked.run.folder), own.architectures, own.groups, own.seed, asked.console
    )


def _correlations(asked: _Asked) -> Any:
    own, subject = asked.settings, Subject.open(asked.run.folder)
    return [
        correlation.against_standalone(
            subject, own.architectures, own.groups, asked.epochs, asked.train, own.seed, asked.console
        )
    ]


def _weights(asked: _Asked) -> Any:
    own, subject = asked.settings, Subject.open(asked.run.folder)
    some = correlation.spread(subject, own.architectures, own.groups, own.seed)
    return weights.compare(subject, [d.arch for d in some], asked.epochs, asked.train, asked.console)


def _seeds(asked: _Asked) -> Any:
    own, subject = asked.settings, Subject.open(asked.run.folder)
    limits = {} if own.macs_max is None else {"macs": (0.0, own.macs_max)}
    found = [seeds.searched(subject, n, limits, own.method, own.search, asked.console) for n in range(own.seeds)]
    return seeds.summary(found, subject.space)


MADE: dict[str, Callable[[_Asked], Any]] = {
    "distributions": _distributions,
    "conflicts": _conflicts,
    "latency": _latency,
    "attention": _attention,
    "budgets": _budgets,
    "seeds": _seeds,
    "correlations": _correlations,
    "weights": _weights,
}


def analyse(
    folder: str | Path,
    console: Console | None = None,
    parts: Iterable[str] = (),
    changes: Mapping[str, Any] | None = None,
    train: Standalone = standalone,
) -> dict[str, Any]:
    """Analyse a run; what is returned is also in its ``analysis.json``. Parts that were analysed before stay there.

    ``parts``: some of `PARTS`; without any, what is cheap and available. ``changes``: of `Settings`. ``train``: how
    networks are trained by themselves."""
    run, parts = Run.open(folder), list(parts)
    asked, tell = _Asked(run, chosen(parts, changes or {}), console, train), teller(console)
    found: dict[str, Any] = {}
    for name in parts or CHEAP:
        try:
            found[name] = MADE[name](asked)
        except SuperformerError as error:
            if parts:
                raise
            tell(f"{name}: left out ({error})")
            continue
        tell(f"{name}: {told(name, found[name])}")
        _keep(run, found)
    return _keep(run, found)


def _keep(run: Run, found: Mapping[str, Any]) -> dict[str, Any]:
    """Write what was found beside what earlier analyses of the same supernet found."""
    path, supernet = run.folder / FILE, run.fingerprint() if run.supernet_file.exists() else None
    old = (
        load_json(path.read_text(), f"{path} (move it away if it is damaged)", SuperformerError)
        if path.exists()
        else {}
    )
    whole = {**(old if old.get("supernet") == supernet else {}), **found, "supernet": supernet}
    files.write(path, json.dumps(whole, indent=1, allow_nan=False))
    return whole


def told(name: str, found: Any) -> str:
    """One line about a part."""
    if name == "distributions":
        return "; ".join(
            f"{d['name']}: {len(d['errors'])} networks, mean error {d['mean']:.2f} %, median {d['median']:.2f} %"
            for d in found
        )
    if name == "conflicts":
        rows = [row for row in found if row["layer"] == conflicts.ALL]
        return f"{100 * rows[0]['ratio']:.0f} % of layers in epoch {rows[0]['epoch']}, {100 * rows[-1]['ratio']:.0f} % in {rows[-1]['epoch']}"
    if name == "latency":
        return f"{len(found['points'])} networks, predicted off by {100 * found['median_error']:.1f} % (median)"
    if name == "attention":
        return "; ".join(f"{row['block']}: top 5 {row['top5']:.1f} px, top 10 {row['top10']:.1f} px" for row in found)
    if name == "seeds":
        best, same = (f"{100 * found['best'][word]:.2f}" for word in ("mean", "std")), found["overlap"]["jaccard"]
        return f"best of {found['seeds']} searches {' +- '.join(best)} %, {100 * same:.0f} % of networks shared"
    if name == "weights":
        ways = ("inherited", "finetuned", "scratch")
        return ", ".join(f"{way} {100 * float(np.mean([row[way] for row in found])):.2f} %" for way in ways)
    one = found if isinstance(found, dict) else found[0]
    return f"{len(one['points'])} networks, " + ", ".join(_coefficient(one, c) for c in correlation.COEFFICIENTS)


def _coefficient(found: Mapping[str, Any], name: str) -> str:
    value, ends = found[name], found["intervals"][name]
    return (
        f"{name} "
        + ("undefined" if value is None else f"{value:.2f}")
        + ("" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")
    )
