"""A kit to measure networks on another device: a phone, a board, a server.

It holds the networks that a latency table is fitted to (`superformer.cost.latency_table.drawn`) as ONNX files, a script
that times them with ONNX Runtime and numpy alone (`superformer.cost.measure_kit`), and a page that says how. What the
script writes, or values of another kind that somebody measured of these networks, is read here and becomes a table like
those that are measured on this machine."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superformer import files
from superformer.cost.latency_table import MOST, LatencyTable, drawn, held_out, typical
from superformer.cost.runtimes import Size, as_onnx, evaluating, onnxruntime, pictures
from superformer.errors import SuperformerError, shown
from superformer.progress import Tell
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.space.costs import cost
from superformer.spaces import model

FORMAT, VERSION = "superformer-times", 1
KIT, SCRIPT, README, TEMPLATE = "kit.json", "measure.py", "README.md", "values.csv"
NETWORKS = MOST["onnx"]
"""For the fit, as where networks are measured here."""
MOST_NETWORKS = 1000
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of values that are latencies."""


class KitError(SuperformerError):
    """A kit, or a file with values of one, that cannot be used."""


@dataclass(frozen=True)
class Kit:
    """Which networks are measured: ``networks`` for the fit and some more, drawn with ``seed``."""

    space: Space
    num_classes: int
    img_size: Size | None
    networks: int = NETWORKS
    seed: int = 0

    @functools.cached_property
    def archs(self) -> list[Arch]:
        return self.space.decode(drawn(self.space, self.networks, self.seed))

    @functools.cached_property
    def names(self) -> list[str]:
        """Of the networks, with their number and keys: another kit has others."""
        archs = self.archs
        return [f"{k:02d}of{len(archs)}-{arch.key}" for k, arch in enumerate(archs)]

    @functools.cached_property
    def fingerprint(self) -> str:
        size = list(self.img_size) if isinstance(self.img_size, tuple) else self.img_size
        own = {"format": VERSION, "space": json.loads(self.space.to_json()), "classes": self.num_classes, "size": size}
        return files.checksum(own | {"seed": self.seed, "fitted": self.networks, "networks": self.names})

    def write(self, folder: Path, tell: Tell) -> None:
        """The folder of the kit. What an interrupted call has written of the same kit is kept."""
        onnxruntime()
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / KIT).exists())):
            raise KitError(f"{folder} is there, and is no kit: choose a new or an empty folder")
        about: dict[str, Any] = {"fingerprint": self.fingerprint, "seed": self.seed, "fitted": self.networks}
        if (folder / KIT).exists():
            there = files.read_object(folder / KIT, "delete this folder, or choose another")
            if there.get("fingerprint") != about["fingerprint"]:
                raise KitError(f"{folder} holds the kit of another run or space: choose another folder")
        files.make_folder(folder / "networks")
        if not (folder / KIT).exists():
            files.write_object(folder / KIT, {**about, "networks": []})
        archs, names = self.archs, self.names
        macs, entries = cost(self.space, archs, self.num_classes, self.img_size).macs, []
        for k, (arch, name) in enumerate(zip(archs, names, strict=True)):
            file, net = folder / "networks" / f"{name}.onnx", model(arch, self.num_classes)
            x = pictures(net, self.img_size, 2, torch.device("cpu"))
            if not file.exists():
                with evaluating(net), torch.no_grad():
                    program = as_onnx(net, x, any_batch=True)
                files.write_by(file, lambda partial, p=program: p.save(partial))  # type: ignore[misc]
                tell(f"{k + 1} of {len(names)}: {file.name}")
            digest = files.digest(file.read_bytes())
            entries.append({"name": name, "digest": digest, "macs": int(macs[k]), "input": list(x.shape[1:])})
        script = resources.files("superformer") / "cost" / "measure_kit.py"
        files.write(folder / SCRIPT, script.read_text("utf-8"))
        files.write(folder / TEMPLATE, "network,value\n" + "".join(f"{name},\n" for name in names))
        size = sum(f.stat().st_size for f in (folder / "networks").glob("*.onnx"))
        files.write(folder / README, _readme(self, size))
        files.write_object(folder / KIT, {**about, "networks": entries})  # the last: it is whole
        tell(f"{len(names)} networks, {size / 1e6:.1f} MB")

    def table(self, values: Sequence[float], *here: Any, **more: Any) -> LatencyTable:
        """What the networks took, in the order of `names`, as a table (see `LatencyTable.of`)."""
        own = (*here, self.num_classes, self.img_size)
        return LatencyTable.of(self.space, self.networks, self.seed, values, *own, imported=True, **more)


# --- what was measured ---


def read_times(path: Path, kit: Kit, device: str) -> LatencyTable:
    """The table of what the script of a kit wrote; ``kit`` says of which space."""
    how = "run measure.py of this run's kit (superformer latency export), and copy its file again"
    found = files.read_object(path, how, sealed=True)
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        given = f"{shown(found.get('format'))} {shown(found.get('version'))}"
        raise KitError(f"{path} is not of format {FORMAT} {VERSION} but {given}: {how}")
    form = {"kit": str, "seed": int, "fitted": int, "machine": str, "onnxruntime": str, "provider": str}
    form |= {"threads": int, "batch": int, "rounds": int, "networks": dict}
    if not files.has_form(found, form) or not 1 <= found["fitted"] <= MOST_NETWORKS:
        raise KitError(f"{path} does not hold what measure.py writes: {how}")
    own = Kit(kit.space, kit.num_classes, kit.img_size, found["fitted"], found["seed"])
    if own.fingerprint != found["kit"]:
        what = "was measured with the kit of another run, space or picture size"
        raise KitError(f"{path} {what}: superformer latency export writes the kit of this run")
    _complete(path, own, found["networks"], "run measure.py again, it goes on where it was")
    fastest, medians = [], []
    for name in own.names:
        turns = found["networks"][name]
        if not files.has_form(turns, [[int | float]]) or len(turns) != found["rounds"]:
            told = f"{len(turns)} of {found['rounds']} turns" if isinstance(turns, list) else shown(turns)
            raise KitError(f"{path} is not finished ({name}: {told}): run measure.py again, it goes on where it was")
        for turn in turns:
            if len(turn) != 3 or not all(math.isfinite(t) and t > 0 for t in turn):
                raise KitError(f"{path}: {shown(turn)} of {name} are no times: {how}")
        fastest.append(min(least for _, least, _ in turns))
        medians.append(float(np.median([median for median, _, _ in turns])))
    provider = found["provider"].removesuffix("ExecutionProvider")
    machine = f"{found['machine']}, onnxruntime {found['onnxruntime']} ({provider})"
    here = machine, found["threads"], "onnx", device, found["batch"]
    return own.table(typical(fastest, medians), *here)


def read_values(path: Path, kit: Kit, device: str, cost: str, unit: str) -> LatencyTable:
    """The table of values that somebody measured of a kit's networks: a CSV file of lines ``network,value``, or a JSON
    object with ``values``, a number for each network."""
    how = f"give a number for each network of the kit, as {TEMPLATE} of the kit lists them"
    text = files.read(path, how)
    given = _from_json(text, path, how) if text.lstrip().startswith("{") else _from_csv(text, path, how)
    first = next(iter(given), "")
    number = re.match(r"\d{2,3}of(\d{1,4})-", first)
    sizes = [n for n in range(1, MOST_NETWORKS) if number and n + held_out(n) == int(number[1])]
    own = replace(kit, networks=sizes[0] if sizes else kit.networks)
    if strange := [name for name in (first, *given) if name not in own.names]:
        raise KitError(f"{path}: {shown(strange[0])} is no network of this run's kit: {how}")
    _complete(path, own, given, how)
    for name in own.names:
        if not (math.isfinite(given[name]) and given[name] > 0):
            raise KitError(f"{path}: the value of {name} is {given[name]}; it must be a finite number above 0: {how}")
    times = TIMES.get(unit, 1.0) if cost == "latency" else 1.0
    machine = f"{device}, values of {path.name}"
    more = {} if cost == "latency" else {"cost": cost, "unit": unit}
    return own.table([times * given[name] for name in own.names], machine, 1, "onnx", device, 1, **more)


def _complete(path: Path, kit: Kit, given: Mapping[str, Any], how: str) -> None:
    names = kit.names
    if missing := [name for name in names if name not in given]:
        raise KitError(f"{path} lacks {len(missing)} of {len(names)} networks ({missing[0]}): {how}")


def _from_json(text: str, path: Path, how: str) -> dict[str, float]:
    try:
        found = json.loads(text)["values"]
        return {str(name): _number(value) for name, value in found.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KitError(f"{path} is no JSON object with values, a number for each network: {how}") from error


def _from_csv(text: str, path: Path, how: str) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        lines = [line for line in csv.reader(io.StringIO(text)) if line]
    except csv.Error as error:
        raise KitError(f"{path} is no CSV file ({error}): {how}") from error
    for number, line in enumerate(lines, 1):
        if number == 1 and [word.strip() for word in line] == ["network", "value"]:
            continue
        name = line[0].strip()
        try:
            value = _number(line[1]) if len(line) == 2 and name not in found else None
        except ValueError:
            value = None
        if value is None:
            raise KitError(f"{path}, line {number}: {shown(','.join(line))} is not network,value: {how}")
        found[name] = value
    return found


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    return float(value)


def checked_name(name: str, what: str, taken: Sequence[str]) -> str:
    """A name of a device or of a cost: part of a file's name, and one word."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]{0,31}", name):
        rule = "a letter, then letters, digits, _ or ., at most 32"
        raise KitError(f"{what} {shown(name)} is no name ({rule}): give another one")
    if name.lower() in taken:
        raise KitError(f"{what} {shown(name)}: this name means something already: give another one")
    return name


def _readme(kit: Kit, size: int) -> str:
    shape = "x".join(map(str, kit.img_size)) if isinstance(kit.img_size, tuple) else kit.img_size
    return f"""# A kit to measure networks of {kit.space.name or "a space"}

{len(kit.names)} networks ({size / 1e6:.1f} MB; pictures of {shape or "their own"} pixels) of {kit.space.family}, with
random weights: only how long they take matters.

1. Copy this folder to the device. It needs Python 3.8 or newer: `pip install onnxruntime numpy`.
2. `python3 {SCRIPT} --out pi5.json` tells how long it will take, then times all networks in turn. Stopped or killed,
   the same command goes on. `--threads 4`, `--batch 32` (for throughput) and `--provider NAME` say how;
   `python3 {SCRIPT} --help` lists all words. Let the device do nothing else meanwhile.
3. Copy `pi5.json` back, and there: `superformer latency import --run DIR pi5.json --name pi5`, then
   `superformer search --run DIR --latency-max 8ms device=pi5`.

Another cost, such as energy: `python3 {SCRIPT} --hold 07 --seconds 30` runs one network again and again while you read
a meter, and tells how many runs there were. Write the value of every network into `{TEMPLATE}`, and then:
`superformer latency import --run DIR {TEMPLATE} --unit mJ --as energy --name pi5`, and
`superformer search --run DIR --cost-max energy=12mJ`.
"""
