"""A network as torch traces it, and as ONNX: for export, and for measuring."""

from __future__ import annotations

import itertools
import json
import keyword
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from superformer import __version__, files
from superformer.interop.export import Floats, need, on_cpu, preparation, random_batches
from superformer.runs.storage import StoredNetwork

INPUT, OUTPUT = "pixel_values", "logits"


def traced(model: nn.Module, x: Tensor, any_batch: bool = False) -> torch.export.ExportedProgram:
    """What a model computes for pictures like these; with ``any_batch``, for any number of them."""
    shapes = ({0: torch.export.Dim("batch")},) if any_batch else None
    with _quiet():
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    for spec in program.graph_signature.input_specs:
        if spec.target and any(
            keyword.iskeyword(word) for word in spec.target.split(".")
        ):  # torch writes them into Python source
            safe = ".".join(f"{word}_" if keyword.iskeyword(word) else word for word in spec.target.split("."))
            program.state_dict[safe] = program.state_dict.pop(spec.target)
            spec.target = safe
    return program


def as_onnx(model: nn.Module, x: Tensor, any_batch: bool = False) -> torch.onnx.ONNXProgram:
    """A model as ONNX, without the places in its source that torch notes at every operation."""
    with _quiet():
        program = torch.onnx.export(
            traced(model, x, any_batch),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: "batch"},) if any_batch else None,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for node in itertools.chain(
        program.model.graph.all_nodes(), *(f.all_nodes() for f in program.model.functions.values())
    ):
        node.metadata_props.clear()
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns of its own future and logs what it could not fold."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


# One ONNX file, ``model.onnx``, for any number of pictures, with the classes and the preparation of pictures inside.


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
