"""What is published: spaces, models, recipes."""

from __future__ import annotations

import json

from rich.markup import escape

from superformer import catalogue
from superformer.cli.app import app
from superformer.cli.show import console, facts, listed, table
from superformer.cli.words import Draw, Json, Name
from superformer.errors import SuperformerError


@app.command()
def spaces(name: Name = None, as_json: Json = False) -> None:
    """The published search spaces; with NAME its choices and its range of MACs and parameters.

    Example: superformer spaces vit-resnas-tiny
    """
    if name is None:
        rows = [entry["summary"] for entry in catalogue.spaces().values()]
        if not as_json:
            rows = [{k: v for k, v in row.items() if k not in ("paths", "img_size")} for row in rows]
        listed(rows, "Published search spaces", as_json, "superformer spaces NAME shows a space's choices")
        return
    space = catalogue.space(name)
    if as_json:
        print(json.dumps({**space["summary"], "space": space["space"]}))
        return
    facts(space["summary"])
    console.print(table(space["table"], "\nChoices, from the smallest network to the largest"))


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
        listed(rows, "Published architectures", as_json, "superformer models NAME shows a network block by block")
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
    facts(summary)
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
        listed(rows, "Published recipes", as_json, "superformer recipes NAME shows every setting; superformer train --recipe NAME uses it")
        return
    recipe = published.resolve(name)
    print(json.dumps(recipe.model_dump(mode="json")) if as_json else published.dump(recipe), end="\n" if as_json else "")
