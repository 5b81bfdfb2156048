"""How fast networks are here: latency at batch 1 and throughput, in torch as it is, compiled, and in ONNX Runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
from rich.console import Console
from torch import nn

from superformer import files, provenance
from superformer.build import model
from superformer.cost.latency import RUNTIMES, Timing, machine, measure_in_turn
from superformer.errors import SuperformerError, nearest
from superformer.run import Run
from superformer.space.arch import Arch
from superformer.spaces import models
from superformer.stored import load_network
from superformer.trained import load_supernet

BATCHES = (1, 8, 32)
MOST = 8
"""Networks of a front: the most accurate ones."""

Named = tuple[str, str, nn.Module, int]
"""A name, a key, a network and its input size."""


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

    Of a run: its retrained network and its front, or those that ``which`` names (``model`` is the retrained one); also written to its ``bench.json``. All networks are
    measured in turn, ``seconds`` each for every runtime and batch. A runtime that a network cannot run in gives a row with an ``error``.
    """
    if strange := [r for r in runtimes if r not in RUNTIMES]:
        raise SuperformerError(f"unknown runtime {strange[0]!r}: {nearest(strange[0], RUNTIMES)}")
    shown = console or Console(quiet=True)
    networks = _networks(what, which)
    rows: list[dict[str, Any]] = []
    for runtime in runtimes:
        for batch in batches:
            shown.print(f"{runtime}, batch {batch}: {len(networks)} networks", highlight=False, style="dim")
            rows += _rows(networks, runtime, batch, threads, seconds)
    found = {"machine": machine(runtime="onnx" if "onnx" in runtimes else "eager"), "rows": rows}
    if Run(Path(what)).recipe_file.exists():
        provenance.note(Path(what))
        files.write(Path(what) / "bench.json", json.dumps(found, indent=1))
    return found


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each network and runtime: latency at the smallest batch, and the highest throughput of all batches."""
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found["rows"]:
        new = {"name": row["name"], "runtime": row["runtime"], "latency": math.nan, "p90": math.nan, "throughput": 0.0, "batch": 0}
        kept = out.setdefault((row["key"], row["runtime"]), new)
        if "error" in row:
            kept["error"] = row["error"]
            continue
        if math.isnan(kept["latency"]):
            kept |= {"latency": row["median"], "p90": row["p90"]}
        if row["throughput"] > kept["throughput"]:
            kept |= {"throughput": row["throughput"], "batch": row["batch"]}
    return list(out.values())


def _rows(networks: Sequence[Named], runtime: str, batch: int, threads: int, seconds: float) -> list[dict[str, Any]]:
    def row(named: Named, timing: Timing) -> dict[str, Any]:
        times = {"median": timing.median, "p90": timing.p90, "throughput": timing.throughput}
        return {"name": named[0], "key": named[1], "runtime": runtime, "threads": threads, "batch": batch, **times}

    words: dict[str, Any] = {"batch": batch, "threads": threads, "runtime": runtime}
    if len({size for *_, size in networks}) == 1:  # all in turn, if they can
        try:
            times = measure_in_turn([net for _, _, net, _ in networks], networks[0][3], seconds=seconds, **words)
            return [row(named, timing) for named, timing in zip(networks, times, strict=True)]
        except SuperformerError:
            raise
        except Exception:  # one of them cannot: each by itself tells which
            pass
    out = []
    for named in networks:
        try:
            out.append(row(named, measure_in_turn([named[2]], named[3], seconds=seconds, **words)[0]))
        except SuperformerError:
            raise
        except Exception as error:  # a runtime's errors are of many kinds
            why = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
            out.append({"name": named[0], "key": named[1], "runtime": runtime, "threads": threads, "batch": batch, "error": why})
    return out


def _networks(what: str, which: Sequence[str]) -> list[Named]:
    folder = Path(what)
    if Run(folder).recipe_file.exists():
        return _of_run(Run(folder), which)
    if which:
        raise SuperformerError(f"--arch names a network of a run, and {what} is none")
    if (folder / "config.json").exists():
        return [_stored(folder.name, folder)]
    if what in models():
        net = model(what).eval()
        return [(what, net.space.smallest().key, net, net.space.smallest().resolution)]
    if timm.is_model(what):
        other = timm.create_model(what).eval()
        return [(what, what, other, int(timm.data.resolve_model_data_config(other)["input_size"][-1]))]  # type: ignore[no-untyped-call]
    raise SuperformerError(f"{what!r} is no run, no folder with a network, and no model: {nearest(what, models())}; any model of timm, too")


def _of_run(run: Run, which: Sequence[str]) -> list[Named]:
    run.trained()
    out: list[Named] = []
    if not which:
        if (run.folder / "model" / "config.json").exists():
            out.append(_stored("model", run.folder / "model"))
        rows = run.front()["front"][:MOST] if run.front_file.exists() or not out else []
        archs = {row["key"]: Arch.from_json(json.dumps(row["arch"])) for row in rows}
    else:
        out += [_stored("model", run.folder / "model")] if "model" in which else []
        archs = {word: run.arch(word) for word in which if word != "model"}
    net = load_supernet(run.supernet_file)
    known = {key for _, key, _, _ in out}
    return out + [(n, a.key, net.extract(a).eval(), a.resolution) for n, a in archs.items() if a.key not in known]


def _stored(name: str, folder: Path) -> Named:
    net = load_network(folder).net
    arch = net.space.smallest()
    return name, arch.key, net, arch.resolution
