"""Rules that several families have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from superformer.space.stage import Times

if TYPE_CHECKING:
    from superformer.space import Space


def undivided_heads(space: Space) -> Iterable[str]:
    """A sentence for every attention width that does not divide into one of its head counts."""
    for i, stage in enumerate(space.stages):
        for p, block in enumerate(stage.blocks):
            if isinstance(block["attn"], Times) and block["attn"].of == "heads":
                continue
            for attn in space.widths("attn", i, p):
                if bad := [h for h in space.widths("heads", i, p) if attn % h]:
                    yield f"an attention width of {attn} does not divide into {bad[0]} heads (stage {i}, block {p})"
