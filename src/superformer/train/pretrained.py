"""The timm network that a training begins with: by its name, with its published weights or a file of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
from safetensors import safe_open

import superformer.interop.timm  # noqa: F401  # timm knows our models, too
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.interop.hub import fetching
from superformer.interop.timm_weights import from_timm
from superformer.recipes.settings import Start


def from_timm_settings(settings: Start, size: int | None = None) -> Network:
    """The timm network of these settings as ours, for pictures of its own size or of another."""
    assert settings.timm is not None
    base = settings.timm.split(".")[0]  # without the tag of its weights
    if not set(":/") & set(settings.timm) and not timm.is_model(base):
        near = ", ".join(difflib.get_close_matches(base, timm.list_models(), 3)) or "timm.list_models() has all"
        raise SuperformerError(f"timm has no network {settings.timm!r}; possible: {near}")
    words: dict[str, Any] = {"pretrained": settings.pretrained and settings.checkpoint is None}
    if settings.checkpoint is not None:
        if not settings.checkpoint.endswith(".safetensors"):
            needed = "a safetensors file, which can hold nothing but weights"
            raise SuperformerError(f"the checkpoint must be {needed}, not {settings.checkpoint}")
        if not Path(settings.checkpoint).is_file():
            raise SuperformerError(f"there is no checkpoint {settings.checkpoint}")
        words["checkpoint_path"] = settings.checkpoint
        words |= _classes(settings.timm, settings.checkpoint)
    try:
        if words["pretrained"]:
            from_timm(settings.timm, pretrained=False)  # one that cannot be taken is refused before it is fetched
        instead = "give a file of weights (start.checkpoint=FILE.safetensors; fit: --checkpoint)"
        with fetching(f"the weights of {settings.timm}", instead) if words["pretrained"] else nullcontext():
            model = from_timm(settings.timm, **words)
            return model if size is None else _at_size(model, size, settings.timm, words)
    except SuperformerError:
        raise
    except Exception as error:  # timm's own errors are of many kinds
        what = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise SuperformerError(f"timm cannot make {settings.timm!r} with these weights ({what})") from error


def _classes(name: str, checkpoint: str) -> dict[str, int]:
    """The classes of a file of weights, if they are not those of the network's name: somebody's own."""
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    classifier = getattr(known, "classifier", None)
    heads = [f"{head}.weight" for head in ((classifier,) if isinstance(classifier, str) else classifier or ())]
    with suppress(Exception), safe_open(checkpoint, "pt") as file:  # timm tells of a file that cannot be read
        rows = [file.get_slice(head).get_shape()[0] for head in heads if head in file.keys()]  # noqa: SIM118
        if known is not None and rows and rows[0] != known.num_classes:
            return {"num_classes": int(rows[0])}
    return {}


def _at_size(model: Network, size: int, name: str, words: Mapping[str, Any]) -> Network:
    """A timm network for pictures of a size, if it can be one; else as it is (what fits of it is resized later)."""
    if model.space.img_size == size:
        return model
    try:
        return from_timm(name, img_size=size, **words)
    except Exception:  # of timm's many kinds, too
        return model
