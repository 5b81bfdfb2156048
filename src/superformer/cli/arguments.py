"""The program that commands are added to."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from superformer.settings import amount

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the vision transformer that fits your pictures and your budget.\n\nStart with: superformer demo",
)


# The words that several commands take, with what their help says.


Name = Annotated[str | None, typer.Argument(help="Show one of them in full.")]
Draw = Annotated[
    str | None, typer.Option("--draw", metavar="FILE.svg", help="Write a picture of the network to this file, too.")
]
RecipeName = Annotated[
    str, typer.Option("--recipe", metavar="NAME|FILE", help="A published recipe (superformer recipes) or a YAML file.")
]
DataSpec = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="digits (embedded); a folder of one folder per class; a .npz with images and labels; train=PATH,test=PATH; or a timm reader.",
    ),
]
RunFolder = Annotated[str, typer.Option("--run", metavar="DIR", help="The folder of the run.")]
Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.epochs=10.")
]
ArchWords = Annotated[
    list[str] | None,
    typer.Option(
        "--arch", metavar="WHICH", help="best, smallest, largest, a key of the front, or a JSON file; repeatable."
    ),
]
ArchWord = Annotated[
    str, typer.Option("--arch", metavar="WHICH", help="best, smallest, largest, a key of the front, or a JSON file.")
]
MacsMax = Annotated[
    str | None, typer.Option("--macs-max", metavar="600M", help="The most multiply-accumulates of a network.")
]
ParamsMax = Annotated[str | None, typer.Option("--params-max", metavar="5M", help="The most parameters.")]
LatencyMax = Annotated[
    str | None, typer.Option("--latency-max", metavar="20ms", help="The longest time for a picture, measured here.")
]
MethodName = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="evolution, nsga2, predictor, random or exhaustive.")
]
MemoryMax = Annotated[
    str | None, typer.Option("--memory-max", metavar="20MB", help="The most memory of activations, for one picture.")
]
ThroughputMin = Annotated[
    str | None, typer.Option("--throughput-min", metavar="500", help="The fewest pictures a second, measured here.")
]
Split = Annotated[str, typer.Option("--split", help="test, or search (what searching sees).")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]
AnalysisWords = Annotated[
    list[str] | None, typer.Argument(metavar="[PART]... [KEY=VALUE]...", help="What to look at, and settings.")
]


# Tables and facts, as every command prints them.


console = Console()


def listed(rows: list[dict[str, Any]], title: str, as_json: bool, hint: str) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    console.print(table(rows, title))
    console.print(hint, style="dim")


def facts(values: dict[str, Any]) -> None:
    """One thing's values, a line each."""
    for column, value in values.items():
        console.print(f"[dim]{TITLES.get(column, column):>14}[/]  {_said(column, value)}", highlight=False)


def table(rows: list[dict[str, Any]], title: str) -> Table:
    """Rows of plain values as a table; numbers stand right."""
    out = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in rows[0] if rows else ():
        word = isinstance(rows[0][column], str)
        out.add_column(TITLES.get(column, column), justify="left" if word else "right", no_wrap=column != "values")
    for row in rows:
        out.add_row(*(_said(column, value) for column, value in row.items()))
    return out


def say(text: str, dim: bool = False) -> None:
    """A line as it is: no markup, no highlights, not folded."""
    console.print(text, style="dim" if dim else None, highlight=False, soft_wrap=True, markup=False)


TITLES = {"macs": "MACs", "params": "parameters", "img_size": "px", "resolution": "px"}


def _said(column: str, value: Any) -> str:
    if isinstance(value, list):
        return " - ".join(_said(column, v) for v in value)
    if column in ("macs", "params"):
        return amount(value)
    return f"{value:.2e}" if isinstance(value, int) and value >= 10**6 else str(value)
