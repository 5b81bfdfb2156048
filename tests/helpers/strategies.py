"""Small random spaces and architectures of every family.

``tests/helpers/small_spaces`` has one file a family; ``SUPERFORMER_LAWS=swin,twins pytest tests/families/test_laws.py``
holds only these to the laws."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from superformer.space import Space
from superformer.space.arch import Arch

ALL = sorted(
    f.stem for f in (Path(__file__).parent / "small_spaces").glob("*.py") if f.stem not in ("common", "__init__")
)
FAMILIES = [name for name in os.environ.get("SUPERFORMER_LAWS", "").split(",") if name] or ALL
SMALL = {name: importlib.import_module(f"helpers.small_spaces.{name}").spaces() for name in FAMILIES}

spaces = st.one_of(*SMALL.values())
sharings = st.sampled_from((("ordinal", "left"), ("bilateral", "left"), ("bilateral", "right"), ("cyclic", "left")))


@st.composite
def spaces_with_archs(draw: st.DrawFn, n: int = 1, of: st.SearchStrategy[Space] = spaces) -> tuple[Space, list[Arch]]:
    space = draw(of)
    return space, space.sample(n, seed=np.random.default_rng(draw(st.integers(0, 2**32))))


@st.composite
def runs(draw: st.DrawFn, size: int) -> tuple | None:
    """All of a dimension, one run, or a run wrapped around."""
    if draw(st.booleans()):
        return None
    start, width = draw(st.integers(0, size - 1)), draw(st.integers(1, size - 1))
    end = start + width
    return ((start, end),) if end <= size else ((start, size), (0, end - size))
