"""Other devices than this one: latency export, latency import."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, say
from superformer.settings import require_alone

HELP = """Measure networks on another device (a phone, a board, a server), and let a search obey it.

1. superformer latency export --run runs/first --out kit writes a kit: networks, a script, a README.

2. On the device, which needs onnxruntime and numpy only: python3 measure.py --out pi5.json

3. superformer latency import --run runs/first pi5.json

4. superformer search --run runs/first --latency-max 8ms device=pi5"""
latency = typer.Typer(no_args_is_help=True, help=HELP)
app.add_typer(latency, name="latency")


@latency.command(name="export")
def export_kit(run: arg.RunFolder, out: arg.KitFolder, networks: arg.KitSize = 32, device: arg.Device = "auto") -> None:
    """Write a kit to measure networks of a run's space elsewhere: ONNX files, measure.py, a README. Interrupted, the
    same words go on.

    Example: superformer latency export --run runs/first --out kit"""
    from superformer.runs import Run

    require_alone("latency export")
    Run.open(run)
    with computing():
        from superformer.progress import teller
        from superformer.runs.devices import export_kit as write_kit

        write_kit(run, out, networks, teller(console))
    say(f"The kit is in {out}; copy it to the device and run there: python3 measure.py --out NAME.json")
    say(f"Next: superformer latency import --run {run} NAME.json", dim=True)


@latency.command(name="import")
def import_times(
    run: arg.RunFolder, file: arg.Measured, name: arg.DeviceName = None, unit: arg.UnitName = None,
    cost: arg.CostName = "latency",
) -> None:  # fmt: skip
    """Let searches of a run obey what was measured on another device. A file that cannot be used changes nothing.

    Example: superformer latency import --run runs/first pi5.json

    Values of your own: a CSV file of lines network,value (values.csv of the kit lists the networks), or a JSON file
    {"values": {network: value}}. In a unit of time they are latencies: --unit ms. Of any other kind they become a cost
    that can be limited and sought: --unit mJ --as energy, then superformer search --cost-max energy=12mJ, or
    objectives=accuracy,energy"""
    from superformer.runs import Run

    Run.open(run)
    with computing():
        from superformer.runs.devices import import_table

        table, place = import_table(run, Path(file), name, cost, unit)
    fit, other = table.fit, table.cost != "latency"
    off = f"off by {100 * fit.median_error:.1f} % (median), rank correlation {fit.rank:.2f}"
    say(f"{table.machine}; threads: {table.threads}, batch: {table.batch}" if unit is None else table.machine)
    say(f"fitted to {fit.networks} networks; on {fit.held_out} others the prediction is {off}")
    say(f"The table is in {place}")
    limit = f"--cost-max {table.cost}={fit.slowest:.3g}{table.unit}" if other else "--latency-max"
    limit += "" if other else f" {1e3 * fit.slowest:.3g}ms device={table.device}"
    if table.batch > 1 and not other:
        limit = f"--throughput-min {table.batch / fit.slowest:.3g} device={table.device} throughput_batch={table.batch}"
    say(f"Next: superformer search --run {shlex.quote(run)} {limit}", dim=True)
