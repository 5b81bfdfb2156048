"""What a training will take, before it starts: plan."""

from __future__ import annotations

import json
from typing import Any

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, progress_console, say, table
from superformer.errors import amount
from superformer.progress import doing

SECONDS = 60.0
"""That measuring the device at hand may take."""


@app.command()
def plan(
    recipe: arg.RecipeName, data: arg.PlanData = None, devices: arg.PlanDevices = "1xA100-80GB",
    changes: arg.Changes = None, measure: arg.Measure = False, as_json: arg.Json = False,
    device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Tell what a training will take before it starts: steps, work, memory on each device, time, disk.

    Example: superformer plan --recipe s3 --devices 8xA100-80GB

    Steps, work and memory come from one real step of the recipe, done on tensors without numbers; time from the
    device's published peaks, with what is assumed. --measure times real steps on the device at hand instead, for about
    a minute. Where memory is too small: what to change."""
    with computing():
        from superformer.planning import plan as planned

        with doing(progress_console(as_json), "tracing a step"):
            found = planned(recipe, data, devices, changes or [], SECONDS if measure else None)
    if as_json:
        print(json.dumps(found))
        return
    _show(found)


def _show(found: dict[str, Any]) -> None:
    from superformer.train.time_budget import say_time

    memory = {k: v for k, v in found["memory"].items() if v}
    console.print(table([{"of each device": k, "": f"{amount(v)}B"} for k, v in memory.items()], "Memory at the peak"))
    rows = [
        ("pictures", f"{found['pictures']:,} ({found['data']})"),
        ("steps", f"{found['steps']:,} of {found['batch']:,} pictures, {found['epochs']:.4g} epochs"),
        ("a step", f"{amount(found['macs_a_step'])} MACs, {amount(found['bytes_moved_a_step'])}B moved, "
                   f"{found['launches']:,} operations on each device"),
        ("between devices", f"{amount(found['bytes_sent_a_step'])}B a step from each"),
        ("time", f"{say_time(3600 * found['hours'])} ({1e3 * found['seconds_a_step']:.3g} ms a step), "
                 f"{found['device_hours']:.3g} device-hours"),
        ("disk", f"{amount(found['disk'])}B of checkpoints"),
    ]  # fmt: skip
    console.print(table([{"what": a, "how much": b} for a, b in rows], f"{found['recipe']} on {found['devices']}"))
    for line in found["assumed"]:
        say(f"assumed: {line}", dim=True)
    if not found["fits"]:
        needed, kind = amount(found["memory"]["total"]), found["devices"].partition("x")[2]
        say(f"{needed}B do not fit into a {kind}. What does:" if found["changes"] else f"{needed}B do not fit.")
        for row in found["changes"]:
            say(f"  {' '.join(row['words'])}: {amount(row['total'])}B, {say_time(3600 * row['hours'])}")
