"""What analyses of the supernet drew: errors by the number of blocks (S3, figure 3), and attention over a picture (S3,
figures 4 and 8; ViTAS v1, figure 4)."""

from __future__ import annotations

from collections.abc import Callable

from superformer.draw import attention, depths
from superformer.draw.svg import Drawing
from superformer.report.inputs import Inputs
from superformer.report.markup import Markup, Section, paragraph, several, tag


def blocks(inputs: Inputs) -> Section | None:
    """Which stages are worth more blocks."""
    rows = [row for row in inputs.analysis.get("depths") or [] if isinstance(row, dict) and row.get("errors")]
    if not rows:
        return None
    told = (
        "Networks with so many blocks in one stage, everything else at random (S3, figure 3): how large a share has an "
    )
    told += "error up to so much, and the mean error of the best of them. Where the lines lie apart, the number of "
    told += "blocks of that stage matters."
    return _drawn("depths", "Errors by the number of blocks", told, lambda: depths.draw(rows, inputs.space.name))


def maps(inputs: Inputs) -> Section | None:
    """What a token looks at."""
    found = inputs.analysis.get("maps")
    if not isinstance(found, dict) or not str(found.get("picture")).startswith("data:image/png;base64,"):
        return None
    told = (
        "Attention laid over the picture, the more the brighter; what the token cannot attend to (outside its window) "
    )
    told += "is dark. 2-3 is stage 2, block 3."
    return _drawn("maps", "What blocks look at", told, lambda: attention.draw(found))


def _drawn(id_: str, title: str, told: str, draw: Callable[[], Drawing]) -> Section | None:
    """A section with a drawing; what is damaged is left out."""
    try:
        figure = tag("figure", Markup(draw()), class_="chart full drawn")
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return Section(id_, title, several(paragraph(told), figure))
