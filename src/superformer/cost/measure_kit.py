#!/usr/bin/env python3
"""Times the networks of this kit on this device. Needs Python 3.8 or newer, onnxruntime and numpy; nothing else.

python3 measure.py --out pi5.json

Stopped or killed, the same command goes on where it was. Take the file that it writes back to the computer with the
run: superformer latency import --run DIR pi5.json. (superformer copies this file into every kit; it imports nothing of
it.)"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

FORMAT, VERSION = "superformer-times", 1
HERE = Path(__file__).resolve().parent
WARM_UP, LEAST_SECONDS = 3, 0.05
"""Runs before the first that counts; how long a turn takes at least."""


def main() -> None:
    asked = words()
    kit = read_kit()
    try:
        if asked.hold:
            hold(kit, asked)
        else:
            measure(kit, asked)
    except KeyboardInterrupt:
        sys.exit("measure.py: stopped; the same command goes on")


def words() -> argparse.Namespace:
    text = "Times the networks of this kit on this device; stopped or killed, the same command goes on."
    parser = argparse.ArgumentParser(prog="measure.py", description=text)
    parser.add_argument("--out", metavar="FILE.json", default="times.json", help="the file to write")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (1)")
    parser.add_argument("--batch", type=int, default=1, help="pictures at once (1; for throughput 32)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each network has its turn (5)")
    parser.add_argument("--repeats", type=int, default=10, help="runs of a turn, at least (10)")
    parser.add_argument("--provider", default="CPUExecutionProvider", help="of ONNX Runtime (CPUExecutionProvider)")
    parser.add_argument("--hold", metavar="NETWORK", help="run one network again and again, to read a meter meanwhile")
    parser.add_argument("--seconds", type=float, default=30.0, help="with --hold: how long (30)")
    asked = parser.parse_args()
    for name in ("threads", "batch", "rounds", "repeats", "seconds"):
        if not 0 < getattr(asked, name) < 1e6:
            parser.error(f"--{name} must be a positive number")
    if asked.provider not in onnxruntime.get_available_providers():
        parser.error("--provider: this onnxruntime has " + ", ".join(onnxruntime.get_available_providers()))
    return asked


# --- files ---


def checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read(path: Path, what: str) -> dict[str, Any]:
    """A JSON object as it was written."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if found.pop("checksum", None) == checksum(found):
            return dict(found)
    except (OSError, ValueError, AttributeError):
        pass
    sys.exit(f"measure.py: {path} is damaged: {what}")


def write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w") as file:
        file.write(json.dumps(dict(content, checksum=checksum(content)), indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_kit() -> dict[str, Any]:
    kit = read(HERE / "kit.json", "copy the kit again")
    for entry in kit["networks"]:
        file = HERE / "networks" / (entry["name"] + ".onnx")
        if not file.is_file() or hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() != entry["digest"]:
            sys.exit(f"measure.py: {file} is missing or damaged: copy the kit again")
    return kit


def device() -> str:
    """What this is, without its name in the network."""
    name = ""
    for path in ("/proc/device-tree/model", "/proc/cpuinfo"):
        try:
            text = Path(path).read_text().strip("\0\n")
        except OSError:
            continue
        named = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
        name = name or (text if path.endswith("model") else (named or [""])[0])
    name = " ".join((name or platform.processor() or "unknown processor").split())
    return f"{name} ({os.cpu_count() or 1} threads), {platform.system()} {platform.machine()}"


# --- running networks ---


class Network:
    """One that is ready to run."""

    def __init__(self, entry: dict[str, Any], asked: argparse.Namespace):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = asked.threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_free_dimension_override_by_name("batch", asked.batch)
        options.log_severity_level = 3
        file = str(HERE / "networks" / (entry["name"] + ".onnx"))
        self.session = onnxruntime.InferenceSession(file, options, providers=[asked.provider])
        shape = [asked.batch] + list(entry["input"])
        pictures = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        self.feed = {self.session.get_inputs()[0].name: pictures}

    def run(self) -> float:
        """Seconds of one run."""
        before = time.perf_counter()
        self.session.run(None, self.feed)
        return time.perf_counter() - before

    def turn(self, repeats: int) -> list[float]:
        """The median and the fastest of some runs, and how many there were."""
        for _ in range(WARM_UP):
            self.run()
        gc.collect()
        gc.disable()
        times: list[float] = []
        while len(times) < repeats or sum(times) < LEAST_SECONDS:
            times.append(self.run())
        gc.enable()
        return [statistics.median(times), min(times), len(times)]


def forecast(kit: dict[str, Any], asked: argparse.Namespace) -> float:
    """Seconds that one round takes, from the networks with the fewest and the most MACs."""
    ends = sorted(kit["networks"], key=lambda entry: float(entry["macs"]))
    seconds = []
    for entry in (ends[0], ends[-1]):
        begin = time.perf_counter()
        network = Network(entry, asked)
        network.run()
        ready, run = time.perf_counter() - begin, network.run()
        seconds.append(ready + (WARM_UP - 1) * run + max(asked.repeats * run, LEAST_SECONDS))
    span = ends[-1]["macs"] - ends[0]["macs"] or 1
    share = sum((entry["macs"] - ends[0]["macs"]) / span for entry in ends)
    return float(seconds[0] * (len(ends) - share) + seconds[1] * share)


def said(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def tell(text: str, passing: bool = False) -> None:
    """On standard error; what is passing stays on its line of a terminal, and is left out of a log."""
    terminal = sys.stderr.isatty()
    if terminal or not passing:
        sys.stderr.write(("\r\x1b[K" if terminal else "") + text + ("" if passing else "\n"))
        sys.stderr.flush()


def measure(kit: dict[str, Any], asked: argparse.Namespace) -> None:
    """Every network has its turn in every round, each round in another order: what a device does meanwhile (heat, other
    work) meets all of them."""
    out, entries = Path(asked.out), {entry["name"]: entry for entry in kit["networks"]}
    names = list(entries)
    how = {name: getattr(asked, name) for name in ("threads", "batch", "rounds", "repeats", "provider")}
    how.update({"kit": kit["fingerprint"], "machine": device(), "onnxruntime": onnxruntime.__version__})
    how.update({"numpy": np.__version__, "python": platform.python_version()})
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "finished": False, "networks": {}}
    found.update({"seed": kit["seed"], "fitted": kit["fitted"]}, **how)
    if out.exists():
        found = read(out, "delete it, or give another --out")
        other = [name for name in how if found.get(name) != how[name]]
        if other:
            told = ", ".join(f"{name} {found.get(name)}" for name in other)
            sys.exit(f"measure.py: {out} was begun with {told}: give the same words, or another --out")
    rounds = found["networks"]
    done = sum(map(len, rounds.values()))
    whole, begin = asked.rounds * len(names), time.perf_counter()
    if done < whole:
        left = forecast(kit, asked) * (whole - done) / len(names)
        tell(f"{len(names)} networks, {asked.rounds} rounds, threads: {asked.threads}, batch: {asked.batch}")
        tell(f"about {said(left)} ({done} of {whole} turns are done); stop it any time, the same command goes on")
    first = done
    for number in range(asked.rounds):
        order = list(names)
        random.Random(number).shuffle(order)
        for name in order:
            own = rounds.setdefault(name, [])
            if len(own) > number:
                continue
            own.append(Network(entries[name], asked).turn(asked.repeats))
            done += 1
            found["finished"] = done == whole
            write(out, found)
            rest = (time.perf_counter() - begin) / (done - first) * (whole - done)
            tell(f"round {number + 1} of {asked.rounds}, {said(rest)} left: {name}", passing=True)
        tell(f"round {number + 1} of {asked.rounds} is done")
    tell(f"The times are in {out}. Next: superformer latency import --run DIR {out.name}")


def hold(kit: dict[str, Any], asked: argparse.Namespace) -> None:
    """One network again and again, for what a meter shows: energy, heat."""
    entries = {entry["name"]: entry for entry in kit["networks"]}
    chosen = [name for name in entries if name.startswith(asked.hold)]
    if len(chosen) != 1:
        sys.exit(f"measure.py: --hold {asked.hold}: the networks are {', '.join(entries)}")
    network, begin, runs = Network(entries[chosen[0]], asked), time.perf_counter(), 0
    tell(f"{chosen[0]}, for {said(asked.seconds)}")
    while time.perf_counter() - begin < asked.seconds:
        network.run()
        runs += 1
    tell(f"{runs} runs in {time.perf_counter() - begin:.3f} s")


if __name__ == "__main__":
    main()
