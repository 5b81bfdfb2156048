"""Tables and facts, as every command prints them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from superformer.units import amount

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
    out = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False, padding=(0, 2, 0, 0))
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
