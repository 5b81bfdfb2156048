"""Networks of other tools and for them: timm, Hugging Face, ONNX Runtime, and the weights that the authors released."""

from __future__ import annotations

from superformer.errors import SuperformerError, nearest

FORMATS = {"onnx": "onnx", "timm": "timm", "hf": "huggingface"}
"""The formats of exports, and the module of each."""


def format_module(to: str) -> str:
    """The module that writes and reads a format of exports."""
    if to not in FORMATS:
        raise SuperformerError(f"unknown format {to!r}: {nearest(to, FORMATS)}")
    return f"{__name__}.{FORMATS[to]}"
