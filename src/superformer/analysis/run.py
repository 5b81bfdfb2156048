"""The analysis of a run: its parts, one after the other, gathered in ``DIR/analysis.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from superformer import data, files
from superformer.analysis import correlation, subject
from superformer.analysis.attention import attention_distances, attention_maps
from superformer.analysis.distributions import ALL_LAYERS, conflict_ratios, depths, distributions
from superformer.analysis.settings import CHEAP, Settings, chosen
from superformer.analysis.subject import Standalone, Subject
from superformer.data.augment import EvalTransform, normalise
from superformer.data.stores import decode
from superformer.draw import attention as draw_attention
from superformer.draw import depths as draw_depths
from superformer.errors import SuperformerError
from superformer.progress import teller
from superformer.runs import Run, stored

FILE = "analysis.json"
AT_ONCE = 16
"""Pictures whose attention is looked at together."""


@dataclass(frozen=True)
class _Request:
    """What every part is given. ``train``: how networks are trained by themselves."""

    run: Run
    settings: Settings
    console: Console | None
    train: Standalone

    @property
    def subject(self) -> Subject:
        return Subject.open(self.run.folder)

    @property
    def epochs(self) -> float:
        return self.settings.epochs or self.run.recipe().train.epochs


def analyse(
    folder: str | Path,
    console: Console | None = None,
    parts: Iterable[str] = (),
    changes: Mapping[str, Any] | None = None,
    train: Standalone = subject.standalone,
) -> dict[str, Any]:
    """Analyse a run; what is returned is also in its ``analysis.json``. Parts that were analysed before stay there.

    ``parts``: some of `PARTS`; without any, what is cheap and available. ``changes``: of `Settings`. ``train``: how
    networks are trained by themselves."""
    run, parts, tell = Run.open(folder), list(parts), teller(console)
    request = _Request(run, chosen(parts, changes or {}), console, train)
    found: dict[str, Any] = {}
    for name in parts or CHEAP:
        try:
            found[name] = COMPUTED_BY[name](request)
        except SuperformerError as error:
            if parts:
                raise
            tell(f"{name}: left out ({error})")
            continue
        tell(f"{name}: {_summary(name, found[name])}")
        _write(run, found)
    return _write(run, found)


def _write(run: Run, found: Mapping[str, Any]) -> dict[str, Any]:
    """Write what was found beside what earlier analyses of the same supernet found."""
    path, supernet = run.folder / FILE, run.fingerprint() if run.supernet_file.exists() else None
    old = stored.read(path)
    whole = {**(old if old.get("supernet") == supernet else {}), **found, "supernet": supernet}
    files.write_object(path, whole, allow_nan=False)
    return whole


def _distributions(asked: _Request) -> Any:
    found = distributions(asked.run.folder, asked.settings, asked.console)
    if not found:
        told = "no random network of the space was evaluated yet"
        raise SuperformerError(f"{told}: distributions samples=100 evaluates some")
    return [one.to_dict() for one in found]


def _depths(asked: _Request) -> Any:
    found = depths(asked.run.folder, asked.settings, asked.console)
    if not found:
        told = "no networks of sub-spaces with one number of blocks were evaluated yet, or no stage has several"
        raise SuperformerError(f"{told}: depths samples=100 evaluates some")
    files.write(asked.run.folder / "depths.svg", draw_depths.draw(found, asked.run.space().name))
    return found


def _conflicts(asked: _Request) -> Any:
    found = conflict_ratios(asked.run.metrics())
    if not found:
        how = "training with sampling.rule=sandwich and watch.conflicts=10 does"
        raise SuperformerError(f"no conflict of gradients was measured: {how}")
    return found


def _latency(asked: _Request) -> Any:
    found = predicted_latency(asked.run.front())
    if found is None:
        raise SuperformerError("no network of the front was measured: superformer search with --latency-max does")
    return found


def predicted_latency(front: Mapping[str, Any]) -> dict[str, Any] | None:
    """Predicted against measured latency of a ``front.json`` (`superformer.cost.latency_table`): points in seconds, the
    median relative error and the rank correlation; None if nothing of it was measured."""
    points = [(row["latency"], row["measured"]) for row in front["front"] if "latency" in row and "measured" in row]
    if not points:
        return None
    guess, real = np.asarray(points, dtype=np.float64).T
    return {
        "points": [list(map(float, pair)) for pair in points],
        "median_error": float(np.median(np.abs(guess - real) / real)),
        "spearman": correlation.coefficients(guess, real)["spearman"],
    }


def _attention(asked: _Request) -> Any:
    run, own, trained = asked.run, asked.settings, asked.subject
    arch = run.arch(own.arch or ("best" if run.front_file.exists() else "largest"))
    pictures, settings = trained.pictures.search, trained.recipe.data
    pictures = pictures if len(pictures) else trained.pictures.train  # a network by itself was trained on all of them
    net = trained.network(arch)
    batches = data.eval_batches(pictures, settings, trained.size_for(net), AT_ONCE, limit=own.pictures)
    found = attention_distances(net, (x.to(trained.device) for x, _ in batches))
    if not found:
        raise SuperformerError(f"no block of {arch.key} ({trained.space.family}) attends to places of the picture")
    return [{**row, "arch": arch.key} for row in found]


def _maps(asked: _Request) -> Any:
    """The maps of one picture, which is kept with them: the report needs nothing else."""
    run, own, trained = asked.run, asked.settings, asked.subject
    arch = run.arch(own.arch or ("best" if run.front_file.exists() else "largest"))
    net = trained.network(arch)
    size = trained.size_for(net)
    squares, what = _picture(trained, own.picture, size)
    x = normalise(squares, trained.recipe.data).to(trained.device)
    maps = attention_maps(net, x, None, own.query, own.blocks, own.heads)
    about = f"{what}, {size} x {size} pixels; network {arch.key}"
    picture = draw_attention.png(squares[0].permute(1, 2, 0).numpy())
    found = {"arch": arch.key, "about": about, "picture": picture, "maps": maps}
    files.write(run.folder / "attention.svg", draw_attention.draw(found))
    return found


def _picture(trained: Subject, which: int | str, size: int) -> tuple[Tensor, str]:
    """A picture of the search split by its number, or a file; as the network sees it: (1, 3, size, size), uint8."""
    settings, split = trained.recipe.data, trained.pictures.search
    cut = EvalTransform(size, settings.crop, settings.interpolation)
    if isinstance(which, str):
        try:
            return cut(torch.from_numpy(decode(which).copy())[None]), Path(which).name
        except (OSError, ValueError) as error:
            raise SuperformerError(f"picture={which} cannot be read as a picture: {error}") from error
    if not 0 <= which < len(split):
        raise SuperformerError(f"picture={which} is not there: the search split has 0 to {len(split) - 1}")
    told = f"picture {which} of the search split ({split.classes[int(split.labels[which])]})"
    return split.squares(cut, np.asarray([which])), told


def _correlations(asked: _Request) -> Any:
    return [correlation.against_standalone(asked.subject, asked.settings, asked.epochs, asked.train, asked.console)]


def _weights(asked: _Request) -> Any:
    trained = asked.subject
    archs = [d.arch for d in correlation.drawn_over_macs(trained, asked.settings)]
    return subject.compare_weights(trained, archs, asked.epochs, asked.train, asked.console)


def _seeds(asked: _Request) -> Any:
    own, trained = asked.settings, asked.subject
    fronts = [correlation.search_front(trained, seed, own, asked.console) for seed in range(own.seeds)]
    return correlation.fronts_summary(fronts, trained.space)


COMPUTED_BY: dict[str, Callable[[_Request], Any]] = {
    "distributions": _distributions,
    "depths": _depths,
    "conflicts": _conflicts,
    "latency": _latency,
    "attention": _attention,
    "maps": _maps,
    "budgets": lambda asked: correlation.against_macs(asked.subject, asked.settings, asked.console),
    "seeds": _seeds,
    "correlations": _correlations,
    "weights": _weights,
}


def _summary(name: str, found: Any) -> str:
    """One line about a part."""
    if name == "distributions":
        words = "{name}: {n} networks, mean error {mean:.2f} %, median {median:.2f} %"
        return "; ".join(words.format(n=len(d["errors"]), **d) for d in found)
    if name == "depths":
        words = "stage {n}: top-tier error {errors}"
        stages = sorted({row["stage"] for row in found})
        own = {s: ", ".join(f"{r['top_tier']:.2f} % ({r['blocks']})" for r in found if r["stage"] == s) for s in stages}
        return "; ".join(words.format(n=s + 1, errors=own[s]) for s in stages) + " (blocks); drawn in depths.svg"
    if name == "maps":
        return f"{len(found['maps'])} of {found['about']}, drawn in attention.svg"
    if name == "conflicts":
        first, *_, last = [row for row in found if row["layer"] == ALL_LAYERS] * 2
        shares = [f"{100 * row['ratio']:.0f} %" for row in (first, last)]
        return f"{shares[0]} of layers in epoch {first['epoch']}, {shares[1]} in {last['epoch']}"
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
    out = f"{len(one['points'])} networks"
    for coefficient in correlation.COEFFICIENTS:
        value, ends = one[coefficient], one["intervals"][coefficient]
        out += f", {coefficient} " + ("undefined" if value is None else f"{value:.2f}")
        out += "" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    return out
