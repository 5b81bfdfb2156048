"""The program that commands are added to, the options that several of them share, and how they print.

A command resolves its words with light modules first: a mistake is told before torch is imported, which takes seconds.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from superformer.errors import SuperformerError, amount, nearest
from superformer.settings import DEVICE, DEVICES, INT8, NUMBERS, PROCESSES

if TYPE_CHECKING:
    from pathlib import Path

    from superformer.recipes import Recipe
    from superformer.runs import Run

HELP = "Find the vision transformer that fits your pictures and your budget.\n\nStart with: superformer demo"
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)


def _opt(flag: str, metavar: str, told: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=told)


def _arg(metavar: str, told: str) -> Any:
    return typer.Argument(metavar=metavar, help=told)


def _use_device(name: str) -> str:
    """Whoever joins the processes of a run finds it there (`superformer.runs.processes`)."""
    if name not in DEVICES:
        raise SuperformerError(f"unknown device {name!r}: {nearest(name, DEVICES)}")
    if name != "auto":
        os.environ[DEVICE] = name
    return name


def _allow_processes(number: str) -> str:
    """Whoever goes on with a training finds it there (`superformer.train.steps`)."""
    if number not in NUMBERS:
        raise SuperformerError(f"unknown number of processes {number!r}: {nearest(number, NUMBERS)}")
    if number == "any":
        os.environ[PROCESSES] = number
    return number


FOLDERS = "a folder of one folder per class, or of tar files; a .npz with images and labels; train=PATH,test=PATH"
DATA = f"digits (embedded); {FOLDERS}; or a timm reader."
WHICH = "best, baseline, smallest, largest, a key of the front, or a JSON file"

Word = str | None
Words = list[str] | None
Name = Annotated[Word, typer.Argument(help="Show one of them in full.")]
DrawFile = Annotated[Word, _opt("--draw", "FILE.svg", "Write a picture of the network to this file, too.")]
ScaledMacs = Annotated[Word, _opt("--macs", "600M", "With NAME: scaled uniformly to these multiply-accumulates.")]
ScaledParams = Annotated[Word, _opt("--params", "5M", "With NAME: scaled uniformly to these parameters.")]
RecipeName = Annotated[str, _opt("--recipe", "NAME|FILE", "A published recipe (superformer recipes) or a YAML file.")]
ClaimNames = Annotated[
    Words, _arg("[NAME]...", "Claims (docs/claims.md lists them); without a name all of them, with --budget a few.")
]
ClaimSeeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=0, help="Runs of each arm; 0: only make the page again.")
]
ClaimEpochs = Annotated[float | None, typer.Option("--epochs", metavar="N", help="Of every training.")]
ClaimData = Annotated[str, _opt("--data", "SPEC", DATA)]
ClaimOut = Annotated[Word, _opt("--out", "DIR", "A folder for the page and the JSON files, if not the run's.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="MINUTES", help="For all of it, about.")]
PlanData = Annotated[Word, _opt("--data", "SPEC", "Your pictures; without it, those of ImageNet-1k are counted.")]
Measure = Annotated[bool, typer.Option("--measure", help="Plan for the device at hand, and measure it first.")]
PlanDevices = Annotated[str, _opt("--devices", "8xA100-80GB", "How many, and of which kind.")]
DataSpec = Annotated[str, _opt("--data", "SPEC", DATA)]
RunFolder = Annotated[str, _opt("--run", "DIR", "The folder of the run.")]
Changes = Annotated[Words, _arg("[KEY=VALUE]...", "Settings to change, such as train.epochs=10.")]
ArchNames = Annotated[Words, _opt("--arch", "WHICH", f"{WHICH}; repeatable.")]
ArchName = Annotated[str, _opt("--arch", "WHICH", f"{WHICH}.")]
MacsMax = Annotated[Word, _opt("--macs-max", "600M", "The most multiply-accumulates of a network.")]
ParamsMax = Annotated[Word, _opt("--params-max", "5M", "The most parameters.")]
LatencyMax = Annotated[
    Word, _opt("--latency-max", "20ms", "The longest time for a picture, measured here or imported.")
]
CostMax = Annotated[Words, _opt("--cost-max", "energy=12mJ", "The most of an imported cost; repeatable.")]
KitFolder = Annotated[str, _opt("--out", "KIT", "The folder of the kit: a new one, or one to go on with.")]
KitSize = Annotated[
    int, typer.Option("--networks", min=8, max=500, help="Networks for the fit; a quarter more tell its error.")
]
Measured = Annotated[str, _arg("FILE", "What measure.py wrote; with --unit, a CSV or JSON file of your own.")]
DeviceName = Annotated[Word, _opt("--name", "NAME", "Of the device; that of the file otherwise.")]
UnitName = Annotated[Word, _opt("--unit", "ms|mJ", "Of your own values: s, ms, us for latency, or any with --as.")]
CostName = Annotated[str, _opt("--as", "NAME", "What your own values are, such as energy.")]
MemoryMax = Annotated[Word, _opt("--memory-max", "20MB", "The most memory of activations, for one picture.")]
ThroughputMin = Annotated[Word, _opt("--throughput-min", "500", "The fewest pictures a second, measured here.")]
Seeds = Annotated[int, _opt("--seeds", "N", "Train so often, from the recipe's seed on; the table has the mean.")]
MethodName = Annotated[Word, _opt("--method", "NAME", "evolution, nsga2, predictor, random or exhaustive.")]
Split = Annotated[str, typer.Option("--split", help="test, or search (what searching sees).")]
Scales = Annotated[bool, typer.Option("--scales", help="Of segmentation: the mean over six scales and mirrored.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]
AnalysisParts = Annotated[Words, _arg("[PART]... [KEY=VALUE]...", "What to look at, and settings.")]
ExportFormat = Annotated[str, _opt("--to", "onnx|timm|hf", "ONNX, a folder for timm, or a folder for Hugging Face.")]
ExportFolder = Annotated[Word, _opt("--out", "DIR", "The folder to write; DIR/export/FORMAT of the run otherwise.")]
Int8 = Annotated[Word, _opt("--int8", "[dynamic|static]", "Also in 8 bits, compared with float on the test pictures.")]
OtherArch = Annotated[Word, _opt("--arch", "WHICH", "Another network than the retrained one, with inherited weights.")]
BenchArchs = Annotated[Words, _opt("--arch", "WHICH", "Of a run: only these (model is the retrained one); repeatable.")]
Benched = Annotated[str, _arg("MODEL|RUN", "A published model, one of timm, a folder with a network, or a run.")]
FitModel = Annotated[str, _arg("MODEL", "A timm network by its name, or a folder with a network of ours.")]
Checkpoint = Annotated[Word, _opt("--checkpoint", "FILE", "Its weights, if not timm's own (safetensors).")]
ImgSize = Annotated[int | None, typer.Option("--img-size", min=1, max=4096, help="Pixels, if not the network's own.")]
SpeedUp = Annotated[
    float, typer.Option("--speed-up", min=1.05, max=100, help="How many times as fast, without a limit.")
]
FitRuntime = Annotated[
    str, typer.Option("--runtime", help="What times are measured in: eager (torch), compiled, or onnx (ONNX Runtime).")
]
FrontNetworks = Annotated[int, typer.Option("--networks", min=1, max=50, help="Networks to train in the end.")]
Device = Annotated[
    str, typer.Option("--device", callback=_use_device, help=f"What computes: {', '.join(DEVICES)}.", metavar="KIND")
]
ANY = "any: go on also with another number of processes than so far."
Processes = Annotated[str, typer.Option("--processes", callback=_allow_processes, help=ANY, metavar="same|any")]
RunFolders = Annotated[Words, _arg("[DIR]...", "Folders with runs; or several runs, to compare them.")]


class Int8Command(TyperCommand):
    """A command whose ``--int8`` may stand alone: its word is then the default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list[str]()
        for word, then in zip(args, [*args[1:], ""], strict=True):
            given += [word, INT8[0]] if word == "--int8" and then not in INT8 else [word]
        return super().parse_args(ctx, given)


def _finite(value: float) -> float:
    """Bounds alone let nan through, which is neither below nor above them."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


Threads = Annotated[int, typer.Option(min=1, max=4096, help="Threads.")]
Seconds = Annotated[
    float, typer.Option(min=0.01, max=3600, callback=_finite, help="Time for each network, runtime and batch.")
]


Hours = Annotated[
    float | None, typer.Option("--hours", metavar="H", callback=lambda v: _positive(v), help="Do what fits into this.")
]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", metavar="M", callback=lambda v: _positive(v), help="Do what fits into this."),
]


def _positive(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value} is not a number above 0")
    return value


def minutes_of(hours: float | None, minutes: float | None, words: Words = None) -> float | None:
    """The time that a command may take; words that say how long it takes, too, are refused beside it."""
    if hours is None and minutes is None:
        return None
    if double := next((w for w in words or () if w.partition("=")[0].strip().endswith("train.epochs")), None):
        raise SuperformerError(f"{double} and a time both say how long to train: leave one of them out")
    return 60 * (hours or 0) + (minutes or 0)


def trained_run(folder: str, *archs: str) -> Run:
    """A run with a trained supernet and these architectures."""
    from superformer.runs import Run

    run = Run.open(folder)
    run.require_trained()
    for arch in archs:
        run.arch(arch)
    return run


def recipe_for(folder: Path, name: str, changes: Words) -> Recipe:
    """The recipe of a command that begins a run, or goes on with it."""
    from superformer.runs import recipe_of_command

    return recipe_of_command(folder, name, changes or (), sys.argv[1:])


@contextmanager
def computing() -> Iterator[None]:
    """What all commands that compute share: runs note the words, and freed memory is kept for the next step."""
    from superformer.kernels import keep_freed
    from superformer.runs import set_command

    keep_freed()
    set_command(sys.argv[1:])
    try:
        yield
    finally:
        set_command([])


console = Console()
TITLES = {"macs": "MACs", "params": "parameters", "img_size": "px", "resolution": "px"}


def progress_console(as_json: bool) -> Console:
    """Where progress is told; beside JSON on a terminal's standard error, or nowhere."""
    return Console(stderr=True, quiet=not sys.stderr.isatty()) if as_json else console


def say(text: str, dim: bool = False) -> None:
    """A line as it is: no markup, no highlights, not folded."""
    console.print(text, style="dim" if dim else None, highlight=False, soft_wrap=True, markup=False)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def over_seeds(row: dict[str, Any]) -> str:
    """The accuracy of a row; of several seeds, the mean and the standard deviation."""
    if "deviation" not in row:
        return percent(row["accuracy"])
    return f"{100 * row['accuracy']:.2f} ± {100 * row['deviation']:.2f} %"


def print_rows(rows: list[dict[str, Any]], title: str, as_json: bool, hint: str, details: tuple[str, ...] = ()) -> None:
    """Rows as JSON, or as a table, which leaves out details."""
    if as_json:
        print(json.dumps(rows))
        return
    console.print(table([{k: v for k, v in row.items() if k not in details} for row in rows], title))
    console.print(hint, style="dim")


def print_facts(values: dict[str, Any]) -> None:
    """One thing's values, a line each."""
    for column, value in values.items():
        console.print(f"[dim]{TITLES.get(column, column):>14}[/]  {_cell(column, value)}", highlight=False)


def table(rows: list[dict[str, Any]], title: str) -> Table:
    """Rows of plain values as a table; numbers stand right."""
    plain: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0)}
    out = Table(title=title, title_justify="left", title_style="bold", header_style="dim", **plain)
    for column, value in rows[0].items() if rows else ():
        is_text = isinstance(value, str)
        out.add_column(TITLES.get(column, column), justify="left" if is_text else "right", no_wrap=column != "values")
    for row in rows:
        out.add_row(*(_cell(column, value) for column, value in row.items()))
    return out


def int8_table(rows: list[dict[str, Any]]) -> Table:
    """Networks before and after quantisation: two lines each."""
    lines = []
    for row in rows:
        for prefix, how in (("", "float"), ("int8_", f"int8, {row['how']}")):
            times = {k: f"{1e3 * row[prefix + n]:.2f} ms" for k, n in (("latency", "median"), ("90 %", "p90"))}
            size = {"size": f"{row[prefix + 'size'] / 1e6:.2f} MB"}
            line = {"network": row["name"], "weights": how, "test accuracy": percent(row[f"{prefix}accuracy"])}
            lines.append({**line, **times, **size})
    return table(lines, f"ONNX Runtime, {rows[0]['machine']}; threads: {rows[0]['threads']}")


def _cell(column: str, value: Any) -> str:
    if isinstance(value, list):
        return " - ".join(_cell(column, v) for v in value)
    if column in ("macs", "params"):
        return amount(value)
    return f"{value:.2e}" if isinstance(value, int) and value >= 10**6 else str(value)
