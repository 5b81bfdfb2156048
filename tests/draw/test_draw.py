from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import superformer as sf
from superformer.draw.sketch import equal_runs, sketch
from superformer.errors import amount
from superformer.space.arch import Arch, StageArch, Values
from superformer.spaces import arch as published

SVG = "{http://www.w3.org/2000/svg}"


def stages(depths, widths, block) -> tuple[StageArch, ...]:
    return tuple(
        StageArch(tuple(block(w, k) for k in range(n)), Values(width=w)) for n, w in zip(depths, widths, strict=True)
    )


def swin() -> Arch:
    def block(w, k):
        return Values(window=7 * (1 + k % 2), heads=w // 32, attn=w, mlp=(4 - k % 3 / 2) * w)

    return Arch("swin", 224, Values(), stages((2, 2, 30, 2), (96, 192, 384, 768), block))


def twins() -> Arch:
    def block(w, k):
        return Values(type=("local", "global")[k % 2], heads=w // 32, attn=w, mlp=4 * w)

    return Arch("twins", 224, Values(), stages((1, 3, 10, 4), (64, 128, 256, 512), block))


def odd() -> Arch:
    """A family nobody knows, with names and words that XML must not read, no blocks here and no values there."""
    block = Values(
        {
            "gate": "<&\x00'\">",
            "rank of a very long and unheard-of kind <&>": 1 / 3,
            "heads": 3,
            "mlp": "auto",
            "attn": "inf",
        }
    )
    return Arch(
        "my <family> & Söhne",
        64,
        Values({"a&b": "<x>", **{f"choice{k}": k for k in range(40)}}),
        (
            StageArch((block,) * 3, Values(note="]]>")),
            StageArch(()),
            StageArch((Values(),) * 40),
            StageArch((Values(mid1=1e9, mlp=-1),)),
        ),
        Values({"'": '"'}),
    )


ARCHS = {
    "swin": swin(),
    "twins": twins(),
    "odd": odd(),
    **{n: published(n) for n in ("vitas_1_3g", "vit_resnas_medium", "autoformer_base")},
}


def corners(element) -> list[tuple[float, float]]:
    """Points that bound an element. Text is taken as half as wide as it is high for each letter."""
    tag, f = element.tag.removeprefix(SVG), lambda name: float(element.get(name, 0))
    if tag == "rect":
        return [(f("x"), f("y")), (f("x") + f("width"), f("y") + f("height"))]
    if tag == "circle":
        return [(f("cx") - f("r"), f("cy") - f("r")), (f("cx") + f("r"), f("cy") + f("r"))]
    if tag == "text":
        wide = 0.5 * f("font-size") * len(element.text or "")
        left = f("x") - wide * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "start")]
        return [(left, f("y") - f("font-size")), (left + wide, f("y"))]
    if tag == "path":
        x = y = 0.0
        points = []
        for command, numbers in re.findall(r"([MHVhv])([^MHVhv]*)", element.get("d")):
            n = [float(v) for v in numbers.split()]
            if command == "M":
                x, y = n
            else:
                x = {"H": n[0], "h": x + n[0]}.get(command, x)
                y = {"V": n[0], "v": y + n[0]}.get(command, y)
            points.append((x, y))
        return points
    return []


@pytest.mark.parametrize("name", ARCHS)
def test_pictures_are_well_formed_whole_and_inside_their_frame(name):
    arch = ARCHS[name]
    root = ElementTree.fromstring(sf.draw(arch))
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    blocks = [g.get("data-block") for g in root.iter(f"{SVG}g")]
    assert blocks == [f"{i + 1}.{k + 1}" for i, s in enumerate(arch.stages) for k in range(len(s.blocks))]
    _, _, width, height = map(float, root.get("viewBox").split())
    assert 400 < width <= 1000
    for element in root.iter():
        for x, y in corners(element):
            assert 0 <= x <= width, (element.attrib, element.text)
            assert 0 <= y <= height, (element.attrib, element.text)


@pytest.mark.parametrize("name", ARCHS)
def test_cards_hold_their_marks_and_do_not_overlap(name):
    root = ElementTree.fromstring(sf.draw(ARCHS[name]))
    cards = []
    for group in root.iter(f"{SVG}g"):
        (x0, y0), (x1, y1) = corners(group.find(f"{SVG}rect"))
        assert all(x1 <= a or x0 >= b or y1 <= c or y0 >= d for (a, c), (b, d) in cards)
        cards.append(((x0, y0), (x1, y1)))
        for element in group.iter():
            assert all(x0 - 1e-6 <= x <= x1 + 1e-6 and y0 <= y <= y1 for x, y in corners(element)), (
                element.attrib,
                element.text,
            )


def test_values_are_there_to_read():
    root = ElementTree.fromstring(sf.draw("vit_resnas_medium"))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    for said in ("vit_resnas_medium", "Stage 3", "3840", "16 h", "\u00d74.36"):
        assert said in texts
    line = next(t for t in texts if "MACs" in t)
    assert "4.51 G MACs" in line
    assert "20 blocks" in line
    assert any("map 16 \u00d7 16" in t and "width 240" in t for t in texts)
    titles = [t.text for t in root.iter(f"{SVG}title")]
    assert "Stage 2, block 1: 10 heads, attn 480, mlp 1120" in titles
    assert "Block 1: 10 heads, attn 480, mlp 1120." in root.find(f"{SVG}desc").text
    given = sf.draw(swin(), "mine", macs=1.5e9, params=2e6)
    assert "1.5 G MACs" in given
    assert "2 M parameters" in given


def test_equal_neighbours_types_and_unknown_names():
    assert "1\u201312 equal" in sf.draw("vitas_1_3g")
    texts = [t.text for t in ElementTree.fromstring(sf.draw(twins())).iter(f"{SVG}text")]
    assert texts.count("local") == 10 + 1  # and the legend
    texts = [t.text for t in ElementTree.fromstring(sf.draw(odd())).iter(f"{SVG}text")]
    assert "gate <&\ufffd'\">" in texts
    assert sum(t.endswith("… 0.3333") for t in texts) == 3
    assert sum(t == "3 heads" for t in texts) == 3
    assert "a&b <x>" in " ".join(texts)


def test_pictures_can_share_a_page():
    one, two = sf.draw("vitas_858m"), sf.draw("vitas_1g")
    ids = re.findall(r'\bid="([^"]*)"', one + two)
    assert len(ids) == len(set(ids)) == 6
    own = re.search(r'<svg[^>]* id="([^"]*)"', one).group(1)
    css = re.search("<style>(.*)</style>", one).group(1)
    assert "prefers-color-scheme:dark" in css
    assert all(
        rule.strip().startswith((f"#{own}", "@media", "}")) for rule in re.findall(r"(?:^|(?<=\}))[^{}]+(?=\{)", css)
    )
    assert "http" not in one.replace("http://www.w3.org/2000/svg", "")


def contrast(one: str, two: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, bright = sorted((light(one), light(two)))
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_in_light_and_dark():
    from superformer.draw.svg import DARK, LIGHT

    for colours in (LIGHT, DARK):
        for ground in ("bg", "card"):
            assert all(contrast(colours[text], colours[ground]) >= 4.5 for text in ("ink", "dim"))
            assert all(
                contrast(colours[mark], colours[ground]) >= 3 for mark in colours if mark[0] in "bw" and mark != "bg"
            )
        assert contrast(colours["bg"], colours["rule"]) >= 4.5


def test_a_drawing_is_text_shown_by_notebooks_and_saved_whole(tmp_path):
    drawing = sf.draw("vitas_1g")
    assert isinstance(drawing, str)
    assert drawing._repr_svg_() == drawing
    path = drawing.save(tmp_path / "net.svg")
    assert path.read_text(encoding="utf-8") == drawing
    assert os.listdir(tmp_path) == ["net.svg"]
    for wrong in (tmp_path / "none" / "net.svg", tmp_path, ""):
        with pytest.raises(sf.SuperformerError, match="cannot write"):
            drawing.save(wrong)
    assert os.listdir(tmp_path) == ["net.svg"]


def test_the_picture_of_the_documentation_is_current():
    assert (Path(__file__).parents[2] / "docs" / "architecture.svg").read_text(encoding="utf-8") == sf.draw(
        "vit_resnas_medium"
    )


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("plain", [False, True])
def test_terminal(name, plain):
    arch = ARCHS[name]
    text = sketch(arch, plain)
    lines = text.plain.splitlines()
    assert sum(line.startswith("Stage") for line in lines) == len(arch.stages)
    assert len(lines) == 1 + sum(2 + len(equal_runs(s.blocks)) for s in arch.stages)
    if plain and name != "odd":
        assert text.plain.isascii()
    if name == "swin":
        assert max(map(len, lines)) <= 80
    Console(file=open(os.devnull, "w"), width=40).print(text)  # noqa: SIM115


def test_amounts():
    assert [amount(v) for v in (0, 7, 999.9, 1234, 9.9999e8, 1.75e9)] == ["0", "7", "1 k", "1.23 k", "1 G", "1.75 G"]
    assert equal_runs([1, 1, 2, 1]) == [(0, 2), (2, 3), (3, 4)]
    assert equal_runs([]) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("models", "vitas_1g", "--draw", "{tmp}/none/net.svg"), "cannot write"),
        (("models", "vitas_1g", "--draw", "{tmp}"), "cannot write"),
        (("models", "vitas_1", "--draw", "{tmp}/net.svg"), "did you mean 'vitas_1g'"),
        (("models", "--draw", "{tmp}/net.svg"), "--draw needs the name"),
    ],
)
def test_command_line_mistakes(command, tmp_path, words, says):
    status, _, error = command(*(w.format(tmp=tmp_path) for w in words))
    assert status == 2
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_command_line_draws(command, tmp_path):
    path = tmp_path / "[bold]net.svg"
    status, out, _ = command("models", "vit_resnas_tiny", "--draw", str(path))
    assert status == 0
    assert path.read_text(encoding="utf-8") == sf.draw("vit_resnas_tiny")
    assert "Stage 3" in out
    assert path.name in out
