"""A model that classifies pixels as a folder for Hugging Face's transformers, with its code in it: it is loaded without
superformer (`superformer.interop.huggingface`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from superformer import files
from superformer.errors import VERSION
from superformer.files import CONFIG
from superformer.interop.huggingface import ALLOWED, CONFIGURATION, MODELING, bundle
from superformer.runs.storage import WEIGHTS
from superformer.transfer.settings import Transfer

AUTO = "AutoModelForSemanticSegmentation"
CLASS = "SuperformerForSemanticSegmentation"
NEEDED = ("timm", "torchvision", "segmentation_models_pytorch")
"""What the folder's code may import beside transformers."""
HEAD_SETTINGS = ("channels", "dropout", "auxiliary")

CARD = """---
library_name: transformers
pipeline_tag: image-segmentation
---
A model that tells the class of every pixel ({head} on {name}), exported by superformer {version}. The folder has all
the code it needs beside transformers, timm, torchvision and, but for semantic-fpn, segmentation-models-pytorch:

```python
from transformers import AutoImageProcessor, AutoModelForSemanticSegmentation

processor = AutoImageProcessor.from_pretrained(FOLDER)
model = AutoModelForSemanticSegmentation.from_pretrained(FOLDER, trust_remote_code=True)
logits = model(**processor(picture, return_tensors="pt")).logits   # (1, classes, height, width)
classes = logits.argmax(1)                                         # model.config.id2label names them
```
"""


def write(model: nn.Module, settings: Transfer, facts: Mapping[str, Any], classes: list[str], folder: Path) -> None:
    """All files; the configuration last."""
    tensors = {f"segmenter.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    files.write_by(folder / WEIGHTS, lambda partial: save_file(tensors, partial, metadata={"format": "pt"}))
    here, own = __name__.rpartition(".")[0], facts["backbone"]
    roots = {f"{here}.hf_config": CONFIGURATION, f"{here}.hf_model": MODELING}
    arch = own.get("arch")
    for name, text in bundle(roots, arch["family"] if arch else None, ALLOWED | set(NEEDED)).items():
        files.write(folder / name, text)
    told = {"head": settings.head_used, "name": own["name"], "version": VERSION}
    files.write(folder / "README.md", CARD.format(**told))
    data = settings.data.of(settings.task)
    processor: dict[str, Any] = {"image_processor_type": "BitImageProcessor", "do_convert_rgb": True}
    processor |= {"do_resize": data.size is not None, "size": {"shortest_edge": data.size or 512}, "resample": 2}
    processor |= {"do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255}
    processor |= {"do_normalize": True, "image_mean": list(data.mean), "image_std": list(data.std)}
    files.write(folder / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")
    auto = {"AutoConfig": f"{CONFIGURATION}.SuperformerPixelsConfig", AUTO: f"{MODELING}.{CLASS}"}
    head = settings.head.model_dump(mode="json", include=set(HEAD_SETTINGS))
    config: dict[str, Any] = {"model_type": "superformer_pixels", "architectures": [CLASS], "auto_map": auto}
    config |= {"superformer_version": VERSION, "head": settings.head_used, "head_settings": head, "dtype": "float32"}
    config |= {"arch": arch} if arch else {"timm": own["name"]}
    config |= {"id2label": {str(i): name for i, name in enumerate(classes)}}
    config |= {"label2id": {name: i for i, name in enumerate(classes)}}
    files.write(folder / CONFIG, json.dumps(config, indent=2) + "\n")
