"""The source that a network needs, as a folder of files that import nothing of superformer.

Modules become files of one folder (``superformer.elastic.layers`` is ``superformer_elastic_layers.py``) and their imports of each other
relative ones: Hugging Face's loader follows no others. What is there is what a network imports when it is built and run; an import inside a
function, of a module that is not there, becomes an error that says so.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from superformer.errors import SuperformerError

PACKAGE = "superformer"
ALLOWED = {"numpy", "torch", "transformers"}
"""What else the files may import, beside the standard library."""


@dataclass(frozen=True)
class _Import:
    """An import of a module: where it is written, and whether it is only for type checkers (``typing``) or inside a function (``late``)."""

    node: ast.Import | ast.ImportFrom
    module: str
    typing: bool
    late: bool


def sources(roots: Mapping[str, str], version: str) -> dict[str, str]:
    """File names and texts of modules and of everything they import. ``roots`` gives the modules to begin with their files' names."""
    found: dict[str, str] = {}
    todo = list(roots)
    while todo:
        module = todo.pop()
        if module not in found:
            found[module] = _text(module)
            needed = [i.module for i in _imports(found[module], module) if not i.typing and not i.late]
            todo += [name for name in needed if name.split(".")[0] == PACKAGE]
    names = {module: roots.get(module, module.replace(".", "_")) for module in found}
    head = "# Part of {}, of {} {} (Apache-2.0), written by its export. Do not edit.\n"
    return {f"{names[m]}.py": head.format(m, PACKAGE, version) + _rewritten(text, m, names) for m, text in sorted(found.items())}


def _text(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise SuperformerError(f"the source of {module} cannot be found, and the export needs it: put the family into a file of its own")
    return Path(spec.origin).read_text()


def _imports(text: str, module: str) -> Iterator[_Import]:
    def visit(node: ast.AST, typing: bool, late: bool) -> Iterator[_Import]:
        if isinstance(node, ast.Import):
            yield from (_Import(node, alias.name, typing, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise SuperformerError(f"{module}, line {node.lineno}: relative imports cannot be exported; write the module's whole name")
            yield _Import(node, node.module, typing, late)
        typing = typing or (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, typing, late)

    return visit(ast.parse(text), False, False)


def _rewritten(text: str, module: str, names: Mapping[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    for found in sorted(_imports(text, module), key=lambda i: -i.node.lineno):
        top, first, last = found.module.split(".")[0], found.node.lineno - 1, found.node.end_lineno or found.node.lineno
        indent = " " * found.node.col_offset
        if top != PACKAGE and (top in ALLOWED or top in sys.stdlib_module_names):
            continue
        if found.typing:
            lines[first:last] = [f"{indent}pass\n"]
        elif found.module in names and isinstance(found.node, ast.ImportFrom) and not _submodules(found.node, found.module):
            lines[first] = lines[first].replace(f"from {found.module} import", f"from .{names[found.module]} import", 1)
        elif found.late:
            lines[first:last] = [f'{indent}raise ImportError("{found.module} is not part of this export: pip install {top}")\n']
        else:
            raise SuperformerError(f"{module}, line {first + 1}: an import of {found.module} cannot be exported")
    return "".join(lines)


def _submodules(node: ast.ImportFrom, module: str) -> Iterable[str]:
    """The names of an import that are modules themselves, which a relative import of names cannot give."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return []
    return [alias.name for alias in node.names if importlib.util.find_spec(f"{module}.{alias.name}") is not None]
