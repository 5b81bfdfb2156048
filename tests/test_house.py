"""The rules of the house that a reader cannot see in one file."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import superformer
from superformer.space.schema import FAMILIES

ROOT = Path(superformer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ASKING = {"is_autocast_enabled", "is_compiling", "is_dynamo_compiling", "is_exporting", "is_grad_enabled", "is_cuda"}
ASKING |= {"is_inference_mode_enabled", "_is_any_autocast_enabled", "get_autocast_dtype", "autocast"}
JOINS_PROCESSES = {"runs/processes.py"}


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def asks_for_device_or_mode(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        if not isinstance(node, ast.Attribute):
            continue
        of_device = node.attr == "type" and "device" in ast.unparse(node.value)
        if node.attr in ASKING or of_device:
            yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=name)
def test_only_kernels_and_what_joins_processes_ask_for_devices_and_modes(file):
    if not name(file).startswith("kernels/") and name(file) not in JOINS_PROCESSES:
        assert list(asks_for_device_or_mode(tree(file))) == []


def test_that_check_finds_what_it_looks_for():
    found = ast.parse("if x.device.type == 'cpu' or torch.is_grad_enabled():\n    y = torch.compiler.is_compiling()")
    assert len(list(asks_for_device_or_mode(found))) == 3
    assert list(asks_for_device_or_mode(tree(ROOT / "kernels" / "__init__.py"))) != []


def compares_a_family(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [case.pattern.value for case in getattr(node, "cases", []) if isinstance(case.pattern, ast.MatchValue)]
        for side in sides:
            values = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            asked = any("family" in ast.unparse(other) for other in sides if other is not side)
            if any(isinstance(v, ast.Constant) and v.value in FAMILIES for v in values) and asked:
                yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=name)
def test_nothing_outside_families_compares_a_familys_name(file):
    if not name(file).startswith("families/"):
        assert list(compares_a_family(tree(file))) == []


def test_that_check_finds_what_it_looks_for_too():
    assert list(compares_a_family(ast.parse("if arch.family != 'swin' or space.family in ('vit', 'twins'):\n    pass")))


@pytest.mark.parametrize("file", FILES, ids=name)
def test_files_are_short_and_import_each_other_at_the_top(file):
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines), default=0) <= 120
    if not name(file).startswith("cli/"):  # a command loads torch late
        functions = [n for n in ast.walk(tree(file)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        inner = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.ImportFrom)]
        assert [n.lineno for n in inner if (n.module or "").startswith("superformer")] == []


def test_rooms_are_small():
    assert len(FILES) <= 220
    assert len(list(ROOT.glob("*.py"))) <= 10
    for room in ("elastic", "search"):
        assert len(list((ROOT / room).glob("*.py"))) <= 14
    assert sum(len(file.read_text("utf-8").splitlines()) for file in FILES) <= 38_500


PAGES = [*(ROOT.parents[1] / "docs").rglob("*.md"), ROOT.parents[1] / "README.md", ROOT.parents[1] / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_documentation_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.xdist_group("house")
def test_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Fixtures that take long are made once: some versions of pytest ignore the groups of pytest-xdist."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@house")
