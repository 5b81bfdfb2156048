"""Hostile inputs: trees and texts changed at random, always the same for the same seed; and how a try ended.

``SUPERFORMER_FUZZ=20`` multiplies the number of cases: `cases` of a test are what fits into seconds."""

from __future__ import annotations

import copy
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import superformer as sf
from superformer.errors import StoppedError
from superformer.families.nasvit import RELEASED
from superformer.space import Space, Stage, ratio, times

TIMES = int(os.environ.get("SUPERFORMER_FUZZ", "1"))
SECONDS = 20
"""A case that takes longer hangs."""

RELATIVE, WIDTH = {"rel_pos": 3, "pool": "mean"}, {"width": (8, 16)}
MIXED = {"width": (8, 16), "mlp": ratio(1, 2, of="width"), "windows": (4, 1), "kernel": (3, 5), "expand": (2, 3)}
VIT = Stage({"heads": (1, 2), "attn": times(4, of="heads"), "mlp": ratio(1, 2.5, of="width")}, (1, 2))
FREE = Stage({"mid1": (4, 6), "mid2": 4}, 2, {**WIDTH, "entry1": 4, "entry2": (4, 6)}, skippable=range(2))
SMALL = [
    Space("small-vit", "vit", (VIT,), {"patch_size": (8, 4), "width": (8, 12)}, 16, RELATIVE),
    Space("small-resnet", "resnet", (FREE, FREE), {"stem": (4, 6)}, 32),
    Space("small-nasvit", "nasvit", (Stage({}, (0, 1), MIXED),), {"stem": 8, "head": (5, 6), "resolution": (16,
    32)}, 32,
          {**RELEASED, "stages": "t", "strides": "2", "squeeze_excite": "1"}),
]  # fmt: skip
"""Beside the recipes' laptop spaces: options and families that those do not have."""

DEEP: Any = 1
for _ in range(400):
    DEEP = [DEEP]
ATOMS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 7, 64, 97, 1000, 65536, 2**31, 2**63, 10**30, 0.5, -0.5, 1.5, 2.0, 1e-30,
    1e30,
    float("inf"), float("-inf"), float("nan"), "", "2", "yes", "off", "1&12", "inf", "local", "é\u0000", "x" * 300,
    [], {},
    [1], [1, 1], [4, 2], [[1, 2]], [96, "1&12"], [0], [-4, 8], [True, False], {"a": 1}, {"ratio": [1, 2],
    "of": "width"},
    {"ratio": [], "of": "width"}, {"ratio": ["a"], "of": "heads"}, {"ratio": [1e300], "of": "width"}, DEEP,
    {"times": 2, "of": "heads"}, {"times": "2", "of": "heads"}, {"times": -3, "of": "mlp"}, {"times": 1,
    "of": "attn"},
    {"ratio": [1, 1.0000001], "of": "width"}, {"ratio": [float("nan")], "of": "width"}, {"times": 0.5, "of": 3},
]  # fmt: skip


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a tree."""
    yield path
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*path, key))


def mutated(tree: Any, seed: int, most: int = 3, atoms: list[Any] = ATOMS) -> Any:
    """A tree with up to ``most`` changes: a value replaced, a number moved, a part gone, doubled or put elsewhere."""
    rng = random.Random(seed)
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, most)):
        all_ = [p for p in places(tree) if p]
        if not all_:
            break
        path = rng.choice(all_)
        *above, key = path
        node = tree
        for step in above:
            node = node[step]
        value, kind = node[key], rng.randrange(8)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and kind < 3:
            node[key] = rng.choice(
                [value + 1, value - 1, -value, 2 * value, value * 1000, value / 2, str(value), value + 0.5]
            )
        elif kind < 5:
            node[key] = copy.deepcopy(rng.choice(atoms))
        elif kind == 5:
            del node[key]
        elif kind == 6 and isinstance(node, list):
            node.insert(rng.randint(0, len(node)), copy.deepcopy(value))
        elif kind == 6:
            node[rng.choice(["", "x", "heads", "width", "options", f"{key}s", str(key).upper()])] = copy.deepcopy(value)
        else:
            other = tree
            for step in rng.choice(all_):
                if not isinstance(other, dict | list) or (isinstance(other, list) and not isinstance(step, int)):
                    break
                try:
                    other = other[step]
                except LookupError:
                    break
            node[key] = copy.deepcopy(other)
    return tree


def garbled(text: str, seed: int) -> str:
    """A text with characters gone, doubled, replaced, or with odd parts put in."""
    rng = random.Random(seed)
    parts = ["{", "}", "[", "]", ":", ",", '"', "'", "\t", "\n  ", "&a ", "*a", "!!python/name:os.system ",
    "!!timestamp x",
             "2024-13-45", "1e400", ".inf", ".nan", "9" * 5000, "? ", "- ", "\u0000", "é", "|", "%", "#", "<<: ",
             "~", "on"]  # fmt: skip
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        kind, size = rng.randrange(4), rng.randint(1, 8)
        if kind == 0:
            text = text[:at] + text[at + size :]
        elif kind == 1:
            text = text[:at] + text[at : at + size] + text[at:]
        elif kind == 2:
            text = text[:at] + rng.choice(parts) + text[at:]
        else:
            text = text[:at] + chr(rng.choice([*range(32, 127), 9, 10, 0, 0x2028])) + text[at + 1 :]
    return text


class Hang(BaseException):
    pass


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tried(do: Callable[[int], str], cases: int) -> tuple[Counter[str], list[str]]:
    """How cases ended: counts, and what ended badly. ``do`` answers with a word; what it raises must be ours, with one
    line to read that is not longer than a screen."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for seed in range(cases * TIMES):
        try:
            with alarm(SECONDS):
                ended = do(seed)
        except (sf.SuperformerError, StoppedError) as error:
            ended = "refused"
            if "\n" in str(error) or len(str(error)) > 2000:
                ended = "refused, but not in a line"
                bad.append(f"{seed}: {str(error)[:200]!r}")
        except Hang:
            ended = "hang"
            bad.append(f"{seed}: hang")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            ended = type(error).__name__
            bad.append(f"{seed}: {type(error).__name__}: {str(error)[:200]}")
        counts[ended] += 1
    return counts, bad
