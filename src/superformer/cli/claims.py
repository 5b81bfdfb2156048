"""The papers' claims, measured again: claims."""

from __future__ import annotations

import json

from superformer.cli import arguments as arg
from superformer.cli.arguments import app, computing, console, progress_console, say, table
from superformer.errors import SuperformerError


@app.command()
def claims(
    names: arg.ClaimNames = None, data: arg.ClaimData = "digits", seeds: arg.Seeds = 3, budget: arg.Budget = None,
    run: arg.RunFolder = "runs/claims", out: arg.ClaimOut = None, as_json: arg.Json = False,
    device: arg.Device = "auto",
) -> None:  # fmt: skip
    """Measure claims of the papers again: all of them, or those that are named. Killed, the same words go on.

    Example: superformer claims cyclic-loss warm-up --budget 5

    Each claim is a recipe with two or more arms that differ in one thing, run with several seeds. What comes out: every
    number (claims.db, NAME.json), a page with a drawing and a verdict for each (claims.md). Without --budget arms are
    trained as long as their recipe says."""
    with computing():
        from superformer.claims import run as run_claims

        if budget is not None and budget <= 0:
            raise SuperformerError(f"--budget is a number of minutes above 0, not {budget:g}")
        found = run_claims(names or [], data, run, seeds, budget, out, progress_console(as_json))
    if as_json:
        print(json.dumps(found))
        return
    rows = [{"claim": c["claim"], "paper": c["paper"], "verdict": c["verdict"], "runs": len(c["runs"])} for c in found]
    console.print(table(rows, "Claims"))
    say(f"The page is {out or run}/claims.md")
