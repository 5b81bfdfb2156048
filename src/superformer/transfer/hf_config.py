"""The configuration of a model that classifies pixels among Hugging Face's transformers
(``configuration_superformer.py`` of an export)."""

from __future__ import annotations

from typing import Any

from transformers.configuration_utils import PreTrainedConfig


class SuperformerPixelsConfig(PreTrainedConfig):  # type: ignore[misc]
    """A backbone, by its architecture as JSON (``arch``) or its name in timm, and a head with its settings."""

    model_type = "superformer_pixels"

    arch: dict[str, Any] | None = None
    timm: str | None = None
    head: str = "semantic-fpn"
    head_settings: dict[str, Any] | None = None
    num_channels: int = 3
