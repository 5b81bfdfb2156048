"""The network and the trainer that a recipe describes, before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superformer.build import supernet
from superformer.elastic.synced import synchronise
from superformer.errors import SuperformerError
from superformer.families.base import Network
from superformer.recipes import Recipe
from superformer.recipes.settings import Start
from superformer.run import Run
from superformer.space import Space
from superformer.stored import load_network
from superformer.telling import Tell
from superformer.timm_weights import from_timm
from superformer.train import start, teachers
from superformer.train.step import Trainer
from superformer.train.world import World
from superformer.trained import load_supernet


def prepare(
    recipe: Recipe,
    space: Space,
    classes: Sequence[str],
    steps: int,
    steps_per_epoch: int,
    world: World,
    begins: bool = True,
    tell: Tell = lambda text: None,
) -> Trainer:
    """The trainer of a run that begins, or (without weights to start from) of one that goes on."""
    words: dict[str, Any] = {}
    if recipe.mix.patches != "off":
        if space.family != "vit_res":
            raise SuperformerError(
                f"mix.patches needs networks with a patch head (family vit_res), not {space.family}: set mix.patches=off"
            )
        words["patch_head"] = True
    if recipe.train.channel_sort and recipe.sharing != "ordinal":
        raise SuperformerError(f"train.channel_sort puts the best channels first; {recipe.sharing} sharing has no first ones: set it to 0")
    if recipe.sampling.rule == "multi" and recipe.train.batch_size % (recipe.sampling.networks * recipe.train.accumulate * world.size):
        raise SuperformerError(
            f"a batch of {recipe.train.batch_size} cannot be shared equally by {recipe.sampling.networks} networks, {world.size} processes"
            f" and {recipe.train.accumulate} parts: change train.batch_size or sampling.networks"
        )
    taught = teachers.load(recipe.loss.teachers, len(classes), recipe.data.mean, recipe.data.std, tuple(classes))
    net = supernet(space, len(classes), recipe.sharing, recipe.seed, recipe.train.drop_path, **words)
    if begins and (report := warm_start(net, recipe.start)) is not None:
        tell(report.text())
    net.to(world.device).train()
    if recipe.train.sync_norm and world.size > 1:
        synchronise(net)
    return Trainer(net, recipe, steps, steps_per_epoch, world, [t.to(world.device) for t in taught])


def warm_start(net: Network, settings: Start) -> start.Report | None:
    """Weights to begin with, from an earlier run, a stand-alone network or a timm network."""
    given = [name for name in ("run", "network", "timm") if getattr(settings, name) is not None]
    if len(given) > 1:
        raise SuperformerError(f"start.{given[0]} and start.{given[1]} are two beginnings: give one of them")
    if settings.run is not None:
        return start.from_supernet(net, load_supernet(Run.open(settings.run).supernet_file))
    if settings.network is not None:
        return start.from_network(net, load_network(settings.network).net)
    if settings.timm is None:
        return None
    words: dict[str, Any] = {"pretrained": settings.pretrained and settings.checkpoint is None}
    if settings.checkpoint is not None:
        if not settings.checkpoint.endswith(".safetensors"):
            raise SuperformerError(
                f"start.checkpoint must be a safetensors file, which can hold nothing but weights, not {settings.checkpoint}"
            )
        words["checkpoint_path"] = settings.checkpoint
    try:
        model = from_timm(settings.timm, **words)
    except SuperformerError:
        raise
    except Exception as error:  # timm's own errors are of many kinds
        raise SuperformerError(
            f"timm cannot make {settings.timm!r} with these weights ({type(error).__name__}: {str(error).splitlines()[0][:200]}); "
            "without a network connection give start.checkpoint=FILE.safetensors, or start.pretrained=false"
        ) from error
    return start.from_network(net, model)
