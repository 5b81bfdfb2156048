"""The papers' claims, measured again: claims."""

from __future__ import annotations

import json

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, progress_console, say, table
from superformer.errors import SuperformerError


@app.command()
def claims(
    names: arg.ClaimNames = None, data: arg.ClaimData = "digits", seeds: arg.ClaimSeeds = 3, budget: arg.Budget = None,
    epochs: arg.ClaimEpochs = None, run: arg.RunFolder = "runs/claims", out: arg.ClaimOut = None,
    as_json: arg.Json = False, device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Measure claims of the papers again: those that are named, or all; with a budget alone, three small ones. Killed,
    the same words go on.

    Example: superformer claims --budget 5

    Each claim is a recipe with two or more arms that differ in one thing, run with several seeds. What comes out: every
    number (claims.db, NAME.json), a page with a drawing and a verdict for each (claims.md). Arms are trained for
    --epochs, or as --budget allows, or else as long as the claim or its recipe says; longer trainings stand on the page
    beside shorter ones. --seeds 0 measures nothing, and makes the page again."""
    with computing():
        from superformer.claims import run as run_claims

        for name, given in (("--budget is a number of minutes", budget), ("--epochs is a number", epochs)):
            if given is not None and not given > 0:
                raise SuperformerError(f"{name} above 0, not {given:g}")
        found = run_claims(names or [], data, run, seeds, budget, out, progress_console(as_json), epochs)
    if as_json:
        print(json.dumps(found))
        return
    rows = [{"claim": c["claim"], "paper": c["paper"], "verdict": c["verdict"], "runs": len(c["runs"])} for c in found]
    console.print(table(rows, "Claims"))
    say(f"The page is {out or run}/claims.md")
