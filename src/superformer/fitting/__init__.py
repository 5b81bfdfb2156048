"""From a pretrained network and pictures to a front of faster networks and a winner: what ``superformer fit`` does.

1. *original*: the network, tuned on the pictures (``DIR/original``); it teaches all that follow.
2. *orders*: what of it may go first, measured on the pictures (``DIR/orders.json``, `superformer.train.importance`).
3. *supernet*: the space around it (`superformer.spaces.around`), trained from its weights in that order.
4. *search*: the front of accuracy against measured latency, or MACs.
5. *retrain*: some networks of the front, each by itself, with the same teacher; the winner last (``DIR/model``).

Each part is an ordinary run or an ordinary file, and each is done once: killed, the same call goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from superformer import data, files
from superformer.cost.latency import measure_in_turn
from superformer.cost.latency_table import LatencyTable
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import evaluate
from superformer.families.network import Network
from superformer.fitting.aim import Aim as Aim
from superformer.fitting.aim import pick, room_below
from superformer.fitting.source import Source
from superformer.fitting.source import space_around as space_around
from superformer.progress import chapter, doing, quiet, teller
from superformer.recipes import Recipe, from_tree, merged
from superformer.runs import SUPERNET, Run, stored
from superformer.runs.storage import load_supernet
from superformer.search import search
from superformer.settings import load_yaml
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.spaces.around import around
from superformer.train.importance import Orders, measure
from superformer.train.loop import train
from superformer.train.retrain import retrain, write_inherited
from superformer.train.time_budget import Stopwatch, TooShortError

UNITS, BLOCKS = 256, 128
"""Training pictures that tell the importance of units, and of blocks."""
TUNING, SUPERNET_TIME, SEARCH_TIME = 0.18, 0.55, 0.12
"""Shares of the time: of all of it for the original; of what is then left for the supernet and the search."""
EPOCHS = 2
"""Of the original, that a time must be enough for: as many minutes are then enough for the others."""
SECONDS = 2.0
"""That each network of the table is timed for."""
COST = "original.json"
KEPT = ("key", "accuracy", "latency", "macs", "params")


def fit(
    model: str,
    data_spec: str,
    folder: str | Path,
    *changes: str,
    aim: Aim = Aim(),  # noqa: B008  # frozen
    checkpoint: str | None = None,
    img_size: int | None = None,
    minutes: float | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Fit a pretrained network to pictures and a limit; what is returned is also in ``DIR/fit.json``. ``minutes``: for
    all of it; each part then does as much as fits."""
    home, shown = Path(folder), quiet(console)
    begun, source = Stopwatch(), Source.of(model, checkpoint)
    size = img_size or source.size_for(data_spec)
    arch = source.arch(size)
    known = home / COST
    before = stored.read(known) if known.exists() else room_below(arch, aim)
    with chapter(shown, "1. The original, tuned on your pictures"):
        own = TUNING * minutes if minutes is not None else None
        recipe = _original(source, arch, changes)
        with _whole_time(minutes, TUNING / EPOCHS, ""):
            original = train(recipe, data_spec, home / "original", console=console, minutes=own)
        files.write_object(known, before)
        net = load_supernet(original.supernet_file)
        net = net.extract(net.space.smallest()).eval()
        teacher = write_inherited(original, net.space.smallest(), home / "original" / "network")
    with chapter(shown, "2. What of it may go first"):
        orders = _orders(home, original, net, shown)
        left = _shares(home, minutes, begun, aim.networks)
    with chapter(shown, "3. The supernet around it"):
        space = around(arch, before["shrink"], orders.blocks)
        recipe = _supernet(source, space, home, teacher, changes)
        with _whole_time(minutes, (left["supernet"] or 0) / (minutes or 1), ", in a new folder"):
            train(recipe, data_spec, home, console=console, minutes=left["supernet"])
    with chapter(shown, "4. Search"):
        found = search(home, {}, None, {"objectives": f"accuracy,{aim.cost}"}, console, minutes=left["search"])
    with chapter(shown, "5. The networks that were found, each by itself"):
        limit = _limit(aim, home, space, before)
        rows = [  # the winner last: it is the network that is handed over
            _retrained(home, row["key"], left, console) for row in pick(found["front"], aim.cost, limit, aim.networks)
        ]
        result = {"cost": aim.cost, "limit": limit, **_table(original, net, home, rows)}
        files.write_object(home / "fit.json", result)
    return result


def _trees() -> dict[str, Any]:
    text = (resources.files(__name__) / "settings.yaml").read_text()
    trees: dict[str, Any] = load_yaml(text, "the settings of fit")
    return trees


def _original(source: Source, arch: Arch, changes: Sequence[str]) -> Recipe:
    """How the network itself is tuned."""
    trees = _trees()
    tree = merged(merged(trees["common"], trees["original"]), {"data": source.prepared})
    tree |= {"space": json.loads(point(arch).to_json()), "start": source.start.model_dump(mode="json")}
    return from_tree(tree, "fit", [c.removeprefix("original.") for c in changes if c.startswith("original.")])


def _supernet(source: Source, space: Space, home: Path, teacher: Path, changes: Sequence[str]) -> Recipe:
    """How the supernet is trained, and what it finds."""
    trees = _trees()
    tree = merged(merged(trees["common"], trees["supernet"]), {"data": source.prepared})
    tree = merged(tree, {"loss": {"teachers": [str(teacher)]}})
    start = {"network": str(teacher), "orders": str(home / "orders.json")}
    tree |= {"space": json.loads(space.to_json()), "start": start}
    return from_tree(tree, "fit", [c for c in changes if not c.startswith("original.")])


@contextmanager
def _whole_time(minutes: float | None, share: float, where: str) -> Iterator[None]:
    """A part tells what it needs itself; what was asked for was the time of all."""
    try:
        yield
    except TooShortError as error:
        needed = math.ceil(error.needed / share)
        short = f"{minutes:g} minutes are too short to tune, train, search and retrain here"
        raise SuperformerError(f"{short}: give --minutes {needed} or more{where}") from error


def _shares(home: Path, minutes: float | None, begun: Stopwatch, networks: int) -> dict[str, float | None]:
    """The minutes of the parts that are left when the orders are known; decided once."""
    if minutes is None:
        return dict.fromkeys(("supernet", "search", "retrain"))
    path = home / "minutes.json"
    if not path.exists():
        left = min(max(minutes - begun.seconds / 60, (1 - 2 * TUNING) * minutes), (1 - TUNING) * minutes)
        shares = {"supernet": SUPERNET_TIME, "search": SEARCH_TIME}
        shares["retrain"] = (1 - SUPERNET_TIME - SEARCH_TIME) / networks
        files.write_object(path, {name: share * left for name, share in shares.items()})
    found = stored.read(path)
    return {name: float(found[name]) for name in ("supernet", "search", "retrain")}


def _retrained(home: Path, key: str, left: dict[str, float | None], console: Console | None) -> dict[str, Any]:
    """The row of a network that was trained by itself: for its share of the time, or for an epoch if that is too short,
    which is noted (as no time at all), so that the same words go on."""
    if left["retrain"] != 0:
        try:
            return retrain(home, key, console=console, minutes=left["retrain"]).rows[-1]
        except TooShortError:
            left["retrain"] = 0.0
            files.write_object(home / "minutes.json", left)
    return retrain(home, key, "train.epochs=1", "optimizer.warmup_epochs=0.2", console=console).rows[-1]


def _orders(home: Path, original: Run, net: Network, console: Console) -> Orders:
    path = home / "orders.json"
    if path.exists():
        return Orders.load(path)
    recipe, facts = original.recipe(), original.facts()
    pictures = data.load(facts["data"], recipe.data, facts["img_size"]).train
    some = [x for x, _ in data.eval_batches(pictures, recipe.data, facts["img_size"], 64, UNITS + BLOCKS)]
    x = torch.cat(some)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(recipe.seed))
    cut = max(len(x) - BLOCKS, len(x) // 2)
    with doing(console, f"measuring what matters on {len(x)} training pictures") as now:
        found = measure(net, [x[order[:cut]]], x[order[cut:]], recipe.seed, now)
    found.save(path)
    teller(console)(found.text())
    return found


def _limit(aim: Aim, home: Path, space: Space, before: Mapping[str, float]) -> float:
    """The most that the winner may cost; a speed-up is one against what the table of times says of the original."""
    if aim.cost == "macs" or aim.latency is not None:
        return aim.limit(before[aim.cost])
    how: dict[str, Any] = {"runtime": "eager", "threads": 1, "batch": 1, "device": "cpu"}
    table = LatencyTable.load(home / LatencyTable.file_name(**how), **how)
    return float(table.latency(space, space.largest())[0]) / aim.speed_up


def _table(original: Run, net: Network, home: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The original and the networks that were found, on the test pictures, all timed in turn; the winner's key."""
    models = [load_supernet(home / "retrained" / f"{r['key']}-{r['weights']}" / SUPERNET).eval() for r in rows]
    times = measure_in_turn([net, *models], seconds=SECONDS)
    first = {**evaluate(original.folder, ["largest"], "test")[0], "key": net.space.smallest().key}
    both = [{**row, "latency": time.median} for row, time in zip([first, *rows], times, strict=True)]
    table = [{name: row[name] for name in KEPT} for row in both]
    found = sorted(table[1:], key=lambda row: -row["latency"])
    return {"original": table[0], "found": found, "winner": rows[-1]["key"], "pictures": rows[-1]["pictures"]}
