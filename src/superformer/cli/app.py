"""The program that commands are added to."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the vision transformer that fits your pictures and your budget.\n\nStart with: superformer demo",
)
