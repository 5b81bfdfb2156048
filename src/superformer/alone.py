"""One sub-network of a run by itself: with its inherited weights, or trained alone.

A network is the supernet of a space with one point, so training it is training (`superformer.train.loop`) with a recipe that
`superformer.single` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data
from superformer.evaluation.opened import Opened
from superformer.families.base import Network
from superformer.files import CONFIG
from superformer.recipes import Recipe
from superformer.run import Run
from superformer.space.arch import Arch
from superformer.stored import save_network
from superformer.train.loop import train
from superformer.train.world import World


def save(run: Run, net: Network, folder: Path) -> None:
    """Write a network (`superformer.stored`) with what its user must know of the run: classes, and how pictures are prepared."""
    settings = run.recipe().data
    save_network(net, folder, run.facts()["classes"], settings.mean, settings.std, **prepared(run, net))


def prepared(run: Run, net: Network) -> dict[str, Any]:
    """How pictures are cut: those that are not larger than the input lose no border (`superformer.data.frames`)."""
    settings, size = run.recipe().data, net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], settings, size)
    small = min(pictures.train.picture(0).shape[:2]) <= size
    return {"crop": 1.0 if small else settings.crop, "interpolation": settings.interpolation}


def kept(run: Run, arch: Arch, folder: Path) -> Path:
    """The folder of a sub-network with its inherited weights, written now if there is none."""
    world = World.join()
    if world.first and not (folder / CONFIG).exists():
        save(run, Opened.of(run).network(arch), folder)
    world.wait()
    return folder


def trained(run: Run, recipe: Recipe, home: Path, start: Path | None, console: Console | None = None) -> Run:
    """Train the network of a recipe (see `superformer.single`) in ``home``, from the weights of the network in ``start`` if there is one.

    Killed, the same call goes on.
    """
    own = Run(home)
    if start is not None:
        begun = own.recipe().start if own.recipe_file.exists() else recipe.start.model_copy(update={"network": str(start)})
        recipe = recipe.model_copy(update={"start": begun})  # the same words, even if the run was moved since
    return train(recipe, run.facts()["data"], home, console=console)
