"""Architectures as pictures: a card for each block, stage by stage, as SVG in plain text.

A card's bars are the block's widths as multiples of its stage's width, so that stages can be compared; the number below
is the width itself. Names decide which values become bars, stripes or little grids (`superformer.draw.sketch`)."""

from __future__ import annotations

import math
import re

from superformer.draw import sketch, svg
from superformer.draw.sketch import SQUARES, WIDTHS, equal_runs, label, length, value_names, value_text
from superformer.draw.svg import Drawing, cut, text_width, wrapped
from superformer.errors import amount
from superformer.space.arch import Arch, Values
from superformer.spaces import arch as published

LEFT, RIGHT, LEAST, MOST = 64, 24, 640, 872
"""Room left and right of the cards; the least and the most room for cards."""
GAP, PAD, BAR, HEAD, LINE = 6, 6, 54, 20, 13
"""Between cards; inside a card; the height of a full bar; of a card's first line; of every other line."""
TIMES = "\u00d7"
FILLS = {"h": "ink", "i": "ink", "d": "dim", "on": "bg", "node": "rule"}
LINES = {"rail": ("edge", 2.0), "link": ("edge", 1.5), "grid": ("dim", 0.7), "gap": ("card", None)}


def draw(arch: Arch | str, name: str | None = None, macs: float | None = None, params: float | None = None) -> Drawing:
    """An architecture, or a published one by its name, as an SVG picture for light and dark pages.

    ``name`` is its title; without it, its key. MACs and parameters are counted if they are not given, and left out if
    the family is not known: any architecture can be drawn. ``draw(arch).save("net.svg")`` writes a file."""
    if isinstance(arch, str):
        name, arch = name or arch, published(arch)
    return Drawing(_Picture(arch, name, macs, params).text())


class _Picture:
    """One drawing in the making: ``y`` is how far down it has come."""

    def __init__(self, arch: Arch, name: str | None, macs: float | None, params: float | None):
        # what is drawn
        self.arch, self.name, self.id = arch, name or arch.key, "sf-" + re.sub(r"[^A-Za-z0-9_-]", "-", arch.key)
        facts = sketch.facts(arch)
        self.maps, self.widths, self.ratios = facts.maps, sketch.token_widths(arch), sketch.width_multiples(arch)
        self.macs, self.params = facts.macs if macs is None else macs, facts.params if params is None else params
        self.full = sketch.largest_multiples(self.ratios)
        # what is drawn how: widths as bars, one value as a little grid, one word as a coloured edge
        self.colour = {bar: f"b{k % 4}" for k, bar in enumerate(self.full)}
        blocks = [b for s in arch.stages for b in s.blocks]
        square = next((name for name in SQUARES if any(length(b, name) for b in blocks)), "")
        self.square, self.largest_square = square, max((length(b, square) for b in blocks), default=0)
        kinds = [n for n in value_names(blocks) if any(isinstance(b.get(n), str) for b in blocks)]
        self.kind = "type" if "type" in kinds else kinds[0] if kinds else ""
        words = dict.fromkeys(value_text(b[self.kind]) for b in blocks if self.kind in b)
        self.words = {word: f"w{k % 4}" for k, word in enumerate(words)}
        # how large cards are, and how many stand side by side
        self.slots = {bar: self._slot(bar) for bar in self.full}
        inner = [54.0]
        for b in blocks:
            inner.append(sum(self.slots[bar] + GAP for bar in self._bars(b)) - GAP)
            inner += [min(text_width(line, 9.5), 150) for line in self._lines(b)]
        self.card = max(inner) + 2 * PAD
        most = max(int((MOST + GAP) / (self.card + GAP)), 1)
        self.columns = [math.ceil(n / math.ceil(n / most)) if n else 0 for n in (len(s.blocks) for s in arch.stages)]
        self.room = max(LEAST, max(self.columns, default=0) * (self.card + GAP) - GAP)
        self.wide = math.ceil(LEFT + self.room + RIGHT)
        self.out, self.y = list[str](), 0.0

    def _slot(self, bar: str) -> float:
        """The room of a bar and of the two lines below it."""
        room = [30.0 if bar == "attn" else 22.0]
        for i, stage in enumerate(self.arch.stages):
            for k, block in enumerate(stage.blocks):
                if bar in block:
                    room += [text_width(value_text(block[bar]), 10), text_width(self._note(i, k, bar), 9.5)]
        return max(room)

    def _note(self, i: int, k: int, bar: str) -> str:
        """What stands below a bar's width: the heads, or the multiple of the stage's width."""
        block = self.arch.stages[i].blocks[k]
        if bar == "attn" and length(block, "heads"):
            return f"{value_text(block['heads'])} h"
        return _multiple(self.ratios[i][k][bar]) if self.widths[i] and bar in self.ratios[i][k] else ""

    def _bars(self, block: Values) -> list[str]:
        return [bar for bar in self.full if length(block, bar)]

    def _lines(self, block: Values) -> list[str]:
        """What a card says in words."""
        shown = {*self._bars(block), self.square}
        shown |= {"heads"} if "attn" in shown else set()
        return [label(n, block[n]) for n in value_names([block]) if n not in shown or not length(block, n)]

    def put(self, tag: str, content: str | None = None, **attributes: object) -> None:
        self.out.append(svg.element(tag, content, **attributes))

    def say(self, x: float, y: float, text: str, size: float = 10, class_: str = "d", anchor: str = "start") -> None:
        if text:
            self.out.append(svg.text(x, y, text, size, class_, anchor))

    def say_lines(self, x: float, parts: list[str], room: float, size: float, high: float, class_: str = "i") -> None:
        for line in wrapped(parts, room, size):
            self.y += high
            self.say(x, self.y, line, size, class_)

    def fill(self, x: float, y: float, width: float, height: float, class_: str, rx: float = 1.5) -> None:
        self.put("rect", x=float(x), y=float(y), width=float(width), height=float(height), rx=rx, class_=class_)

    def stripes(self, x: float, y: float, width: float, height: float, heads: int) -> None:
        """The gaps between heads."""
        step = width / max(heads, 1)
        if 1 < heads <= 64:
            path = "".join(f"M{x + step * k:.2f} {y:.2f}v{height:.2f}" for k in range(1, heads))
            self.put("path", d=path, class_="gap", stroke_width=float(min(1.2, step * 0.25)))

    def grid(self, right: float, y: float, value: float) -> None:
        """A square that grows with the value, in cells of one size; its lower right corner is given."""
        cells = max(math.ceil(5 * value / self.largest_square), 1)
        side = 2.4 * cells
        x, at = right - side, [2.4 * k for k in range(cells + 1)]
        path = "".join(f"M{x + d:.1f} {y - side:.1f}v{side:.1f}M{x:.1f} {y - d:.1f}h{side:.1f}" for d in at)
        self.put("path", d=path, class_="grid")

    def text(self) -> str:
        """All of it, and the same in words."""
        nodes, size = [self._head()], self.arch.resolution
        words = [f"A {self.arch.family} network of {sketch.counted(self.arch.depth)} for pictures of {size} pixels."]
        for i, stage in enumerate(self.arch.stages):
            nodes.append(self.y)
            self._stage(i)
            words.append(f"Stage {i + 1}: {', '.join(sketch.stage_facts(self.arch, i, self.maps))}.")
            for a, b in equal_runs(stage.blocks):
                which = f"Blocks {a + 1} to {b}" if b - a > 1 else f"Block {b}"
                words.append(f"{which}: {_sentence(stage.blocks[a])}.")
        self._legend()
        body, height, title, desc = self.out, math.ceil(self.y + 16), f"{self.id}-title", f"{self.id}-desc"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" id="{self.id}" viewBox="0 0 {self.wide} {height}" width="100%"'
        self.out = [f'{head} style="max-width:{self.wide}px" role="img" aria-labelledby="{title} {desc}">']
        self.put("title", f"Architecture {self.name}", id=title)
        self.put("desc", " ".join(words), id=desc)
        self.out.append(svg.style(self.id, FILLS, LINES, {"h": "font-weight:600", "card": "stroke:var(--edge)"}))
        self.fill(0, 0, self.wide, height, "bg", 10)
        self.put("path", d=f"M32 {nodes[0] + 12:.1f}V{nodes[-1] + 12:.1f}", class_="rail")
        for i, y in enumerate(nodes):
            self.put("circle", cx=32, cy=y + 12, r=12 if i else 5, class_="node")
            if i:
                self.say(32, y + 16, str(i), 12, "on", "middle")
        return "\n".join([*self.out, *body, "</svg>", ""])

    def _head(self) -> float:
        """The title, pictures, what holds for the whole network, and its options; where the first node is."""
        self.say(24, 38, cut(self.name, self.wide - 48, 20), 20, "h")
        costs = {"MACs": self.macs, "parameters": self.params}
        parts = [f"{amount(value)} {what}" for what, value in costs.items() if value is not None]
        parts += [sketch.counted(self.arch.depth), f"family {self.arch.family}"]
        parts += [self.arch.key] if self.name != self.arch.key else []
        self.y = 42
        self.say_lines(24, parts, self.wide - 48, 12.5, 18)
        self.y, size = self.y + 16, self.arch.resolution
        node = self.y
        parts = [f"picture {size} {TIMES} {size}", *(label(k, v) for k, v in self.arch.choices.items())]
        self.say_lines(LEFT, parts, self.room, 12, 16)
        self.say_lines(LEFT, [label(k, v) for k, v in self.arch.options.items()], self.room, 10.5, 15, "d")
        self.y += 20
        return node

    def _stage(self, i: int) -> None:
        self.say(LEFT, self.y + 16, f"Stage {i + 1}", 13.5, "h")
        lines = wrapped(sketch.stage_facts(self.arch, i, self.maps, TIMES), self.room - 80, 11.5)
        for k, line in enumerate(lines):
            self.say(LEFT + 74, self.y + 16 + 15 * k, line, 11.5, "i")
        self.y += 24 + 15 * (len(lines) - 1)
        self.fill(LEFT, self.y, self.room, 3, "edge")
        if self.widths[i] and len(self.widths) > 1:
            self.fill(LEFT, self.y, self.room * self.widths[i] / max(self.widths), 3, "rule")
        self.y += 12
        if self.arch.stages[i].blocks:
            self._cards(i)
        self.y += 16

    def _cards(self, i: int) -> None:
        blocks, columns = self.arch.stages[i].blocks, self.columns[i]
        words = HEAD + any(self._bars(b) for b in blocks) * (BAR + 2 * LINE + 2)
        tall = words + max(len(self._lines(b)) for b in blocks) * LINE + 6
        same = [(a, b) for a, b in equal_runs(blocks) if b - a > 1 and blocks[a]]
        for start in range(0, len(blocks), columns):
            stop = min(start + columns, len(blocks))
            xs = [LEFT + k * (self.card + GAP) for k in range(stop - start)]
            self.put("path", d=f"M{LEFT} {self.y + tall / 2:.1f}H{xs[-1] + self.card:.1f}", class_="link")
            for k, x in enumerate(xs, start):
                self._block(i, k, x, tall, words)
            self.y += tall
            here = [(a, b) for a, b in same if a < stop and b > start]
            for a, b in here:
                left, right = xs[max(a - start, 0)] + 2, xs[min(b, stop) - 1 - start] + self.card - 2
                self.put("path", d=f"M{left:.1f} {self.y + 3:.1f}v4H{right:.1f}v-4", class_="link")
                self.say((left + right) / 2, self.y + 19, f"{a + 1}\u2013{b} equal", 10, "d", "middle")
            self.y += (22 if here else 0) + (10 if stop < len(blocks) else 0)

    def _block(self, i: int, k: int, x: float, tall: float, words: float) -> None:
        block, y = self.arch.stages[i].blocks[k], self.y
        self.out.append(f'<g data-block="{i + 1}.{k + 1}">')
        self.put("title", f"Stage {i + 1}, block {k + 1}: {_sentence(block)}")
        self.fill(x, y, self.card, tall, "card", 5)
        if self.kind in block:
            self.fill(x, y, self.card, 4, self.words[value_text(block[self.kind])], 2)
        self.say(x + PAD, y + 16, str(k + 1))
        if value := length(block, self.square):
            text, right = value_text(block[self.square]), x + self.card - PAD
            self.say(right, y + 16, text, 10, "i", "end")
            self.grid(right - text_width(text, 10) - 2, y + 17, value)
        base, bars = y + HEAD + BAR, self._bars(block)
        spare = self.card - 2 * PAD - sum(self.slots[b] for b in bars)
        left, between = x + PAD, spare / (len(bars) - 1) if len(bars) > 1 else 0
        for bar in bars:
            slot, high = self.slots[bar], max(BAR * self.ratios[i][k][bar] / self.full[bar], 1.5)
            self.fill(left, base - high, slot, high, self.colour[bar])
            if bar == "attn":
                self.stripes(left, base - high, slot, high, int(length(block, "heads")))
            self.say(left + slot / 2, base + 12, value_text(block[bar]), 10, "i", "middle")
            self.say(left + slot / 2, base + 24, self._note(i, k, bar), 9.5, "d", "middle")
            left += slot + between
        room = self.card - 2 * PAD
        for n, text in enumerate(self._lines(block), 1):
            name, _, own = text.rpartition(" ")
            if name and text_width(text, 9.5) > room:  # less of the name where both are too long
                text = f"{cut(name, room - text_width(' ' + own, 9.5), 9.5)} {own}"
            self.say(x + PAD, y + words + n * LINE - 3, cut(text, room, 9.5), 9.5, "i")
        self.out.append("</g>")

    def _legend(self) -> None:
        """What the marks mean: those of this picture only."""
        heads = any(length(b, "heads") for s in self.arch.stages for b in s.blocks)
        stripes = ", a stripe for each head (h)" if heads else ""
        items = [(self.colour[bar], f"{bar}: {WIDTHS[bar]}{stripes if bar == 'attn' else ''}") for bar in self.full]
        items += [("grid", f"{self.square}: {SQUARES[self.square]}")] if self.square else []
        items += [(colour, label(self.kind, word)) for word, colour in self.words.items()]
        items += [("rule", "line below a stage: its width")] if any(self.widths) and len(self.widths) > 1 else []
        self.fill(24, self.y - 4, self.wide - 48, 1, "edge", 0)
        x, self.y = 24.0, self.y + 17
        for mark, text in items:
            text = cut(text, self.wide - 80, 11)
            if x > 24 and x + 20 + text_width(text, 11) > self.wide - 24:
                x, self.y = 24.0, self.y + 18
            if mark == "grid":
                self.grid(x + 13, self.y + 1, self.largest_square)
            else:
                self.fill(x, self.y - (5 if mark == "rule" else 10), 14, 3 if mark == "rule" else 12, mark)
                if stripes and text.startswith("attn:") and stripes in text:
                    self.stripes(x, self.y - 10, 14, 12, 3)
            self.say(x + 20, self.y, text, 11, "i")
            x += 36 + text_width(text, 11)
        if self.full:
            unit = f"{TIMES} is a multiple of the stage's width" if any(self.widths) else "heights are widths"
            shown = _multiple if any(self.widths) else value_text
            tops = ", ".join(f"{bar} {shown(top)}" for bar, top in self.full.items())
            self.y += 19
            self.say(24, self.y, cut(f"Bars: {unit}; full height is {tops}.", self.wide - 48, 11), 11)


def _sentence(block: Values) -> str:
    return ", ".join(label(n, block[n]) for n in value_names([block])) or "no values"


def _multiple(ratio: float) -> str:
    return TIMES + (f"{ratio:.2f}".rstrip("0").rstrip(".") if ratio >= 0.01 else f"{ratio:.1g}")
