"""Splits that keep the shares of the classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from superformer.data.draws import generator
from superformer.errors import SuperformerError

Ints = npt.NDArray[np.int64]

SEED = 20240229
"""Of every split: constant, so that runs of different seeds, or one that goes on from another's weights, keep the same pictures apart."""


def split(labels: Ints, part: float, purpose: str, classes: Sequence[str]) -> tuple[Ints, Ints]:
    """Indices of the pictures that stay and of those that are carved off, each in rising order.

    ``part`` below 1 is a share of each class (at least one picture), from 1 on a number of pictures of each class. Every class keeps at
    least one picture.
    """
    if part >= 1 and part != int(part):
        raise SuperformerError(f"the {purpose} split of {part} is neither a share below 1 nor a whole number of pictures of each class")
    counts = np.bincount(labels, minlength=len(classes))
    least = 2 if part < 1 else int(part) + 1
    small = [f"{classes[c]!r} ({n})" for c, n in enumerate(counts) if n < least]
    if small:
        more = f" and {len(small) - 5} more" if len(small) > 5 else ""
        ask = f"{part:g} of each class" if part < 1 else f"{int(part)} pictures of each class"
        raise SuperformerError(
            f"the {purpose} split takes {ask} and must leave some, but these classes have fewer than {least} pictures: "
            f"{', '.join(small[:5])}{more}; add pictures, leave these classes out{_advice(purpose, part, counts)}"
        )
    shuffled = generator(SEED, purpose).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    starts = np.cumsum(counts) - counts
    take = np.clip(np.round(part * counts), 1, counts - 1).astype(np.int64) if part < 1 else np.full(len(counts), int(part))
    rank = np.arange(len(labels)) - np.repeat(starts, counts)
    held = rank < np.repeat(take, counts)
    return np.sort(by_class[~held]), np.sort(by_class[held])


def _advice(purpose: str, part: float, counts: Ints) -> str:
    possible = purpose == "search" and part >= 1 and counts.min() > 1
    return f", or set data.search to {int(counts.min()) - 1} or less" if possible else ""


def subset(labels: Ints, n: int) -> Ints:
    """``n`` indices in rising order (all, if there are no more), the classes as equal in number as they can be; always the same ones."""
    if n >= len(labels):
        return np.arange(len(labels))
    shuffled = generator(SEED, "subset").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[np.argsort(rank, kind="stable")[:n]])
