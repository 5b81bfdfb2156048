"""One ONNX file, ``model.onnx``, for any number of pictures, with the classes and how pictures are prepared inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from superformer import __version__, files
from superformer.cost.runtimes import INPUT, as_onnx
from superformer.interop.export import Floats, need, on_cpu, preparation, random_batches
from superformer.runs.storage import StoredNetwork

FILE = "model.onnx"


def write(stored: StoredNetwork, folder: Path) -> None:
    """The file."""
    need("onnx", "onnx", "onnxscript", "onnxruntime")
    with on_cpu(stored):
        program = as_onnx(stored.net, random_batches(stored, 0)[1], any_batch=True)
    program.model.producer_name, program.model.producer_version = "superformer", __version__
    program.model.metadata_props.update(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts(stored).items()}
    )
    files.write_by(folder / FILE, lambda partial: program.save(partial))


def facts(stored: StoredNetwork) -> dict[str, Any]:
    """What the file tells of itself; everything but words is JSON."""
    of = preparation(stored)
    return {
        "superformer": __version__,
        "arch": stored.net.space.smallest().to_json(),
        "classes": list(stored.classes),
        "input_size": [of.channels, of.size, of.size],
        "mean": list(stored.mean),
        "std": list(stored.std),
        "resize": of.resize,
        "interpolation": of.interpolation,
    }


def answers(folder: Path, batches: list[Any]) -> list[Floats]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])
    return [session.run(None, {INPUT: x.numpy()})[0] for x in batches]
