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
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from superformer import data, files
from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.cost.latency_table import LatencyTable
from superformer.errors import InfeasibleError, SuperformerError
from superformer.evaluation.evaluator import evaluate
from superformer.families.network import Network
from superformer.fitting.source import Source
from superformer.progress import Tell, quiet, teller
from superformer.recipes import Recipe, from_tree, merged
from superformer.runs import SUPERNET, Run, stored
from superformer.runs.storage import load_supernet
from superformer.search import search
from superformer.settings import load_yaml
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.space.sampling import say_cost
from superformer.spaces import model as build
from superformer.spaces.around import MOST_SPEED_UP, space_around
from superformer.train.importance import Orders, measure
from superformer.train.loop import train
from superformer.train.retrain import retrain, write_inherited
from superformer.train.time_budget import Stopwatch, TooShortError

UNITS, BLOCKS = 512, 128
"""Training pictures that tell the importance of units, and of blocks."""
TUNING, SUPERNET_TIME, SEARCH_TIME = 0.18, 0.55, 0.12
"""Shares of the time: of all of it for the original; of what is then left for the supernet and the search."""
EPOCHS = 2
"""Of the original, that a time must be enough for: as many minutes are then enough for the others."""
COST = "original.json"
FURTHER, SECONDS = (1.0, 1.5, 2.5, 5.0), 2.0
LEAST = 1.5
"""The least speed-up that a space is made for: a front needs room below the limit."""


@dataclass(frozen=True)
class Aim:
    """What is asked of the winner: one of these limits, or a speed-up."""

    latency: float | None = None
    macs: float | None = None
    speed_up: float = 2.0
    networks: int = 3

    def __post_init__(self) -> None:
        if self.latency is not None and self.macs is not None:
            raise SuperformerError("give one limit, --latency-max or --macs-max, not both")

    @property
    def cost(self) -> str:
        return "macs" if self.macs is not None else "latency"

    def limit(self, before: Mapping[str, float]) -> float:
        """The most that the winner may cost."""
        asked = self.macs if self.cost == "macs" else self.latency
        return asked if asked is not None else before[self.cost] / self.speed_up


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
    tell, begun = teller(shown), Stopwatch()
    source = Source.of(model, checkpoint)
    size = img_size or source.size_for(data_spec)
    arch = source.arch(size)
    known = home / COST
    before = stored.read(known) if known.exists() else room_below(arch, aim)
    with _chapter(shown, "1. The original, tuned on your pictures"):
        own = TUNING * minutes if minutes is not None else None
        recipe = _original(source, arch, changes)
        with _whole_time(minutes, TUNING / EPOCHS, ""):
            original = train(recipe, data_spec, home / "original", console=console, minutes=own)
        files.write_object(known, before)
        net = load_supernet(original.supernet_file)
        net = net.extract(net.space.smallest()).eval()
        teacher = write_inherited(original, net.space.smallest(), home / "original" / "network")
    with _chapter(shown, "2. What of it may go first"):
        orders = _orders(home, original, net, tell)
        left = _shares(home, minutes, begun, aim.networks)
    with _chapter(shown, "3. The supernet around it"):
        space = space_around(arch, before["shrink"], size, orders.blocks)
        recipe = _supernet(source, space, home, teacher, changes)
        with _whole_time(minutes, (left["supernet"] or 0) / (minutes or 1), ", in a new folder"):
            train(recipe, data_spec, home, console=console, minutes=left["supernet"])
    with _chapter(shown, "4. Search"):
        found = search(home, {}, None, {"objectives": f"accuracy,{aim.cost}"}, console, minutes=left["search"])
    with _chapter(shown, "5. The networks that were found, each by itself"):
        limit = _limit(aim, home, space, before)
        chosen = pick(found["front"], aim.cost, limit, aim.networks)
        rows = []
        for row in chosen:  # the winner last: it is the network that is handed over
            rows.append(retrain(home, row["key"], console=console, minutes=left["retrain"]).rows[-1])
        table = _table(original, net, home, rows)
        pictures = len(data.load(data_spec, original.recipe().data, size).test())
        result = {"limit": limit, "cost": aim.cost, "original": before, "table": table, "pictures": pictures}
        files.write_object(home / "fit.json", result)
    return result


@contextmanager
def _chapter(console: Console, title: str) -> Iterator[None]:
    console.rule(title, align="left")
    yield


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
    tree = merged(tree, {"loss": {"teachers": [str(teacher)], "teacher_size": "student"}})
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


def _orders(home: Path, original: Run, net: Network, tell: Tell) -> Orders:
    path = home / "orders.json"
    if path.exists():
        return Orders.load(path)
    recipe, facts = original.recipe(), original.facts()
    pictures = data.load(facts["data"], recipe.data, facts["img_size"]).train
    some = [x for x, _ in data.eval_batches(pictures, recipe.data, facts["img_size"], 64, UNITS + BLOCKS)]
    x = torch.cat(some)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(recipe.seed))
    cut = max(len(x) - BLOCKS, len(x) // 2)
    found = measure(net, [x[order[:cut]]], x[order[cut:]], recipe.seed)
    found.save(path)
    tell(found.text())
    return found


def room_below(arch: Arch, aim: Aim) -> dict[str, float]:
    """What the network costs here, and how far down the space around it must go (``shrink``) for the limit. One that it
    cannot reach is refused before anything is trained."""
    name, net = aim.cost, build(arch).eval()
    before = {"macs": float(cost(net.space, [arch], num_classes=net.num_classes).macs[0]), "latency": 0.0}
    before["latency"] = measure_in_turn([net], arch.resolution, seconds=SECONDS / 2)[0].median
    wanted = before[name] / aim.limit(before)
    for further in FURTHER:
        shrink = min(max(wanted, LEAST) * further, MOST_SPEED_UP)
        space = space_around(arch, shrink)
        small = space.smallest()
        least = float(cost(space, [small], num_classes=net.num_classes).macs[0])
        if name == "latency":  # in turn, so that both are measured on the same machine, however busy
            times = measure_in_turn([net, build(small).eval()], arch.resolution, seconds=SECONDS / 2)
            least, now = (t.median for t in reversed(times))
            before["latency"] = now
            wanted = now / aim.limit(before)
        if least <= before[name] / wanted:
            return before | {"shrink": shrink, "least": least}
    limit, found, own = (_say(name, v) for v in (aim.limit(before), least, before[name]))
    told = f"no network around {arch.key} has at most {limit}; the least is {found}, and the network itself has {own}"
    raise InfeasibleError(told)


def _say(name: str, value: float) -> str:
    """2.5 M MACs, 3.2 ms."""
    return say_cost(name, value) + " MACs" * (name == "macs")


def _limit(aim: Aim, home: Path, space: Space, before: Mapping[str, float]) -> float:
    """The most that the winner may cost; a speed-up is one against what the table of times says of the original."""
    if aim.cost == "macs" or aim.latency is not None:
        return aim.limit(before)
    how: dict[str, Any] = {"runtime": "eager", "threads": 1, "batch": 1, "device": "cpu"}
    table = LatencyTable.load(home / LatencyTable.file_name(**how), **how)
    return float(table.latency(space, space.largest())[0]) / aim.speed_up


def pick(front: Sequence[dict[str, Any]], name: str, limit: float, networks: int) -> list[dict[str, Any]]:
    """Some networks of a front, the winner (the most accurate within the limit) last: the others lie at about equal
    steps of cost between the cheapest and the dearest."""
    inside = [row for row in front if row[name] <= limit]
    if not inside:
        least = _say(name, min(row[name] for row in front))
        raise InfeasibleError(f"no network that was found has at most {_say(name, limit)}; the least is {least}")
    winner = max(inside, key=lambda row: (row["accuracy"], -row[name]))
    low, high = (f(row[name] for row in front) for f in (min, max))
    marks = [low + (high - low) * k / max(networks - 1, 1) for k in range(networks)]
    others: list[dict[str, Any]] = []
    for mark in marks:
        row = min(front, key=lambda r: abs(r[name] - mark))
        if row is not winner and row not in others:
            others.append(row)
    return [*others[: networks - 1], winner]


def _table(original: Run, net: Network, home: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The original and the networks that were found, on the test pictures, all timed in turn."""
    models = [net]
    models += [load_supernet(home / "retrained" / f"{r['key']}-{r['weights']}" / SUPERNET).eval() for r in rows]
    times = measure_in_turn(models, net.space.img_size, seconds=SECONDS)
    own = evaluate(original.folder, ["largest"], "test")[0]
    first = {"name": "original", "key": net.space.smallest().key, "weights": "finetuned"}
    named = [{**r, "name": "winner" if k == len(rows) - 1 else "found"} for k, r in enumerate(rows)]
    out = []
    for row, time in zip([first | {n: own[n] for n in ("accuracy", "macs", "params")}, *named], times, strict=True):
        kept = ("name", "accuracy", "macs", "params", "key", "weights")
        out.append({**{n: row[n] for n in kept}, "latency": time.median})
    return sorted(out, key=lambda row: -row["latency"])
