"""How fast networks are here: latency at batch 1 and throughput, in torch as it is, compiled, and in ONNX Runtime.

All are measured in turn (`superformer.cost.latency`), so that they can be compared on a busy machine, too."""

from __future__ import annotations

import difflib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
from rich.console import Console
from torch import nn

import superformer.interop.timm  # noqa: F401  # timm knows our models, too
from superformer import files
from superformer.cost.latency import Job, measure_jobs
from superformer.cost.runtimes import measuring_device
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.interop.export import export
from superformer.interop.int8 import add_int8, check
from superformer.kernels import device_name
from superformer.machine import machine
from superformer.progress import doing, quiet, teller
from superformer.runs import Run, note_command
from superformer.runs.processes import device_here
from superformer.runs.storage import load_network, load_supernet
from superformer.settings import RUNTIMES
from superformer.space.arch import Arch
from superformer.spaces import model, models
from superformer.train.retrain import network_to_export

BATCHES = (1, 32)
"""Pictures at once: latency is told of the smallest, throughput of the best."""
FRONT_NETWORKS = 8
"""Networks of a front: the most accurate ones."""
PARAMS_AT_A_TIME = 250_000_000
"""Parameters of networks that are measured in turn; more of them are measured in groups."""


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
    written to its ``bench.json``. Each is measured for ``seconds`` in every runtime and batch; where it cannot run,
    the row has an ``error``."""
    sources = network_sources(what, which)
    if not runtimes or not batches or min(batches) < 1 or threads < 1 or not seconds > 0:
        raise SuperformerError("runtimes and batches must be given, and batches, threads and seconds must be positive")
    rows, once = list[dict[str, Any]](), tuple(sorted(set(batches)))
    for group in _groups(_load(sources, what)):
        pairs = [(network, runtime) for network in group for runtime in runtimes]
        rows += _measure(pairs, threads, once, seconds, quiet(console))
    onnx_ran = any(row["runtime"] == "onnx" and "error" not in row for row in rows)
    found = {"machine": machine(device_name(device_here()), "onnx" if onnx_ran else "eager"), "rows": rows}
    if Run(Path(what)).recipe_file.exists():
        note_command(Path(what))
        files.write_object(Path(what) / "bench.json", found)
    return found


def bench_int8(
    what: str, how: str, threads: int, seconds: float, which: Sequence[str] = (), console: Console | None = None
) -> list[dict[str, Any]]:
    """Networks of a run, and the same in 8 bits: a row each (see `superformer.interop.int8.add_int8`)."""
    check(how)
    rows, run = [], Run.open(what)
    for name, arch, _ in network_sources(what, which):
        network = network_to_export(what, None if arch is None else name)
        with tempfile.TemporaryDirectory() as folder:
            export(network, folder, "onnx", console)
            about = {"threads": threads, "seconds": seconds, "console": console}
            rows.append(add_int8(run, network, Path(folder), name, how, **about))  # type: ignore[arg-type]
    return rows


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each network and runtime: latency at the smallest batch, and the highest throughput of all batches."""
    out: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in found["rows"]:
        new = {"name": row["name"], "runtime": row["runtime"], "latency": math.nan, "p90": math.nan, "device": "cpu"}
        kept = out.setdefault((row["name"], row["key"], row["runtime"]), {**new, "throughput": 0.0, "batch": 0})
        if "error" in row:
            kept["error"] = row["error"]
            continue
        if math.isnan(kept["latency"]):
            kept |= {"latency": row["median"], "p90": row["p90"], "device": row.get("device", "cpu")}
        if row["throughput"] > kept["throughput"]:
            kept |= {"throughput": row["throughput"], "batch": row["batch"]}
    return list(out.values())


class NetworkSource(NamedTuple):
    """Where a network comes from: an architecture of the run that was named, a folder, or else a model's name."""

    name: str
    arch: Arch | None = None
    folder: Path | None = None


class BenchedNetwork(NamedTuple):
    """A network, its input size, and how rows tell what it is."""

    name: str
    key: str
    net: nn.Module
    img_size: int | tuple[int, int]


Pairs = list[tuple[BenchedNetwork, str]]
"""Networks and runtimes."""
Batches = tuple[int, ...]


def network_sources(what: str, which: Sequence[str] = ()) -> list[NetworkSource]:
    """The networks that ``what`` means; of a run, those that ``which`` names, or its retrained one and its front."""
    run = Run(Path(what))
    if run.recipe_file.exists():
        if which:
            sources = []
            for word in which:
                arch = None if word == "model" else run.arch(word)
                sources.append(NetworkSource(word, arch, run.model_folder() if arch is None else None))
            return sources
        run.require_trained()
        out = [NetworkSource("model", folder=run.model_folder())] if run.retrained else []
        rows = run.front()["front"][:FRONT_NETWORKS] if run.front_file.exists() or not out else []
        return out + [NetworkSource(row["key"], Arch.from_json(json.dumps(row["arch"]))) for row in rows]
    if which:
        raise SuperformerError(f"--arch names a network of a run, and {what} is none")
    if (run.folder / CONFIG).exists():
        return [NetworkSource(run.folder.resolve().name, folder=run.folder)]
    if what in models() or timm.is_model(what):
        return [NetworkSource(what)]
    if run.folder.is_dir():
        network = f"a network ({CONFIG} and model.safetensors)"
        raise SuperformerError(f"{what} holds neither a run (recipe.yaml) nor {network}")
    near = difflib.get_close_matches(what, [*models(), *timm.list_models()], n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    possible = f"{', '.join(models())}; any model of timm; the folder of a run or of a network"
    raise SuperformerError(f"{what!r} is no model and no folder: {hint}possible: {possible}")


def _load(sources: Sequence[NetworkSource], what: str) -> list[BenchedNetwork]:
    """All of them; an architecture of the run that is in a folder, too, is not measured twice."""

    def ours(name: str, net: Network) -> BenchedNetwork:
        arch = net.space.smallest()
        return BenchedNetwork(name, arch.key, net, arch.resolution)

    out = []
    for name, arch, folder in sources:
        if folder is not None:
            out.append(ours(name, load_network(folder).net))
        elif arch is None and name in models():
            out.append(ours(name, model(name).eval()))
        elif arch is None:
            net = timm.create_model(name).eval()
            height, width = timm.data.resolve_model_data_config(net)["input_size"][-2:]  # type: ignore[no-untyped-call]
            out.append(BenchedNetwork(name, name, net, (int(height), int(width))))
    known = {network.key for network in out}
    archs = {name: arch for name, arch, _ in sources if arch is not None and arch.key not in known}
    if archs:
        supernet = load_supernet(Run(Path(what)).supernet_file)
        out += [ours(name, supernet.extract(arch).eval()) for name, arch in archs.items()]
    return out


def _groups(networks: Sequence[BenchedNetwork]) -> Iterator[list[BenchedNetwork]]:
    group: list[BenchedNetwork] = []
    for network in networks:
        group.append(network)
        if sum(p.numel() for other in group for p in other.net.parameters()) > PARAMS_AT_A_TIME:
            yield group
            group = []
    if group:
        yield group


def _measure(pairs: Pairs, threads: int, batches: Batches, seconds: float, console: Console) -> list[dict[str, Any]]:
    """A row for each network, runtime and batch."""
    here = device_here()
    jobs = [Job(n.net, runtime, batches, n.img_size, measuring_device(None, here, runtime)) for n, runtime in pairs]
    with doing(console) as tell:

        def making(k: int) -> None:
            text = f"making ready {k + 1} of {len(jobs)}: {pairs[k][0].name}, {pairs[k][1]}"
            tell(text)
            if not console.is_terminal:
                teller(console)(text)

        def progress(done: float) -> None:
            tell(f"measuring all of them in turn: {100 * done:.0f} %")

        found = measure_jobs(jobs, threads=threads, seconds=seconds, making=making, progress=progress, forgiving=True)
    mistakes = [result for result in found if isinstance(result, SuperformerError)]
    if len(mistakes) == len(found):
        raise mistakes[0]
    rows: list[dict[str, Any]] = []
    for (network, runtime), result in zip(pairs, found, strict=True):
        own = {"name": network.name, "key": network.key, "runtime": runtime, "threads": threads}
        if isinstance(result, Exception):
            why = next(iter(str(result).splitlines()), "")[:200]
            why = why if isinstance(result, SuperformerError) else f"{type(result).__name__}: {why}"
            rows += [{**own, "batch": batch, "error": why} for batch in batches]
            continue
        for batch, time in zip(batches, result, strict=True):
            times = {"median": time.median, "p90": time.p90, "throughput": time.throughput, "device": time.device}
            rows.append({**own, "batch": batch, **times})
    return rows
