"""The report of a run, opened in a real browser: it needs no network, shows every evaluation, and works without a
mouse."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import recipe
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

import superformer as sf
from superformer import files
from superformer.draw.svg import DARK, LIGHT
from superformer.errors import SuperformerError, amount
from superformer.report import write
from superformer.report.inputs import read
from superformer.report.reproduction import rebuilt
from superformer.runs import RunError
from superformer.search import search
from superformer.search.space_evolution import evolve_space

pytestmark = pytest.mark.xdist_group("report")

EVIL = "<script>alert(1)</script>"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
SWITCHES += ["--disable-component-update", "--disable-sync"]
WORDS = ("evolve.rounds=1", "evolve.samples=6", "evolve.gamma={depth: 1, width: 8}", "evolve.tau=100")
WORDS += ("train.epochs=1", "watch.networks=1")


# --- a run, and a browser ---


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose space evolved, that was trained and searched."""
    folder = tmp_path_factory.mktemp("report")
    evolve_space(recipe(folder), "digits", folder / "run", *WORDS)
    space = sf.Run.open(folder / "run").space()
    middle = np.median(sf.cost(space, space.sample(99, seed=0), num_classes=10).macs)
    search(folder / "run", {"macs": (0, float(f"{middle:.2g}"))}, "nsga2", {"population": 10, "generations": 3})
    return folder / "run"


@pytest.fixture(scope="module")
def run(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with everything that other commands add, and names that are not what they seem."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(searched, folder)
    facts = json.loads((folder / "run.json").read_text())
    _json(folder / "run.json", facts | {"classes": [EVIL, *facts["classes"][1:]]})
    front = json.loads((folder / "front.json").read_text())
    for k, row in enumerate(front["front"]):
        row |= {"latency": 1e-3 * (1 + k), "measured": 1.1e-3 * (1 + k)}
    _json(folder / "front.json", front)
    best = next(row for row in front["front"] if row["key"] == front["best"])
    own = {"name": "best", "key": best["key"], "macs": best["macs"], "params": best["params"]}
    ways = {"inherited": 0.5, "finetuned": 0.75, "scratch": 0.625}
    rows = [
        own | {"weights": way, "accuracy": a, "epochs": 3, "seconds": 4.5, "img_size": 16} for way, a in ways.items()
    ]
    _json(folder / "retrained.json", {"rows": rows})
    rows = [
        own | {"name": name, "accuracy": a, "latency": None, "note": EVIL}
        for name, a in (("found", 0.75), ("random", 0.5))
    ]
    _json(folder / "comparison.json", {"rows": rows})
    times = {"threads": 1, "batch": 1, "median": 1e-3, "p90": 2e-3, "throughput": 1e3}
    _json(folder / "bench.json", {"machine": EVIL, "rows": [own | times | {"runtime": r} for r in ("eager", "onnx")]})
    points = [[0.5, 0.6], [0.6, 0.7], [0.7, 0.65]]
    known = {"name": "supernet and stand-alone", "pearson": 0.6, "spearman": 0.5, "kendall": None, "points": points}
    _json(folder / "analysis.json", {"correlations": [known], "weights": [{"key": "a", **ways}]})
    words = ["train", "--recipe", "my own.yaml", "--data", "digits", "--run", "run"]
    entry = {"words": words, "superformer": "0.1.0", "machine": "a machine"}
    (folder / "commands.jsonl").write_text(files.line(entry))
    write(folder, Console(quiet=True))
    return folder


def _json(path: Path, values: Any) -> None:
    files.write_object(path, {k: v for k, v in values.items() if k != "checksum"})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    assert path is not None, (
        f"the report is tested in a real browser, and none of {', '.join(names)} is installed: apt-get install chromium"
    )
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield opened
        opened.close()


class Opened:
    """A page, and all that it asked for and complained about."""

    def __init__(self, browser: Browser, folder: Path, **context: Any):
        self.context = browser.new_context(offline=True, **context)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto((folder / "report.html").as_uri())

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.complaints == []
            assert [url for url in self.asked if not url.startswith(("file:", "data:"))] == []


def _evaluated(folder: Path) -> list[tuple[str, str]]:
    return sqlite3.connect(folder / "history.db").execute("SELECT key, arch FROM evaluations").fetchall()


# --- in the browser ---


def test_everything_is_drawn_without_network(run: Path, browser: Browser) -> None:
    assert (run / "report.html").stat().st_size < 5e6
    with Opened(browser, run) as shown:
        places = shown.locator("[data-chart]").count()
        assert places > 20
        assert shown.locator("[data-chart] > svg.drawn").count() == places
        sections = [
            shown.locator("section").nth(k).get_attribute("id") for k in range(shown.locator("section").count())
        ]
        wanted = "found front comparison retrained latency bench progress evolution distributions training conflicts "
        wanted += "correlations weights "
        assert sections == [*wanted.split(), "searched", "repeat"]
        links = shown.locator("nav a").evaluate_all("all => all.map(a => a.getAttribute('href').slice(1))")
        assert links == sections
        assert shown.locator(".tile").first.inner_text().split() == [
            "62.50",
            "%",
            "test",
            "accuracy",
            "from-scratch",
            "weights",
        ]  # as retrained last
        assert not re.search(r"NaN|undefined|Infinity|null", shown.locator("body").inner_text())
        assert not shown.evaluate(
            "[...document.querySelectorAll('svg.drawn *')].some(e => [...e.attributes].some(a => /NaN/.test(a.value)))"
        )


def test_every_evaluation_is_a_point(run: Path, browser: Browser) -> None:
    front = json.loads((run / "front.json").read_text())
    with Opened(browser, run) as shown:
        assert shown.locator("circle.point").count() - shown.locator(".legend circle.point").count() == len(
            _evaluated(run)
        )
        assert shown.locator("#front-chart circle.front").count() == len(front["front"])
        best = shown.locator("#front-chart circle.best")
        assert best.count() == 1
        assert front["best"] in (best.get_attribute("aria-label") or "")
        assert f"limit {amount(front['limits']['macs'][1])}" in shown.locator("#front-chart").inner_text()
        assert front["best"] in shown.locator("#chosen h3").inner_text()


def test_what_one_would_draw_by_hand_is_beside_the_front(
    searched: Path, run: Path, tmp_path: Path, browser: Browser
) -> None:
    by_hand = json.loads((run / "front.json").read_text())["baseline"]
    with Opened(browser, run) as shown:
        mark = shown.locator("#front-chart path.hand[role=img]")
        assert mark.count() == 1
        assert f"{by_hand['key']}, by hand: accuracy" in (mark.get_attribute("aria-label") or "")
        assert "by hand: the largest, scaled" in shown.locator("#front-chart").inner_text()
        assert by_hand["key"] in shown.locator("#front table tbody tr").last.inner_text()
    # a front of before has none
    old = shutil.copytree(searched, tmp_path / "old")
    front = json.loads((old / "front.json").read_text())
    _json(old / "front.json", {k: v for k, v in front.items() if k != "baseline"})
    assert "by hand" not in write(old).read_text().split("<script")[0]


def test_a_click_draws_the_network(run: Path, browser: Browser) -> None:
    archs = {key.partition("@")[0]: json.loads(arch) for key, arch in _evaluated(run)}
    with Opened(browser, run, viewport={"width": 1200, "height": 900}) as shown:
        alone = """() => {
            const dots = [...document.querySelectorAll("#front-chart > svg circle.point")];
            const all = dots.map(p => [p, +p.getAttribute("cx"), +p.getAttribute("cy")]);
            const far = (o, x, y) => Math.hypot(o[1] - x, o[2] - y);
            const away = ([p, x, y]) => Math.min(...all.filter(o => o[0] !== p).map(o => far(o, x, y)));
            const best = all.filter(o => !o[0].classList.contains("front")).sort((a, b) => away(b) - away(a))[0];
            return best[0].dataset.point;
        }"""
        place = int(shown.evaluate(alone))
        key = shown.evaluate("k => JSON.parse(document.getElementById('data').textContent).front.key[k]", place)
        shown.locator(f"[data-point='{place}']").hover(force=True)
        assert key in shown.locator("#front-chart .tip").inner_text()
        shown.locator(f"[data-point='{place}']").click(force=True)
        assert key in shown.locator("#chosen h3").inner_text()
        drawn = shown.locator("#chosen .blocks").evaluate_all("all => all.map(s => s.children.length)")
        assert drawn == [len(stage["blocks"]) for stage in archs[key]["stages"]]
        widths = [str(block["mlp"]) for stage in archs[key]["stages"] for block in stage["blocks"]]
        assert all(width in shown.locator("#chosen .cards").inner_text() for width in widths)
        shown.locator("summary", has_text="The front as a table").evaluate("s => s.parentElement.open = true")
        row = json.loads((run / "front.json").read_text())["front"][-1]
        shown.locator(f"button.key[data-key='{row['key']}']").first.click()
        picture = shown.locator("#chosen .drawing svg")
        assert picture.is_visible()
        assert picture.locator("[data-block]").count() == sum(len(stage["blocks"]) for stage in row["arch"]["stages"])
        assert f"--arch {row['key']}" in shown.locator("#chosen").inner_text()


def test_without_a_mouse(run: Path, browser: Browser) -> None:
    with Opened(browser, run) as shown:
        focused = "document.activeElement.matches('circle.point') ? +document.activeElement.dataset.point : -1"
        for _ in range(60):
            shown.keyboard.press("Tab")
            if (first := shown.evaluate(focused)) >= 0:
                break
        data = shown.evaluate("JSON.parse(document.getElementById('data').textContent).front")
        assert first == data["best"]
        along = sorted(data["front"], key=lambda k: (data["macs"][k], data["accuracy"][k]))
        shown.keyboard.press("Home")
        seen = [shown.evaluate(focused)]
        for _ in along[1:]:
            shown.keyboard.press("ArrowRight")
            seen.append(shown.evaluate(focused))
        assert [data["macs"][k] for k in seen] == [data["macs"][k] for k in along]
        assert sorted(seen) == sorted(along)
        shown.keyboard.press("Shift+ArrowLeft")
        other = shown.evaluate(focused)
        shown.keyboard.press("Enter")
        assert data["key"][other] in shown.locator("#chosen h3").inner_text()
        assert (
            shown.evaluate("getComputedStyle(document.activeElement).strokeWidth") == "4px"
        )  # where one is can be seen
        chart = shown.locator("#training svg.drawn").first
        chart.focus()
        shown.keyboard.press("ArrowRight")
        assert "largest: " in shown.locator("#training .tip").first.inner_text()


def test_the_axis_can_be_switched(run: Path, browser: Browser) -> None:
    with Opened(browser, run) as shown:
        points = shown.locator("#front-chart > svg circle.point")
        before, count = points.first.get_attribute("cx"), points.count()
        shown.get_by_role("radio", name="parameters").check()
        assert points.count() == count
        assert "parameters (k)" in shown.locator("#front-chart > svg").text_content()
        shown.get_by_role("radio", name="predicted latency").check()
        assert points.count() == len(
            json.loads((run / "front.json").read_text())["front"]
        )  # of the others it is not known
        shown.get_by_role("radio", name="MACs").check()
        assert points.first.get_attribute("cx") == before


def test_on_a_phone(run: Path, browser: Browser) -> None:
    with Opened(browser, run, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as shown:
        shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        right = "e => e.closest('svg') ? 0 : e.getBoundingClientRect().right"
        assert shown.evaluate(f"Math.max(...[...document.querySelectorAll('main *')].map({right}))") <= 361
        assert shown.locator("#chosen .cards").is_visible()
        assert shown.locator("#chosen .drawing").is_hidden()
        shown.locator("#front-chart circle.best").tap(force=True)
        assert shown.locator("#front-chart .tip").is_visible()


def _rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_light_dark_and_paper(run: Path, browser: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with Opened(browser, run, color_scheme="light") as shown:
        assert shown.evaluate(ground) == _rgb(LIGHT["bg"])
    with Opened(browser, run, color_scheme="dark") as shown:
        assert shown.evaluate(ground) == _rgb(DARK["bg"])
        card = "getComputedStyle(document.querySelector('.drawing rect.bg')).fill"
        assert shown.evaluate(card) == _rgb(DARK["bg"])
        shown.emulate_media(media="print")
        assert shown.evaluate(ground) == _rgb(LIGHT["bg"])
        assert shown.evaluate(card) == _rgb(LIGHT["bg"])
        assert shown.locator("nav").is_hidden()
        assert shown.locator("#front-chart svg.drawn").is_visible()
        shown.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert shown.locator("#recipe code").is_visible()
        assert shown.pdf(format="A4").startswith(b"%PDF")


def test_what_files_say_is_only_text(run: Path, browser: Browser) -> None:
    with Opened(browser, run) as shown:
        for where in ("#searched", "#comparison", "#bench"):
            assert EVIL in shown.locator(where).inner_text()
        assert shown.locator("script").count() == 2
    assert EVIL not in (run / "report.html").read_text()


@pytest.mark.parametrize("state", ["begun", "trained", "evaluated"])
def test_a_run_that_is_not_done(searched: Path, tmp_path: Path, browser: Browser, state: str) -> None:
    folder = tmp_path / "a run"
    shutil.copytree(searched, folder)
    gone = {"evaluated": ["front.json"], "trained": ["front.json", "history.db", "evolution.json", "spaces"]}
    gone["begun"] = [*gone["trained"], "supernet.safetensors", "metrics.jsonl"]
    for name in gone[state]:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.is_file()}
    assert write(str(folder)) == folder / "report.html"
    assert {f: f.stat().st_mtime_ns for f in before} == before
    with Opened(browser, folder) as shown:
        todo = shown.locator("#missing").inner_text()
        assert ("superformer train" in todo) == (state == "begun")
        assert re.search(rf"superformer search --run '{re.escape(str(folder))}' --macs-max [0-9.]+[kM]", todo)
        assert "superformer report" in todo
        there = shown.locator("section").evaluate_all("all => all.map(s => s.id)")
        assert ("front" in there) == (state == "evaluated")
        assert ("training" in there) == (state != "begun")
        assert ("evolution" in there) == ("distributions" in there) == (state == "evaluated")
        assert not {"comparison", "retrained", "latency", "bench", "correlations"} & set(there)


# --- without one ---


def test_a_damaged_file_is_told(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    write(folder)
    old = (folder / "report.html").read_text()
    for name in ("front.json", "bench.json", "history.db"):
        kept = (folder / name).read_bytes() if (folder / name).exists() else None
        (folder / name).write_text("{ no")
        with pytest.raises(SuperformerError, match=name):
            write(folder)
        (folder / name).unlink() if kept is None else (folder / name).write_bytes(kept)
    assert (folder / "report.html").read_text() == old
    with pytest.raises(RunError, match="there is no run"):
        write(tmp_path / "nothing")


def test_the_commands_to_repeat_a_run(searched: Path, run: Path) -> None:
    train, again = rebuilt(read(searched))
    assert (
        train
        == f"superformer evolve-space --recipe {searched}/spaces/0/recipe.yaml --data digits --run {searched}-again"
    )
    limit = amount(read(searched).limits["macs"][1]).replace(" ", "")
    assert (
        again
        == f"superformer search --run {searched}-again --macs-max {limit} --method nsga2 population=10 generations=3"
    )
    told = (run / "report.html").read_text()
    assert "superformer train --recipe &#x27;my own.yaml&#x27; --data digits --run run" in told
    assert f"superformer search --run {run}-again" in told  # nobody noted it
    assert f"--run {run}-again" not in told.partition("superformer search")[0]


def test_rows_of_several_seeds_and_of_larger_pictures(searched: Path, tmp_path: Path) -> None:
    """The mean, the deviation and how many; what a network was tuned from; and the headline of the one handed over."""
    folder = Path(shutil.copytree(searched, tmp_path / "run"))
    key = json.loads((folder / "front.json").read_text())["best"]
    row = {"name": "best", "key": key, "of": key, "macs": 1e6, "params": 1e5, "epochs": 3, "seconds": 4.5}
    seeds = {"seeds": [0, 1, 2], "accuracy": 0.75, "deviation": 0.0125, "accuracies": [0.7375, 0.75, 0.7625]}
    rows = [row | seeds | {"weights": "scratch", "img_size": 16, "from": ""}]
    rows.append(row | seeds | {"weights": "scratch", "img_size": 32, "key": "larger", "from": "scratch, 16 pixels"})
    rows.append(row | {"weights": "finetuned", "img_size": 16, "accuracy": 0.5, "seeds": [1]})
    _json(folder / "retrained.json", {"rows": rows[2:] + rows[:2]})
    page = write(folder, Console(quiet=True)).read_text()
    for text in ("75.00 % \u00b1 1.25 % (3 seeds)", "from scratch, then 32 pixels", "scratch, 16 pixels", "seed 1"):
        assert text in page, text
    assert "mean of 3 seeds" in page
    assert "the first seed" in page
