"""A folder for Hugging Face's transformers with the code of the network in it: it is loaded without superformer.

The source that a network needs becomes files of that one folder (``superformer.elastic.layers`` is
``superformer_elastic_layers.py``) and imports of each other relative ones: Hugging Face's loader follows no others.
What is there is what a network imports when it is built and run; an import inside a function, of a module that is not
there, becomes an error that says so."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from superformer import files
from superformer.errors import VERSION, StoppedError, SuperformerError
from superformer.files import CONFIG
from superformer.interop.export import Floats, preparation, require
from superformer.runs.storage import WEIGHTS, StoredNetwork, save_network
from superformer.space.schema import family

PACKAGE = "superformer"
ALLOWED = {"numpy", "torch", "transformers"}
"""What else the files may import, beside the standard library."""
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
A network of the family {family}, {key}, for pictures of {size} pixels and {classes} classes, exported by
superformer {version}. The folder has all the code it needs:

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(FOLDER)
model = AutoModelForImageClassification.from_pretrained(FOLDER, trust_remote_code=True)
logits = model(**processor(picture, return_tensors="pt")).logits
```
"""

REGISTRATION = """

from .{schema} import FAMILIES  # noqa: E402
from .{home} import {cls}  # noqa: E402

FAMILIES["{family}"] = {cls}
"""

PROOF = """
import sys
sys.modules["superformer"] = None  # as if it were not installed
import torch
import transformers
from safetensors.torch import load_file, save_file

auto, folder, asked, answered = sys.argv[1:]
transformers.AutoImageProcessor.from_pretrained(folder)
model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    save_file({name: model(x).logits.contiguous() for name, x in load_file(asked).items()}, answered)
"""


def write(stored: StoredNetwork, folder: Path) -> None:
    """All files; the configuration last."""
    require("hf", "transformers")
    save_network(stored.net, folder, stored.classes, stored.mean, stored.std)
    tensors = {f"net.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    files.write_by(folder / WEIGHTS, lambda partial: save_file(tensors, partial, metadata={"format": "pt"}))
    for name, text in code(stored).items():
        files.write(folder / name, text)
    net, arch, pictures = stored.net, stored.net.space.smallest(), preparation(stored)
    card = {"key": arch.key, "size": pictures.size, "classes": net.num_classes, "version": VERSION}
    files.write(folder / "README.md", CARD.format(family=arch.family, **card))
    # of BiT: transformers' own class of resize, centre crop and normalise
    processor: dict[str, Any] = {"image_processor_type": "BitImageProcessor", "do_convert_rgb": pictures.channels == 3}
    shorter, resample = {"shortest_edge": pictures.resize}, RESAMPLE[pictures.interpolation]
    processor |= {"do_resize": True, "size": shorter, "resample": resample}
    processor |= {"do_center_crop": True, "crop_size": {"height": pictures.size, "width": pictures.size}}
    processor |= {"do_rescale": True, "rescale_factor": 1 / 255}
    processor |= {"do_normalize": True, "image_mean": list(stored.mean), "image_std": list(stored.std)}
    files.write(folder / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")
    classes = stored.classes or tuple(f"class {i}" for i in range(net.num_classes))
    levels = [f"stage{k}" for k, _ in enumerate(net.feature_info, 1)]
    config: dict[str, Any] = {"model_type": "superformer", "architectures": ["SuperformerForImageClassification"]}
    config |= {"auto_map": AUTO_MAP, "superformer_version": VERSION, "arch": json.loads(arch.to_json())}
    config |= {"image_size": pictures.size, "num_channels": pictures.channels}
    config |= {"stage_names": levels, "out_features": levels[-1:]}
    config |= {"id2label": {str(i): name for i, name in enumerate(classes)}}
    config |= {"label2id": {name: i for i, name in enumerate(classes)}, "dtype": "float32"}
    files.write(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def logits_of(folder: Path, batches: list[Tensor], auto: str = "AutoModelForImageClassification") -> list[Floats]:
    """What transformers computes, in a process without superformer and internet and with a cache of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = (Path(scratch) / name for name in ("asked.safetensors", "answered.safetensors"))
        save_file({str(k): x.clone().contiguous() for k, x in enumerate(batches)}, asked)
        environment = os.environ | {"HF_HOME": scratch, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        words = [sys.executable, "-c", PROOF, auto, str(folder.resolve()), str(asked), str(answered)]
        done = subprocess.run(words, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoppedError(f"transformers could not load what was exported:\n{done.stderr.strip()[-2000:]}")
        found = load_file(answered)
    return [found[str(k)].numpy() for k in range(len(batches))]


def code(stored: StoredNetwork) -> dict[str, str]:
    """The source files of the network's family and of the classes that transformers asks for.

    transformers takes folders of one name for the same if their configuration's source is: it ends with a digest."""
    here = __name__.rpartition(".")[0]
    return bundle({f"{here}.hf_config": CONFIGURATION, f"{here}.hf_model": MODELING}, stored.net.space.family)


def bundle(roots: Mapping[str, str], family_name: str | None, allowed: Collection[str] = ALLOWED) -> dict[str, str]:
    """The source files of modules, with a family that they know; the configuration's ends with a digest of all."""
    if family_name is None:
        out = sources(roots, VERSION, allowed)
    else:
        cls = family(family_name)
        home, schema = _flat(cls.__module__), _flat(family.__module__)
        out = sources({**roots, cls.__module__: home}, VERSION, allowed)
        out[f"{MODELING}.py"] += REGISTRATION.format(schema=schema, home=home, cls=cls.__name__, family=family_name)
    digest = hashlib.sha256("".join(out.values()).encode()).hexdigest()
    out[f"{CONFIGURATION}.py"] += f"\n# {digest}\n"
    return out


def sources(roots: Mapping[str, str], version: str, allowed: Collection[str] = ALLOWED) -> dict[str, str]:
    """File names and texts of modules and of all they import. ``roots``: the modules to begin with, and their files;
    ``allowed``: what else they may import."""
    texts: dict[str, str] = {}
    todo = list(roots)
    while todo:
        module = todo.pop()
        if module not in texts:
            texts[module] = _text(module)
            todo += [
                m for i in _imports(texts[module], module) if i.ours and not (i.typing or i.late) for m in i.modules
            ]
    names = {module: roots.get(module, _flat(module)) for module in texts}
    head = f"# Part of {{}}, of {PACKAGE} {version} (Apache-2.0), written by its export. Do not edit.\n"
    return {f"{names[m]}.py": head.format(m) + _flattened(text, m, names, allowed) for m, text in sorted(texts.items())}


def _flat(module: str) -> str:
    return module.replace(".", "_")


def _text(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        told = f"the source of {module} cannot be found, and the export needs it"
        raise SuperformerError(f"{told}: put the family into a file of its own")
    return Path(spec.origin).read_text()


@dataclass(frozen=True)
class _Import:
    """An import statement: what it names of a module (``names``: as what), which of these are modules themselves
    (``modules_as``), whether it is only for type checkers (``typing``) or inside a function (``late``)."""

    node: ast.Import | ast.ImportFrom
    module: str
    names: tuple[str, ...]
    modules_as: Mapping[str, str]
    typing: bool
    late: bool

    @property
    def ours(self) -> bool:
        return self.module.split(".")[0] == PACKAGE

    @property
    def modules(self) -> list[str]:
        return [self.module] * bool(self.names) + list(self.modules_as)


def _imports(text: str, module: str) -> Iterator[_Import]:
    def visit(node: ast.AST, typing: bool, late: bool) -> Iterator[_Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                named = {alias.name: alias.asname} if alias.asname else {}
                yield _Import(node, alias.name, () if named else (alias.name,), named, typing, late)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                told = f"{module}, line {node.lineno}: relative imports cannot be exported"
                raise SuperformerError(f"{told}; write the module's whole name")
            names, modules = [], {}
            for alias in node.names:
                if _is_module(node.module, alias.name):
                    modules[f"{node.module}.{alias.name}"] = alias.asname or alias.name
                else:
                    names.append(f"{alias.name} as {alias.asname}" if alias.asname else alias.name)
            yield _Import(node, node.module, tuple(names), modules, typing, late)
        typing = typing or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, typing, late)

    return visit(ast.parse(text), False, False)


def _is_module(package: str, name: str) -> bool:
    if package.split(".")[0] != PACKAGE:
        return False
    spec = importlib.util.find_spec(package)
    return bool(spec and spec.submodule_search_locations) and importlib.util.find_spec(f"{package}.{name}") is not None


def _flattened(text: str, module: str, names: Mapping[str, str], allowed: Collection[str]) -> str:
    """The text of a module with its imports of ours as relative ones. A module itself is taken from those that Python
    has loaded: ``from . import`` is nothing that Hugging Face's loader follows."""
    lines = text.splitlines(keepends=True)
    for found in sorted(_imports(text, module), key=lambda i: -i.node.lineno):
        top, first, last = found.module.split(".")[0], found.node.lineno - 1, found.node.end_lineno or found.node.lineno
        if not found.ours and (top in allowed or top in sys.stdlib_module_names):
            continue
        if found.typing:
            new = ["pass"]
        elif set(found.modules) <= set(names) and not (isinstance(found.node, ast.Import) and found.names):
            new = [f"from .{names[found.module]} import {', '.join(found.names)}"] if found.names else []
            for other, name in found.modules_as.items():
                new.append(f"from .{names[other]} import __name__ as {name}")
                new.append(f'{name} = __import__("sys").modules[{name}]')
        elif found.late:
            new = [f'raise ImportError("{found.module} is not part of this export: pip install {top}")']
        else:
            raise SuperformerError(f"{module}, line {first + 1}: an import of {found.module} cannot be exported")
        lines[first:last] = [f"{' ' * found.node.col_offset}{line}\n" for line in new]
    return "".join(lines)
