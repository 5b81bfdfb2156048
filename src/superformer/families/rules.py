"""Rules that several families have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from superformer.elastic.count import Count
from superformer.errors import SuperformerError
from superformer.space.stage import Times

if TYPE_CHECKING:
    from superformer.space import Space


def free_heads(space: Space) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """The blocks whose attention width is not declared as a multiple of their heads: stage, position, widths, head counts."""
    for i, stage in enumerate(space.stages):
        for p, block in enumerate(stage.blocks):
            if not (isinstance(block["attn"], Times) and block["attn"].of == "heads"):
                yield i, p, space.widths("attn", i, p), space.widths("heads", i, p)


def undivided_heads(space: Space) -> Iterable[str]:
    """A sentence for every attention width that does not divide into one of its head counts."""
    for i, p, widths, heads in free_heads(space):
        for attn in widths:
            if bad := [h for h in heads if attn % h]:
                yield f"an attention width of {attn} does not divide into {bad[0]} heads (stage {i}, block {p})"


def undivided_pictures(resolutions: Iterable[int], *patches: int) -> Iterable[str]:
    """A sentence for every input size that does not divide into one of the patches."""
    for resolution in resolutions:
        for patch in patches:
            if patch < 1 or resolution % patch:
                yield f"a picture of {resolution} pixels does not divide into patches of {patch}"


def many_resolutions(space: Space) -> Iterable[str]:
    """A sentence if there is more than one input size."""
    if len(space.widths("resolution")) > 1:
        yield "position tables belong to one input size: a space of this family has one resolution"


def in_patches(height: Count, width: Count, patch: Count) -> tuple[Count, Count]:
    """Rows and columns of patches of a picture, which must divide into them."""
    whole = isinstance(height, int) and isinstance(width, int) and isinstance(patch, int)  # plain numbers, which torch.compile can follow
    if (height % patch or width % patch) if whole else (np.any(height % patch) or np.any(width % patch)):
        raise SuperformerError(
            f"a picture of {height} x {width} pixels does not divide into patches of {np.max(patch)}; resize it to a multiple"
        )
    return height // patch, width // patch
