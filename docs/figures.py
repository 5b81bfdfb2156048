"""The figures of the documentation, drawn from the library itself: python docs/figures.py writes budget.svg and architecture.svg."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import superformer as sf

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 340, 60, 56, 58
LOW, HIGH, BINS = 0.7, 3.6, 116
SERIES = (("every choice uniform, as the papers sample", "#4c72b0"), ("uniform over different architectures", "#dd8452"))


def main() -> None:
    space = sf.space("vit-resnas-tiny")
    x = lambda g: LEFT + (g - LOW) / (HIGH - LOW) * (WIDTH - LEFT - 20)  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<text x="16" y="24" font-size="15" font-weight="bold">MACs of networks drawn from vit-resnas-tiny (1.6e28 architectures)</text>',
    ]
    base, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    for k, (label, colour) in enumerate(SERIES):
        macs = sf.cost(space, space.sample_genes(200_000, seed=0, over=("choices", "architectures")[k])).macs / 1e9
        counts, edges = np.histogram(macs, bins=BINS, range=(LOW, HIGH))
        line = " ".join(f"{x(e):.1f},{base - c / counts.max() * room * 0.9:.1f}" for e, c in zip(edges, counts, strict=False))
        out.append(
            f'<polygon points="{x(LOW):.1f},{base} {line} {x(HIGH):.1f},{base}" fill="{colour}" fill-opacity="0.35" stroke="{colour}"/>'
        )
        out.append(f'<rect x="{LEFT + 8}" y="{TOP - 18 + 18 * k}" width="12" height="12" fill="{colour}" fill-opacity="0.6"/>')
        out.append(f'<text x="{LEFT + 26}" y="{TOP - 8 + 18 * k}" font-size="12">{label}</text>')
    for target in (1.0, 2.9):
        genes = space.sample_genes(1000, seed=0, macs=(0.99e9 * target, 1.01e9 * target))
        found = sf.cost(space, genes).macs / 1e9
        out.append(
            f'<rect x="{x(found.min()):.1f}" y="{TOP + 40}" width="{x(found.max()) - x(found.min()):.1f}" height="{base - TOP - 40}" fill="#55a868"/>'
        )
        anchor, at = ("start", x(target) + 10) if target < 2 else ("end", x(target) - 10)
        out.append(f'<text x="{at:.1f}" y="{TOP + 52}" font-size="12" fill="#2f7d46" text-anchor="{anchor}">1,000 exact draws</text>')
        out.append(
            f'<text x="{at:.1f}" y="{TOP + 67}" font-size="12" fill="#2f7d46" text-anchor="{anchor}">within 1 % of {target} G</text>'
        )
    out.append(f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 20}" y2="{base}" stroke="#333"/>')
    for tick in np.arange(1.0, 3.6, 0.5):
        out.append(f'<line x1="{x(tick):.1f}" y1="{base}" x2="{x(tick):.1f}" y2="{base + 5}" stroke="#333"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{base + 20}" font-size="12" text-anchor="middle">{tick:.1f} G</text>')
    out.append(
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 14}" font-size="12" text-anchor="middle">multiply-accumulates a picture at 224 pixels</text>'
    )
    out.append("</svg>")
    Path(__file__).with_name("budget.svg").write_text("\n".join(out) + "\n")
    sf.draw("vit_resnas_medium").save(Path(__file__).with_name("architecture.svg"))


if __name__ == "__main__":
    main()
