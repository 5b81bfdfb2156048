"""What was measured elsewhere, in a run: kits for other devices, and the tables of what came back.

A device that was imported has a name; its tables lie beside those that were measured here, under that name
(``latency-onnx-1-1-pi5.json``). Another cost than latency has a table of its own (``cost-energy.json``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from superformer.cost.kit import NETWORKS, TIMES, Kit, KitError, checked_name, read_times, read_values
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.errors import SuperformerError, shown
from superformer.progress import Tell
from superformer.recipes.searching import COSTS, Options
from superformer.runs import Run, note_command, stored

TORCHS = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "meta", "xla", "vulkan", "hip", "ipu", "privateuseone")
"""Devices by torch's own names."""
OURS = (*COSTS, "accuracy", "loss", "key", "arch", "measured", "measured_throughput")
"""Members of a row of a front."""


def kit_of(run: Run, networks: int = NETWORKS) -> Kit:
    """The kit of a run's space, at the size of its pictures."""
    return Kit(run.space(), max(len(run.facts()["classes"]), 1), run.input_size(), networks)


def export_kit(folder: str | Path, out: str | Path, networks: int = NETWORKS, tell: Tell = lambda text: None) -> Kit:
    """Write a kit of networks of a run's space into a folder."""
    kit = kit_of(Run.open(folder), networks)
    kit.write(Path(out), tell)
    return kit


def import_table(
    folder: str | Path, file: str | Path, device: str | None = None, cost: str = "latency", unit: str | None = None
) -> tuple[LatencyTable, Path]:
    """Make a search of a run obey what was measured elsewhere: the table, and where it is now.

    ``file`` is what the script of a kit wrote; with a ``unit``, values that were measured otherwise: of latency in s,
    ms or us, or of another ``cost``. ``device``: its name, else that of the file. A file that cannot be used changes
    nothing."""
    run, path = Run.open(folder), Path(file)
    name = checked_name(device if device is not None else path.stem, "the device", TORCHS)
    if cost == "latency":
        if unit is not None and unit not in TIMES:
            raise KitError(f"--unit {shown(unit)}: latency is in {', '.join(TIMES)}; --as gives another cost its name")
    else:
        checked_name(cost, "--as", OURS)
        if unit is None or not unit.isprintable() or not 0 < len(unit.strip()) <= 12:
            raise KitError(f"--as {cost} needs its unit, such as --unit mJ; {shown(unit)} was given")
    if unit is None:
        table = read_times(path, kit_of(run), name)
    else:
        table = read_values(path, kit_of(run), name, cost, unit.strip())
    place = (
        f"cost-{cost}.json" if cost != "latency" else LatencyTable.file_name("onnx", table.threads, table.batch, name)
    )
    with run.lock():
        table.save(run.folder / place)
        note_command(run.folder)
    return table, run.folder / place


# --- what a search asks for ---


def cost_names(run: Run) -> list[str]:
    """The costs that only this run knows."""
    return [path.stem.removeprefix("cost-") for path in sorted(run.folder.glob("cost-*.json"))]


def imported_costs(run: Run, names: Iterable[str]) -> dict[str, LatencyTable]:
    """The tables of these costs; those that are not imported have none."""
    found = {}
    for name in sorted(set(names) & set(cost_names(run))):
        path = run.folder / f"cost-{name}.json"
        raw = stored.read(path)
        conditions = {word: raw.get(word) for word in ("threads", "runtime", "device", "batch")}
        found[name] = LatencyTable.load(path, **conditions)  # type: ignore[arg-type]
    return found


def has_own_name(device: str | None) -> bool:
    """Whether it can only be an imported one."""
    return device is not None and device.partition(":")[0].lower() not in TORCHS


def of_device(run: Run, options: Options, names: tuple[str, ...]) -> Options | None:
    """The options of a search on an imported device, with the runtime and threads of its tables; None if it is one of
    torch's. ``names``: what is predicted, latency or throughput."""
    word = options.device
    if not has_own_name(word):
        return None
    there = [stored.read(path) for path in sorted(run.folder.glob("latency-*.json"))]
    devices = sorted({str(raw["device"]) for raw in there if raw.get("imported")})
    if word not in devices:
        known = f"imported devices of this run: {', '.join(devices)}" if devices else "this run has no imported device"
        how = "superformer latency export and latency import add one; or use device=cpu"
        raise SuperformerError(f"device={word} cannot be used here ({known}): {how}")
    given = {name: getattr(options, name) for name in ("threads", "runtime") if name in options.model_fields_set}
    own = [raw for raw in there if raw["device"] == word and all(raw[name] == v for name, v in given.items())]
    batches = {"latency": options.batch, "throughput": options.throughput_batch}
    fitting = [{(raw["runtime"], raw["threads"]) for raw in own if raw["batch"] == batches[name]} for name in names]
    chosen = sorted(set.intersection(*fitting)) if fitting else []
    if len(chosen) != 1 and names:
        have = "; ".join(f"threads={raw['threads']} batch={raw['batch']}" for raw in there if raw["device"] == word)
        asked = ", ".join(f"{name} of batch {batches[name]}" for name in names)
        how = "say threads=..." if chosen else "measure it with measure.py --batch ... --threads ..., and import that"
        raise LatencyError(f"device={word} has {len(chosen)} tables for {asked} (there are {have}): {how}")
    runtime, threads = chosen[0] if chosen else (options.runtime, options.threads)
    return options.model_copy(update={"runtime": runtime, "threads": threads})


def read_limit(text: str, run: Run) -> tuple[str, tuple[float, float]]:
    """``energy=12mJ``: the most of an imported cost, in its unit."""
    name, _, value = text.partition("=")
    if not (costs := imported_costs(run, [name])):
        known = ", ".join(cost_names(run)) or "none; superformer latency import --as NAME --unit UNIT adds one"
        raise SuperformerError(f"--cost-max {shown(text)}: imported costs of this run are {known}")
    unit = costs[name].unit
    try:
        high = float(value.strip().removesuffix(unit))
    except ValueError:
        high = float("nan")
    if not 0 < high < float("inf"):
        raise SuperformerError(f"--cost-max {shown(text)}: give an amount such as {name}=12{unit}")
    return name, (0.0, high)
