"""What a run tells about its method: error distributions, rank correlation, gradient conflicts, attention distances, seeds.

`analyse` gathers it in ``DIR/analysis.json``, which the report reads; each part is a file here and can be called by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superformer.lazy import lazy

if TYPE_CHECKING:
    from superformer.analysis.run import analyse
    from superformer.analysis.settings import CHEAP, PARTS, Settings
    from superformer.analysis.subject import Subject

__all__ = ["CHEAP", "PARTS", "Settings", "Subject", "analyse"]

lazy(__name__, {
    "CHEAP": "settings:CHEAP", "PARTS": "settings:PARTS", "Settings": "settings:Settings", "Subject": "subject:Subject",
    "analyse": "run:analyse",
})  # fmt: skip
