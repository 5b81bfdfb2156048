"""The source that a network needs, as a folder of files that import nothing of superformer.

Modules become files of one folder (``superformer.elastic.layers`` is ``superformer_elastic_layers.py``) and their
imports of each other relative ones: Hugging Face's loader follows no others. What is there is what a network imports
when it is built and run; an import inside a function, of a module that is not there, becomes an error that says so."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from superformer import __version__, files
from superformer.errors import StoppedError, SuperformerError
from superformer.files import CONFIG
from superformer.interop.export import Floats, need, preparation
from superformer.runs.storage import WEIGHTS, StoredNetwork, save_network
from superformer.space.schema import family

PACKAGE = "superformer"
ALLOWED = {"numpy", "torch", "transformers"}
"""What else the files may import, beside the standard library."""


@dataclass(frozen=True)
class _Import:
    """An import of a module: where it is written, and whether it is only for type checkers (``typing``) or inside a
    function (``late``)."""

    node: ast.Import | ast.ImportFrom
    module: str
    typing: bool
    late: bool


def sources(roots: Mapping[str, str], version: str) -> dict[str, str]:
    """File names and texts of modules and of everything they import. ``roots`` gives the modules to begin with their
    files' names."""
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
    return {
        f"{names[m]}.py": head.format(m, PACKAGE, version) + _rewritten(text, m, names)
        for m, text in sorted(found.items())
    }


def _text(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise SuperformerError(
            f"the source of {module} cannot be found, and the export needs it: put the family into a file of its own"
        )
    return Path(spec.origin).read_text()


def _imports(text: str, module: str) -> Iterator[_Import]:
    def visit(node: ast.AST, typing: bool, late: bool) -> Iterator[_Import]:
        if isinstance(node, ast.Import):
            yield from (_Import(node, alias.name, typing, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise SuperformerError(
                    f"{module}, line {node.lineno}: relative imports cannot be exported; write the module's whole name"
                )
            yield _Import(node, node.module, typing, late)
        typing = typing or (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
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
        elif (
            found.module in names
            and isinstance(found.node, ast.ImportFrom)
            and not _submodules(found.node, found.module)
        ):
            lines[first] = lines[first].replace(f"from {found.module} import", f"from .{names[found.module]} import", 1)
        elif found.late:
            lines[first:last] = [
                f'{indent}raise ImportError("{found.module} is not part of this export: pip install {top}")\n'
            ]
        else:
            raise SuperformerError(f"{module}, line {first + 1}: an import of {found.module} cannot be exported")
    return "".join(lines)


def _submodules(node: ast.ImportFrom, module: str) -> Iterable[str]:
    """The names of an import that are modules themselves, which a relative import of names cannot give."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return []
    return [alias.name for alias in node.names if importlib.util.find_spec(f"{module}.{alias.name}") is not None]


# A folder for Hugging Face's transformers, with the code of the network in it: it is loaded without superformer and
# without a network.


CONFIGURATION, MODELING = "configuration_superformer", "modeling_superformer"
AUTO_MAP = {
    "AutoConfig": f"{CONFIGURATION}.SuperformerConfig",
    "AutoModel": f"{MODELING}.SuperformerModel",
    "AutoModelForImageClassification": f"{MODELING}.SuperformerForImageClassification",
    "AutoBackbone": f"{MODELING}.SuperformerBackbone",
}
RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}
"""Pillow's numbers, which transformers writes."""

CARD = """---
library_name: transformers
pipeline_tag: image-classification
---
A network of the family {family}, {key}, for pictures of {size} pixels and {classes} classes, exported by superformer {version}. The folder
has all the code it needs:

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(FOLDER)
model = AutoModelForImageClassification.from_pretrained(FOLDER, trust_remote_code=True)
logits = model(**processor(picture, return_tensors="pt")).logits
```
"""

KNOWN = """

from .superformer_families import FAMILIES  # noqa: E402
from .{home} import {cls}  # noqa: E402

FAMILIES["{family}"] = {cls}
"""

PROOF = """
import sys
sys.modules["superformer"] = None  # as if it were not installed
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModelForImageClassification

folder, asked, answered = sys.argv[1:]
AutoImageProcessor.from_pretrained(folder)
model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    save_file({name: model(x).logits for name, x in load_file(asked).items()}, answered)
"""


def write(stored: StoredNetwork, folder: Path) -> None:
    """All files; the configuration last."""
    need("hf", "transformers")
    save_network(stored.net, folder, stored.classes, stored.mean, stored.std)
    tensors = {f"net.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    files.write_by(folder / WEIGHTS, lambda partial: save_file(tensors, partial, metadata={"format": "pt"}))
    for name, text in code(stored).items():
        files.write(folder / name, text)
    arch, of = stored.net.space.smallest(), preparation(stored)
    card = CARD.format(
        family=arch.family, key=arch.key, size=of.size, classes=stored.net.num_classes, version=__version__
    )
    files.write(folder / "README.md", card)
    files.write(folder / "preprocessor_config.json", _json(processor(stored)))
    files.write(folder / CONFIG, _json(config(stored)))


def code(stored: StoredNetwork) -> dict[str, str]:
    """The source files of the network's family and of the classes that transformers asks for.

    transformers takes folders of one name for the same if their configuration's source is: it ends with a digest of all
    files."""
    cls = family(stored.net.space.family)
    here, home = __name__.rpartition(".")[0], cls.__module__.replace(".", "_")
    out = sources({f"{here}.hf_config": CONFIGURATION, f"{here}.hf_model": MODELING, cls.__module__: home}, __version__)
    out[f"{MODELING}.py"] += KNOWN.format(home=home, cls=cls.__name__, family=stored.net.space.family)
    digest = hashlib.sha256("".join(out.values()).encode()).hexdigest()
    out[f"{CONFIGURATION}.py"] += f"\n# {digest}\n"
    return out


def config(stored: StoredNetwork) -> dict[str, Any]:
    """``config.json``."""
    net, of = stored.net, preparation(stored)
    classes = stored.classes or tuple(f"class {i}" for i in range(net.num_classes))
    levels = [f"stage{k}" for k, _ in enumerate(net.feature_info, 1)]
    return {
        "model_type": "superformer",
        "architectures": ["SuperformerForImageClassification"],
        "auto_map": AUTO_MAP,
        "superformer_version": __version__,
        "arch": json.loads(net.space.smallest().to_json()),
        "image_size": of.size,
        "num_channels": of.channels,
        "stage_names": levels,
        "out_features": levels[-1:],
        "id2label": {str(i): name for i, name in enumerate(classes)},
        "label2id": {name: i for i, name in enumerate(classes)},
        "dtype": "float32",
    }


def processor(stored: StoredNetwork) -> dict[str, Any]:
    """``preprocessor_config.json``, for the image processor of BiT: transformers' own class of resize, centre crop and
    normalise."""
    of = preparation(stored)
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": of.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": of.resize},
        "resample": RESAMPLE[of.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": of.size, "width": of.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(stored.mean),
        "image_std": list(stored.std),
    }


def answers(folder: Path, batches: list[Any]) -> list[Floats]:
    """What transformers computes, in a process of its own that has no superformer, no network and a cache that is
    thrown away."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = (Path(scratch) / name for name in ("asked.safetensors", "answered.safetensors"))
        save_file({str(k): x for k, x in enumerate(batches)}, asked)
        environment = os.environ | {"HF_HOME": scratch, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        words = [sys.executable, "-c", PROOF, str(folder.resolve()), str(asked), str(answered)]
        done = subprocess.run(words, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoppedError(f"transformers could not load what was exported:\n{done.stderr.strip()[-2000:]}")
        found = load_file(answered)
    return [found[str(k)].numpy() for k in range(len(batches))]


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
