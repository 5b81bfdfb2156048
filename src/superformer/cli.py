"""The command line. It reads words, calls the library and prints; it holds no logic of its own."""

from __future__ import annotations

import io
import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from superformer import catalogue
from superformer.errors import StoppedError, SuperformerError
from superformer.units import amount

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the vision transformer that fits your pictures and your budget.\n\nStart with: superformer demo",
)
console = Console()
Name = Annotated[str | None, typer.Argument(help="Show one of them in full.")]
Draw = Annotated[str | None, typer.Option("--draw", metavar="FILE.svg", help="Write a picture of the network to this file, too.")]
RecipeName = Annotated[str, typer.Option("--recipe", metavar="NAME|FILE", help="A published recipe (superformer recipes) or a YAML file.")]
DataSpec = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="digits (embedded); a folder of one folder per class; a .npz with images and labels; train=PATH,test=PATH; or a timm reader.",
    ),
]
RunFolder = Annotated[str, typer.Option("--run", metavar="DIR", help="The folder of the run.")]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.epochs=10.")]
ArchWords = Annotated[
    list[str] | None,
    typer.Option("--arch", metavar="WHICH", help="best, smallest, largest, a key of the front, or a JSON file; repeatable."),
]
MacsMax = Annotated[str | None, typer.Option("--macs-max", metavar="600M", help="The most multiply-accumulates of a network.")]
ParamsMax = Annotated[str | None, typer.Option("--params-max", metavar="5M", help="The most parameters.")]
LatencyMax = Annotated[str | None, typer.Option("--latency-max", metavar="20ms", help="The longest time for a picture, measured here.")]
MethodName = Annotated[str | None, typer.Option("--method", metavar="NAME", help="evolution, nsga2, predictor, random or exhaustive.")]
Split = Annotated[str, typer.Option("--split", help="test, or search (what searching sees).")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]


@app.command()
def spaces(name: Name = None, as_json: Json = False) -> None:
    """The published search spaces; with NAME its choices and its range of MACs and parameters.

    Example: superformer spaces vit-resnas-tiny
    """
    if name is None:
        rows = [entry["summary"] for entry in catalogue.spaces().values()]
        if not as_json:
            rows = [{k: v for k, v in row.items() if k not in ("paths", "img_size")} for row in rows]
        _list(rows, "Published search spaces", as_json, "superformer spaces NAME shows a space's choices")
        return
    space = catalogue.space(name)
    if as_json:
        print(json.dumps({**space["summary"], "space": space["space"]}))
        return
    _facts(space["summary"])
    console.print(_table(space["table"], "\nChoices, from the smallest network to the largest"))


@app.command()
def models(name: Name = None, as_json: Json = False, draw: Draw = None) -> None:
    """The published architectures; with NAME its stages, blocks, MACs and parameters.

    Example: superformer models vit_resnas_tiny --draw tiny.svg
    """
    if draw is not None and name is None:
        raise SuperformerError("--draw needs the name of a network: superformer models NAME --draw FILE.svg")
    if name is None:
        rows = [entry["summary"] for entry in catalogue.models().values()]
        if not as_json:
            rows = [{k: v for k, v in row.items() if k not in ("key", "resolution")} for row in rows]
        _list(rows, "Published architectures", as_json, "superformer models NAME shows a network block by block")
        return
    summary = catalogue.model(name)["summary"]

    import superformer as sf
    from superformer.sketch import sketch
    from superformer.spaces import arch as published

    arch = published(name)
    if draw is not None:
        sf.draw(arch, name).save(draw)
    if as_json:
        print(json.dumps({**summary, "arch": json.loads(arch.to_json())}))
        return
    _facts(summary)
    console.print()
    console.print(sketch(arch, plain=console.options.ascii_only), highlight=False)
    if draw is not None:
        console.print(f"\nThe picture is in {escape(draw)}", highlight=False, soft_wrap=True)


@app.command()
def recipes(name: Name = None, as_json: Json = False) -> None:
    """The published recipes; with NAME all of its settings.

    Example: superformer recipes s3-laptop
    """
    from superformer import recipes as published

    if name is None:
        found = [published.resolve(n) for n in published.names()]
        rows = [{"name": r.name, "networks": r.sampling.rule, "gradients": r.gradients.rule, "sharing": r.sharing,
                 "epochs": r.train.epochs, "batch": r.train.batch_size} for r in found]  # fmt: skip
        _list(rows, "Published recipes", as_json, "superformer recipes NAME shows every setting; superformer train --recipe NAME uses it")
        return
    recipe = published.resolve(name)
    print(json.dumps(recipe.model_dump(mode="json")) if as_json else published.dump(recipe), end="\n" if as_json else "")


@app.command()
def train(recipe: RecipeName, data: DataSpec, run: RunFolder, changes: Changes = None) -> None:
    """Train the supernet of a recipe on your pictures. Killed or interrupted, the same words go on where it was.

    Example: superformer train --recipe s3-laptop --data digits --run runs/first

    With other parts: add key=value words, such as sharing=cyclic gradients.rule=project sampling.rule=multi sampling.networks=4
    (superformer recipes NAME lists all keys). On several GPUs: torchrun --nproc-per-node 8 -m superformer -- train ...
    """
    from superformer.train.loop import train as run_training

    run_training(recipe, data, run, *(changes or []), console=console)


@app.command()
def evolve_space(recipe: RecipeName, data: DataSpec, run: RunFolder, changes: Changes = None) -> None:
    """Improve the search space itself (S3): train a supernet, see which choices lead to smaller errors, move the space, and again.

    Example: superformer evolve-space --recipe s3-laptop --data digits --run runs/evolved

    evolve.rounds=2 evolve.samples=40 set how often and how carefully. At the end the run holds the supernet of the last space.
    """
    from superformer.search.evolve import evolve_space as run_evolution

    run_evolution(recipe, data, run, *(changes or []), console=console)
    console.print(f"The trace is in {escape(run)}/evolution.json", highlight=False, soft_wrap=True)
    console.print(f"Next: superformer search --run {escape(run)} --macs-max ...", style="dim", highlight=False, soft_wrap=True)


@app.command()
def search(
    run: RunFolder,
    macs_max: MacsMax = None,
    params_max: ParamsMax = None,
    latency_max: LatencyMax = None,
    method: MethodName = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Find the best sub-networks of a trained supernet within limits. Killed, the same words go on; nothing is evaluated twice.

    Example: superformer search --run runs/first --macs-max 4M --latency-max 3ms

    key=value words set the method (evolution: rounds, parents, p; nsga2: population, generations; predictor: first, front) and what is
    sought: objectives=accuracy,macs,latency  seed=1  threads=2  runtime=onnx
    """
    from superformer.part import word
    from superformer.search.run import search as run_search
    from superformer.units import read_amount, read_seconds

    given = {
        "macs": None if macs_max is None else read_amount(macs_max, "--macs-max"),
        "params": None if params_max is None else read_amount(params_max, "--params-max"),
        "latency": None if latency_max is None else read_seconds(latency_max, "--latency-max"),
    }
    limits = {name: (0.0, most) for name, most in given.items() if most is not None}
    found = run_search(run, limits, method, dict(map(word, changes or [])), Console(quiet=True) if as_json else console)
    if as_json and found:
        print(json.dumps(found))
    elif found:
        console.print(f"Next: superformer eval --run {escape(run)} --arch best", style="dim", highlight=False, soft_wrap=True)


@app.command(name="eval")
def evaluate(run: RunFolder, arch: ArchWords = None, split: Split = "test", as_json: Json = False) -> None:
    """The accuracy of sub-networks of a trained supernet, with the weights they inherit.

    Example: superformer eval --run runs/first --arch smallest --arch largest
    """
    from superformer.evaluation.report import evaluate as run_evaluation

    rows = run_evaluation(run, arch or ["smallest", "largest"], split)
    if as_json:
        print(json.dumps(rows))
        return
    shown = [{**row, "accuracy": f"{100 * row['accuracy']:.2f} %"} for row in rows]
    console.print(_table(shown, f"Accuracy on the {split} split, inherited weights"))


@app.command()
def demo() -> None:
    """A first look: a space, networks of a budget drawn from it, and one of them run as part of the supernet and by itself."""
    from superformer.demo import run

    run(console)


def _list(rows: list[dict[str, Any]], title: str, as_json: bool, hint: str) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    console.print(_table(rows, title))
    console.print(hint, style="dim")


def _facts(facts: dict[str, Any]) -> None:
    """One thing's values, a line each."""
    for column, value in facts.items():
        console.print(f"[dim]{TITLES.get(column, column):>14}[/]  {_said(column, value)}", highlight=False)


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    """Rows of plain values as a table; numbers stand right."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in rows[0] if rows else ():
        word = isinstance(rows[0][column], str)
        table.add_column(TITLES.get(column, column), justify="left" if word else "right", no_wrap=column != "values")
    for row in rows:
        table.add_row(*(_said(column, value) for column, value in row.items()))
    return table


TITLES = {"macs": "MACs", "params": "parameters", "img_size": "px", "resolution": "px"}


def _said(column: str, value: Any) -> str:
    if isinstance(value, list):
        return " - ".join(_said(column, v) for v in value)
    if column in ("macs", "params"):
        return amount(value)
    return f"{value:.2e}" if isinstance(value, int) and value >= 10**6 else str(value)


def main() -> None:
    """Exit status 0: done; 2: a mistake in what was asked, in one line; 1: anything else."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log can be followed while it is written
    try:
        app(standalone_mode=False)
    except SuperformerError as error:
        print(f"superformer: {error}", file=sys.stderr)
        sys.exit(2)
    except StoppedError as error:
        print(f"superformer: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("superformer: stopped", file=sys.stderr)
        sys.exit(1)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own complaints about words have it
            raise
        print(f"superformer: {error.format_message()} (superformer --help lists the commands)", file=sys.stderr)
        sys.exit(2)
