"""From a pretrained network and pictures to faster ones: fit."""

from __future__ import annotations

import json

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, minutes_of, percent, progress_console, say, table
from superformer.settings import read_amount, read_seconds, require_alone


@app.command()
def fit(
    model: arg.FitModel, data: arg.DataSpec, run: arg.RunFolder, latency_max: arg.LatencyMax = None,
    macs_max: arg.MacsMax = None, speed_up: arg.SpeedUp = 2.0, networks: arg.FrontNetworks = 3,
    hours: arg.Hours = None, minutes: arg.Minutes = None, checkpoint: arg.Checkpoint = None,
    img_size: arg.ImgSize = None, runtime: arg.FitRuntime = "eager", changes: arg.Changes = None,
    as_json: arg.Json = False, device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Fit a pretrained network to your pictures and your device: a front of faster networks that still know what it
    knew. Killed, the same words go on.

    Example: superformer fit vit_tiny_patch16_224 --data pets/ --run runs/pets --speed-up 2 --hours 1

    The network is tuned on your pictures, and teaches what follows: a supernet of smaller ones around it, which keep
    what matters most on your pictures; a search among them; and the best of them, trained by themselves. The winner
    within the limit is in DIR/model. key=value words change the training of the supernet and of the networks,
    original.key=value words that of the original; --macs-max or --latency-max name a limit instead of a speed-up."""
    require_alone("fit")
    time = minutes_of(hours, minutes, changes)
    latency = read_seconds(latency_max, "--latency-max") if latency_max is not None else None
    macs = read_amount(macs_max, "--macs-max") if macs_max is not None else None
    with computing():
        from superformer.fitting import Aim
        from superformer.fitting import fit as run_fit

        aim = Aim(latency, macs, speed_up=speed_up, networks=networks, runtime=runtime)
        shown = progress_console(as_json)
        found = run_fit(
            model, data, run, *(changes or []), aim=aim, checkpoint=checkpoint, img_size=img_size, minutes=time,
            console=shown,
        )  # fmt: skip
    if as_json:
        print(json.dumps(found))
        return
    named = [("original", found["original"]), *(("", row) for row in found["found"])]
    rows = [
        {"name": "winner" if row["key"] == found["winner"] else name, "accuracy": percent(row["accuracy"])}
        | {"latency": f"{1e3 * row['latency']:.3g} ms", **{c: row[c] for c in ("macs", "params", "key")}}
        for name, row in named
    ]
    console.print(table(rows, "On the test pictures"))
    say(f"The winner is in {run}/model")
    say(f"Next: superformer export --run {run} --to onnx, superformer report --run {run}", dim=True)
