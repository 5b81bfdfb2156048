"""Which networks a word means: a published model, one of timm's, a folder with a network, those of a run. Nothing heavy
is imported."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
from rich.console import Console
from torch import nn

from superformer import files
from superformer.cost.latency import Job, Timing, measure_jobs
from superformer.errors import SuperformerError, nearest
from superformer.files import CONFIG
from superformer.machine import machine
from superformer.progress import doing, teller
from superformer.runs.folder import Run, note_command
from superformer.runs.storage import load_network, load_supernet
from superformer.settings import RUNTIMES
from superformer.space.arch import Arch
from superformer.spaces import model, models

MOST = 8
"""Networks of a front: the most accurate ones."""


class Meant(NamedTuple):
    """A sub-network (of the run that was named), a folder with a network, or else a model by its name."""

    name: str
    arch: Arch | None = None
    folder: Path | None = None


def networks(what: str, which: Sequence[str] = (), runtimes: Sequence[str] = ()) -> list[Meant]:
    """The networks that ``what`` means; of a run, those that ``which`` names, or its retrained one and its front. A
    mistake is an error."""
    if strange := [r for r in runtimes if r not in RUNTIMES]:
        raise SuperformerError(f"unknown runtime {strange[0]!r}: {nearest(strange[0], RUNTIMES)}")
    folder = Path(what)
    if Run(folder).recipe_file.exists():
        return _of_run(Run(folder), which)
    if which:
        raise SuperformerError(f"--arch names a network of a run, and {what} is none")
    if (folder / CONFIG).exists():
        return [Meant(folder.resolve().name, folder=folder)]
    if what in models() or what.partition(".")[0] in _named_by_timm():
        return [Meant(what)]
    if folder.is_dir():
        raise SuperformerError(
            f"{what} holds neither a run (recipe.yaml) nor a network ({CONFIG} and model.safetensors)"
        )
    raise unknown(what)


def unknown(what: str) -> SuperformerError:
    """That no network has this name."""
    near = difflib.get_close_matches(what, [*models(), *_named_by_timm()], n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SuperformerError(
        f"{what!r} is no model and no folder: {hint}possible: {', '.join(models())}; any model of timm; the folder of a run or of a network"
    )


def _of_run(run: Run, which: Sequence[str]) -> list[Meant]:
    if which:
        return [
            Meant("model", folder=run.model_folder()) if word == "model" else Meant(word, run.arch(word)) for word in which
        ]
    run.require_trained()
    out = [Meant("model", folder=run.model_folder())] if run.retrained else []
    rows = run.front()["front"][:MOST] if run.front_file.exists() or not out else []
    return out + [Meant(row["key"], Arch.from_json(json.dumps(row["arch"]))) for row in rows]


def _named_by_timm() -> set[str]:
    """The names of timm's models, and those that were registered with it since it was imported."""
    loaded = sys.modules.get("timm")
    return written_by_timm() | (set() if loaded is None else set(loaded.list_models()))


@functools.cache
def written_by_timm() -> set[str]:
    """The names of timm's models, those of before included, read from its files: importing it takes seconds."""
    found = importlib.util.find_spec("timm")
    folders = (found.submodule_search_locations if found is not None else None) or []
    texts = [file.read_text("utf-8") for folder in folders for file in Path(folder, "models").glob("*.py")]
    names = {name for text in texts for name in re.findall(r"^@register_model\ndef (\w+)", text, re.M)}
    lists = [
        old
        for text in texts
        for old in re.findall(r"^register_model_deprecations\(__name__, \{(.*?)^\}", text, re.M | re.S)
    ]
    return names | {name for old in lists for name in re.findall(r"'(\w+)'\s*:", old)}


# How fast networks are here: latency at batch 1 and throughput, in torch as it is, compiled, and in ONNX Runtime.
#
# All networks, runtimes and batches are measured in turn (`superformer.cost.latency`), so that they can be compared
# on a busy machine, too.


BATCHES = (1, 32)
"""Pictures at once: latency is told of the smallest, throughput of the best."""
AT_A_TIME = 250_000_000
"""Parameters of networks that are measured in turn; more of them are measured in groups."""


class Named(NamedTuple):
    """A network, its input size, and how rows tell what it is."""

    name: str
    key: str
    net: nn.Module
    img_size: int | tuple[int, int]


def bench(
    what: str,
    runtimes: Sequence[str] = RUNTIMES,
    threads: int = 1,
    batches: Sequence[int] = BATCHES,
    seconds: float = 0.5,
    which: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, Any]:
    """Times of a published model, a model of timm, a folder with a stored network, or a run.

    Of a run: its retrained network and its front, or those that ``which`` names (``model`` is the retrained one); also
    written to its ``bench.json``. All networks are measured in turn, ``seconds`` each for every runtime and batch. A
    runtime that a network cannot run in gives a row with an ``error``."""
    meant = networks(what, which, runtimes)
    if not runtimes or not batches or min(batches) < 1 or threads < 1 or not seconds > 0:
        raise SuperformerError("runtimes and batches must be given, and batches, threads and seconds must be positive")
    shown = console or Console(quiet=True)
    rows: list[dict[str, Any]] = []
    for group in _groups(_made(meant, what)):
        rows += _rows(group, runtimes, threads, sorted(set(batches)), seconds, shown)
    found = {"machine": machine(runtime="onnx" if any(_ran(row, "onnx") for row in rows) else "eager"), "rows": rows}
    if Run(Path(what)).recipe_file.exists():
        note_command(Path(what))
        files.write(Path(what) / "bench.json", json.dumps(found, indent=1))
    return found


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each network and runtime: latency at the smallest batch, and the highest throughput of all batches."""
    out: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in found["rows"]:
        new = {
            "name": row["name"],
            "runtime": row["runtime"],
            "latency": math.nan,
            "p90": math.nan,
            "throughput": 0.0,
            "batch": 0,
        }
        kept = out.setdefault((row["name"], row["key"], row["runtime"]), new)
        if "error" in row:
            kept["error"] = row["error"]
            continue
        if math.isnan(kept["latency"]):
            kept |= {"latency": row["median"], "p90": row["p90"]}
        if row["throughput"] > kept["throughput"]:
            kept |= {"throughput": row["throughput"], "batch": row["batch"]}
    return list(out.values())


# --- measuring ---


def _ran(row: dict[str, Any], runtime: str) -> bool:
    return bool(row["runtime"] == runtime and "error" not in row)


def _groups(networks: Sequence[Named]) -> Iterator[list[Named]]:
    group: list[Named] = []
    for named in networks:
        group.append(named)
        if sum(p.numel() for other in group for p in other.net.parameters()) > AT_A_TIME:
            yield group
            group = []
    if group:
        yield group


def _rows(
    networks: Sequence[Named],
    runtimes: Sequence[str],
    threads: int,
    batches: Sequence[int],
    seconds: float,
    console: Console,
) -> list[dict[str, Any]]:
    who = [(named, runtime) for named in networks for runtime in runtimes]
    jobs = [Job(named.net, runtime, tuple(batches), named.img_size) for named, runtime in who]
    log = (lambda text: None) if console.is_terminal else teller(console)
    with doing(console) as tell:

        def making(k: int) -> None:
            text = f"making ready {k + 1} of {len(jobs)}: {who[k][0].name}, {who[k][1]}"
            tell(text)
            log(text)

        found = measure_jobs(
            jobs,
            threads=threads,
            seconds=seconds,
            making=making,
            progress=lambda done: tell(f"measuring all of them in turn: {100 * done:.0f} %"),
            forgiving=True,
        )
    if all(isinstance(some, SuperformerError) for some in found):
        raise next(some for some in found if isinstance(some, SuperformerError))
    rows = []
    for (named, runtime), some in zip(who, found, strict=True):
        own = {"name": named.name, "key": named.key, "runtime": runtime, "threads": threads}
        for k, batch in enumerate(batches):
            rows.append(
                {**own, "batch": batch, **({"error": _why(some)} if isinstance(some, Exception) else _times(some[k]))}
            )
    return rows


def _times(timing: Timing) -> dict[str, float]:
    return {"median": timing.median, "p90": timing.p90, "throughput": timing.throughput}


def _why(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")[:200]
    return first if isinstance(error, SuperformerError) else f"{type(error).__name__}: {first}"


# --- the networks ---


def _made(meant: Sequence[Meant], what: str) -> list[Named]:
    out = [_one(m) for m in meant if m.arch is None]
    archs = {m.name: m.arch for m in meant if m.arch is not None and m.arch.key not in {named.key for named in out}}
    if archs:
        net = load_supernet(Run(Path(what)).supernet_file)
        out += [_own(name, net.extract(arch).eval()) for name, arch in archs.items()]
    return out


def _one(meant: Meant) -> Named:
    if meant.folder is not None:
        return _own(meant.name, load_network(meant.folder).net)
    if meant.name in models():
        return _own(meant.name, model(meant.name).eval())
    if not timm.is_model(meant.name):
        raise unknown(meant.name)
    other = timm.create_model(meant.name).eval()
    height, width = timm.data.resolve_model_data_config(other)["input_size"][-2:]  # type: ignore[no-untyped-call]
    return Named(meant.name, meant.name, other, (int(height), int(width)))


def _own(name: str, net: Any) -> Named:
    arch = net.space.smallest()
    return Named(name, arch.key, net, arch.resolution)
