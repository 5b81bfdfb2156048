"""A folder for Hugging Face's transformers, with the code of the network in it: it is loaded without superformer and without a network."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from superformer import __version__, files
from superformer.errors import StoppedError
from superformer.export.code import sources
from superformer.export.proof import Floats, need, preparation
from superformer.families import family
from superformer.files import CONFIG
from superformer.stored import WEIGHTS, Stored, save_network

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


def write(stored: Stored, folder: Path) -> None:
    """All files; the configuration last."""
    need("hf", "transformers")
    save_network(stored.net, folder, stored.classes, stored.mean, stored.std)
    tensors = {f"net.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    files.write_by(folder / WEIGHTS, lambda partial: save_file(tensors, partial, metadata={"format": "pt"}))
    for name, text in code(stored).items():
        files.write(folder / name, text)
    arch, of = stored.net.space.smallest(), preparation(stored)
    card = CARD.format(family=arch.family, key=arch.key, size=of.size, classes=stored.net.num_classes, version=__version__)
    files.write(folder / "README.md", card)
    files.write(folder / "preprocessor_config.json", _json(processor(stored)))
    files.write(folder / CONFIG, _json(config(stored)))


def code(stored: Stored) -> dict[str, str]:
    """The source files of the network's family and of the classes that transformers asks for.

    transformers takes folders of one name for the same if their configuration's source is: it ends with a digest of all files.
    """
    cls = family(stored.net.space.family)
    here, home = __name__.rpartition(".")[0], cls.__module__.replace(".", "_")
    out = sources({f"{here}.hf_config": CONFIGURATION, f"{here}.hf_model": MODELING, cls.__module__: home}, __version__)
    out[f"{MODELING}.py"] += KNOWN.format(home=home, cls=cls.__name__, family=stored.net.space.family)
    digest = hashlib.sha256("".join(out.values()).encode()).hexdigest()
    out[f"{CONFIGURATION}.py"] += f"\n# {digest}\n"
    return out


def config(stored: Stored) -> dict[str, Any]:
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


def processor(stored: Stored) -> dict[str, Any]:
    """``preprocessor_config.json``, for the image processor of BiT: transformers' own class of resize, centre crop and normalise."""
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
    """What transformers computes, in a process of its own that has no superformer, no network and a cache that is thrown away."""
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
