"""One ONNX file, ``model.onnx``, for any number of pictures, with classes and the preparation of pictures inside."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from superformer import files
from superformer.cost.runtimes import INPUT, as_onnx
from superformer.errors import VERSION
from superformer.interop.export import Floats, on_cpu, preparation, random_batches, require
from superformer.runs.storage import StoredNetwork

FILE = "model.onnx"


def write(stored: StoredNetwork, folder: Path) -> None:
    """The file. What it tells of itself is JSON, but for words."""
    require("onnx", "onnx", "onnxscript", "onnxruntime")
    with on_cpu(stored):
        program = as_onnx(stored.net, random_batches(stored, 0)[1], any_batch=True)
    program.model.producer_name, program.model.producer_version = "superformer", VERSION
    pictures = preparation(stored)
    told = program.model.metadata_props
    told |= {"superformer": VERSION, "arch": stored.net.space.smallest().to_json()}
    numbers = {
        "classes": list(stored.classes),
        "input_size": [pictures.channels, pictures.size, pictures.size],
        "mean": list(stored.mean),
        "std": list(stored.std),
        "resize": pictures.resize,
    }
    told |= {name: json.dumps(value) for name, value in numbers.items()} | {"interpolation": pictures.interpolation}
    files.write_by(folder / FILE, lambda partial: program.save(partial))


def logits_of(folder: Path, batches: list[Tensor]) -> list[Floats]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])
    return [session.run(None, {INPUT: x.numpy()})[0] for x in batches]
