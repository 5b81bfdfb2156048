"""What a run tells about its method: error distributions, rank correlation, gradient conflicts, attention distances,
seeds.

`analyse` gathers it in ``DIR/analysis.json``, which the report reads; each part is a file here and can be called by
itself."""

from __future__ import annotations

from superformer.analysis.parts import CHEAP, PARTS, Settings, analyse
from superformer.analysis.subject import Subject

__all__ = ["CHEAP", "PARTS", "Settings", "Subject", "analyse"]
