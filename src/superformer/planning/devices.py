"""Devices to plan for: what their makers publish, and how much of it is reached."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from superformer.errors import SuperformerError, nearest
from superformer.planning.trace import Work
from superformer.settings import load_yaml

REACHED = 0.5
"""Of the published peaks, by ordinary operations; ``--measure`` replaces it."""
STARTS = 150_000
"""Operations that a host starts in a second."""
CPU = "cpu"
"""The processor of this machine, which no table knows."""
USABLE = 0.92
"""Of the memory: the rest is the driver's, the libraries', and lost between blocks."""


@dataclass(frozen=True)
class Device:
    """Memory in bytes, arithmetic in operations a second, bandwidths in bytes a second."""

    name: str
    memory: float
    single: float
    half: float
    bandwidth: float
    link: float
    bfloat16: bool = True
    reached: float = REACHED
    starts: float = STARTS
    published: bool = True

    @property
    def usable(self) -> float:
        return USABLE * self.memory

    def seconds(self, work: Iterable[Work], half: bool = False) -> float:
        """Of operations one after the other, each bound by its arithmetic, its bytes or its start."""
        peak, moved = (self.half if half else self.single) * self.reached, self.bandwidth * self.reached
        return sum(max(w.flops / peak, w.bytes / moved, 1 / self.starts) for w in work)

    @property
    def assumed(self) -> list[str]:
        """What a predicted time rests on."""
        return [
            f"{self.name}: {self.single / 1e12:.4g} TFLOP/s in float32 (as it multiplies matrices), "
            f"{self.half / 1e12:.4g} in half precision, {self.bandwidth / 1e9:.4g} GB/s of memory, "
            f"{self.link / 1e9:.4g} GB/s between devices, {'as published' if self.published else 'measured'}",
            f"{100 * self.reached:.0f} % of that is reached",
            f"the host starts {self.starts:,.0f} operations a second",
            "pictures are there in time; gradients travel when a step is done",
        ]


@dataclass(frozen=True)
class Devices:
    """Several of one kind."""

    count: int
    device: Device

    def __str__(self) -> str:
        return f"{self.count}x{self.device.name}"

    @staticmethod
    def read(text: str) -> Devices:
        """8xA100-80GB, A100-80GB; 64xH100, where only one begins like that."""
        count, name = counted(text)
        begin = [key for key in published() if key.lower().startswith(name.lower())]
        meant = [key for key in begin if key.lower() == name.lower()] or begin
        if len(meant) > 1:
            raise SuperformerError(f"devices are written as 8xA100-80GB, and {text!r} may be {' or '.join(meant)}")
        if not meant:
            what = nearest(name, [*sorted(published()), CPU])
            raise SuperformerError(f"devices are written as 8xA100-80GB, not {text!r}: {what}")
        return Devices(count, published()[meant[0]])


def counted(text: str) -> tuple[int, str]:
    """How many devices, and of which name."""
    found = re.fullmatch(r"(?:(\d{1,5})\s*x\s*)?([\w-]+)", text.strip())
    if found is None or int(found[1] or 1) < 1:
        what = nearest(text, [*sorted(published()), CPU])
        raise SuperformerError(f"devices are written as 8xA100-80GB, not {text!r}: {what}")
    return int(found[1] or 1), found[2]


@cache
def published() -> dict[str, Device]:
    """All that are known, by name."""
    text = (resources.files(__package__) / "devices.yaml").read_text()
    rows: dict[str, dict[str, Any]] = load_yaml(text, "the table of devices")
    return {
        name: Device(
            name, row["memory"] * 1e9, row["tf32"] * 1e12, row["half"] * 1e12, row["bandwidth"] * 1e9,
            row["link"] * 1e9, row["bfloat16"],
        )
        for name, row in rows.items()
    }  # fmt: skip
