"""A network as torch traces it, and as ONNX: for measuring, and for export."""

from __future__ import annotations

import itertools
import keyword
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

INPUT, OUTPUT = "pixel_values", "logits"


def traced(model: nn.Module, x: Tensor, any_batch: bool = False) -> torch.export.ExportedProgram:
    """What a model computes for pictures like these; with ``any_batch``, for any number of them."""
    shapes = ({0: torch.export.Dim("batch")},) if any_batch else None
    with _quiet():
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    for spec in program.graph_signature.input_specs:
        words = (spec.target or "").split(".")
        if any(map(keyword.iskeyword, words)):  # torch writes them into Python source
            safe = ".".join(f"{word}_" if keyword.iskeyword(word) else word for word in words)
            program.state_dict[safe] = program.state_dict.pop(str(spec.target))
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
    functions = (function.all_nodes() for function in program.model.functions.values())
    for node in itertools.chain(program.model.graph.all_nodes(), *functions):
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
