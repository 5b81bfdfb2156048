"""From a pretrained network and pictures to a front of faster networks and a winner: what ``superformer fit`` does.

1. *original*: the network, tuned on the pictures (``DIR/original``); it teaches all that follow.
2. *orders*: what of it may go first, measured on the pictures (``DIR/orders.json``, `superformer.train.importance`).
3. *supernet*: the space around it (`superformer.spaces.around`), trained from its weights in that order.
4. *search*: the front of accuracy against measured latency, or MACs.
5. *retrain*: some networks of the front, each by itself, with the same teacher; the winner last (``DIR/model``).

Each part is an ordinary run or an ordinary file, and each is done once: killed, the same call goes on."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from superformer import data, files
from superformer.cost.runtimes import measuring_device
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import evaluate
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.fitting.aim import Aim as Aim
from superformer.fitting.aim import measured_winner, pick, room_below, times, within
from superformer.fitting.minutes import ORIGINAL, SEARCH, Minutes
from superformer.fitting.minutes import SUPERNET as SUPERNET_SHARE
from superformer.fitting.source import Source
from superformer.fitting.source import space_around as space_around
from superformer.progress import Tell, chapter, doing, quiet, take_begin, teller
from superformer.recipes import Recipe, from_tree, merged
from superformer.recipes.searching import Options
from superformer.runs import SUPERNET, Run, stored
from superformer.runs.processes import device_here
from superformer.runs.storage import load_network, load_supernet
from superformer.search import search
from superformer.search.task import latency_table
from superformer.settings import load_yaml, read_key_value
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.space.costs import skeleton
from superformer.spaces.around import around
from superformer.train.importance import Orders, measure
from superformer.train.loop import train
from superformer.train.retrain import retrain, save_model, table_row, write_inherited
from superformer.train.time_budget import Stopwatch, TooShortError, check_minutes

UNITS, BLOCKS = 256, 128
"""Training pictures that tell the importance of units, and of blocks."""
ROOM = 1.7
"""Networks that cost so many times the limit are searched, too: the front has some above it."""
SECONDS = 2.0
"""That each network of the table is timed for."""
TABLE = 0.02
"""The most of the whole time that the table of times takes."""
COST, PICKED = "original.json", "picked.json"
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
    check_minutes(minutes)
    home, shown = Path(folder), quiet(console)
    _refuse_strange(home)
    time = Minutes(home, minutes, Stopwatch(start=take_begin()), Run(home / "original"), aim.words)
    source = Source.of(model, checkpoint)
    size = img_size or source.size_for(data_spec, teller(shown))
    arch = source.arch(size)
    known = home / COST
    before = stored.read(known) if known.exists() else room_below(arch, aim)
    network, teacher, common = home / "original" / "network", home / "teacher", _trees()["common"]
    pictures = source.trained_on(data_spec, size, common["data"]["search"])
    batch, first = min(common["train"]["batch_size"], max(pictures, 1)), around(arch, before["shrink"])
    _supernet(source, first, home, network, teacher, changes, batch)  # wrong words are told at once
    with chapter(shown, "1. The original, tuned on your pictures"):
        tuning = _original(source, arch, changes, batch)
        original = time.spend(
            "original", ORIGINAL, lambda m: train(tuning, data_spec, home / "original", console=console, minutes=m)
        )
        files.write_object(known, before)
        net = load_supernet(original.supernet_file)
        net = net.extract(net.space.smallest()).eval()
        write_inherited(original, net.space.smallest(), network)
    with chapter(shown, "2. What of it may go first"):
        orders = _orders(home, original, net, shown)
        _save_teacher(teacher, original, net, orders)
    with chapter(shown, "3. The supernet around it"):
        space = around(arch, before["shrink"], orders.blocks)
        recipe = _supernet(source, space, home, network, teacher, changes, batch)
        time.spend("supernet", SUPERNET_SHARE, lambda m: train(recipe, data_spec, home, console=console, minutes=m))
    with chapter(shown, "4. Search"):
        limit = _limit(aim, home, before, minutes, teller(shown))
        limits = {aim.cost: (0.0, ROOM * limit)}
        sought = {"objectives": f"accuracy,{aim.cost}", "runtime": aim.runtime}
        found = search(home, limits, None, sought, console, minutes=time.of("search", SEARCH))
        keys = _picked(home, found["front"], aim, limit, net, teller(shown))
    with chapter(shown, "5. The networks that were found, each by itself"):
        rows = [  # the winner last: it is the network that is handed over
            _retrained(home, key, time, 1 / (len(keys) - k), console) for k, key in enumerate(keys)
        ]
        result = {"cost": aim.cost, "limit": limit, "runtime": aim.runtime}
        result |= _table(original, net, home, rows, aim.runtime)
        files.write_object(home / "fit.json", result)
    return result


def _trees() -> dict[str, Any]:
    text = (resources.files(__name__) / "settings.yaml").read_text()
    trees: dict[str, Any] = load_yaml(text, "the settings of fit")
    return trees


def _original(source: Source, arch: Arch, changes: Sequence[str], batch: int) -> Recipe:
    """How the network itself is tuned."""
    trees = _trees()
    tree = merged(merged(trees["common"], trees["original"]), source.settings(arch))
    tree = merged(tree, {"train": {"batch_size": batch}})
    tree |= {"space": json.loads(point(arch).to_json()), "start": source.start.model_dump(mode="json")}
    return from_tree(tree, "fit", [c.removeprefix("original.") for c in changes if c.startswith("original.")])


def _supernet(
    source: Source, space: Space, home: Path, network: Path, teacher: Path, changes: Sequence[str], batch: int
) -> Recipe:
    """How the supernet is trained, and what it finds."""
    trees = _trees()
    tree = merged(merged(trees["common"], trees["supernet"]), source.settings(space.largest()))
    tree = merged(tree, {"loss": {"teachers": [str(teacher)]}, "train": {"batch_size": batch}})
    said = dict(read_key_value(c) for c in changes if not c.startswith("original."))
    if said.get("data.augment", "timm") != "timm" or said.get("data.repeats", 1) != 1:
        tree = merged(tree, {"data": {"views": 0}})  # nothing comes again
    elif not said.get("mix.mixup") and not said.get("mix.cutmix"):
        tree = merged(tree, {"loss": {"keep": str(home / "taught")}})
    start = {"network": str(network), "orders": str(home / "orders.json")}
    tree |= {"space": json.loads(space.to_json()), "start": start}
    return from_tree(tree, "fit", [c for c in changes if not c.startswith("original.")])


def _retrained(home: Path, key: str, time: Minutes, share: float, console: Console | None) -> dict[str, Any]:
    """The row of a network that was trained by itself for its share of the time; if that is too short for an epoch, of
    the network with the weights that it has in the supernet."""
    minutes = time.of(f"retrain {key}", share)
    if minutes != 0:
        try:
            return retrain(home, key, console=console, minutes=minutes).rows[-1]
        except TooShortError:
            time.skip(f"retrain {key}")
    run = Run.open(home)
    inherited = write_inherited(run, run.arch(key), home / "retrained" / f"{key}-inherited")
    net = load_network(inherited).net
    save_model(run, net, home / "model")
    teller(quiet(console))(f"{key} keeps its weights of the supernet: there is no time to train it by itself")
    return table_row(run, net, key, "inherited")


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
        here = device_here()
        x, there = x.to(here), copy.deepcopy(net).to(here)
        found = measure(there, [x[order[:cut]]], x[order[cut:]], recipe.seed, now)
    found.save(path)
    teller(console)(found.text())
    return found


def _save_teacher(folder: Path, original: Run, net: Network, orders: Orders) -> None:
    """The tuned original as the teacher: what matters most comes first in it, as in all that it teaches, so that their
    channels can be compared."""
    if not (folder / CONFIG).exists():
        ordered = copy.deepcopy(net)
        orders.apply(ordered)
        save_model(original, ordered, folder)


def _limit(aim: Aim, home: Path, before: Mapping[str, float], minutes: float | None, tell: Tell) -> float:
    """The most that the winner may cost; a speed-up is one against what the table of times, by which the search goes,
    says of the original: what was measured before may have had another load on the machine. The table is made here, so
    that the search has its time for itself."""
    if aim.cost == "macs":
        return aim.limit(before[aim.cost])
    run, options = Run.open(home), Options(runtime=aim.runtime)
    words: dict[str, Any] = {"device": measuring_device(None, device_here(), aim.runtime)}
    if minutes is not None:
        words["table_seconds"] = min(options.table_seconds, 60 * TABLE * minutes)
    space = run.space()
    net = skeleton(space, len(run.facts()["classes"]))
    table = latency_table(run, net, options.model_copy(update=words), 1, tell)
    return aim.limit(float(table.latency(space, space.largest())[0]))


def _picked(home: Path, front: Sequence[dict[str, Any]], aim: Aim, limit: float, net: Network, tell: Tell) -> list[str]:
    """The keys of the networks of the front that are trained by themselves, the winner last. Kept in a file: times are
    never measured twice alike."""
    path = home / PICKED
    known: dict[str, Any] = stored.read(path) if path.exists() else {}
    own = known.get(aim.words)
    if own is None or not {*own} <= {row["key"] for row in front}:
        rows = within(front, aim.cost, limit)
        winner = rows[0] if aim.cost == "macs" else measured_winner(rows, aim, net, tell)
        own = [row["key"] for row in pick(front, aim.cost, limit, aim.networks, winner)]
        files.write_object(path, {k: v for k, v in known.items() if k != "checksum"} | {aim.words: own})
    return list(own)


def _refuse_strange(home: Path) -> None:
    """A folder that is no place for a fit is refused before anything is measured or written."""
    if there := next((p for p in (home, *home.parents) if p.exists() and not p.is_dir()), None):
        raise SuperformerError(f"{there} is a file, so {home} cannot be a folder: choose another --run")
    run = Run(home)
    if run.recipe_file.exists():
        if not (home / COST).exists():
            raise SuperformerError(f"{home} is a run of its own, not one of superformer fit: choose another --run")
    else:
        run.refuse_strange()


def _table(original: Run, net: Network, home: Path, rows: Sequence[Mapping[str, Any]], runtime: str) -> dict[str, Any]:
    """The original and the networks that were found, on the test pictures, all timed in turn; the winner's key."""
    folders = [home / "retrained" / f"{r['key']}-{r['weights']}" for r in rows]
    alone = [(f / SUPERNET).exists() for f in folders]
    models = [load_supernet(f / SUPERNET) if a else load_network(f).net for f, a in zip(folders, alone, strict=True)]
    seconds = times([net, *(m.eval() for m in models)], runtime, SECONDS)
    first = {**evaluate(original.folder, ["largest"], "test")[0], "key": net.space.smallest().key}
    both = [{**row, "latency": s} for row, s in zip([first, *rows], seconds, strict=True)]
    table = [{name: row[name] for name in KEPT} for row in both]
    found = sorted(table[1:], key=lambda row: -row["latency"])
    return {"original": table[0], "found": found, "winner": rows[-1]["key"], "pictures": rows[-1]["pictures"]}
