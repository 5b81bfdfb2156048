"""The configuration of a network among Hugging Face's transformers (``configuration_superformer.py`` of an export)."""

from __future__ import annotations

from typing import Any

from transformers.backbone_utils import BackboneConfigMixin
from transformers.configuration_utils import PreTrainedConfig


class SuperformerConfig(BackboneConfigMixin, PreTrainedConfig):  # type: ignore[misc]
    """An architecture, the size of its pictures, and which of its features a backbone gives.

    ``arch`` is the architecture as JSON; ``stage_names`` are the levels of its features, first to last."""

    model_type = "superformer"

    arch: dict[str, Any] | None = None
    image_size: int = 224
    num_channels: int = 3
    stage_names: list[str] | None = None

    def __post_init__(
        self, out_features: list[str] | None = None, out_indices: list[int] | None = None, **kwargs: Any
    ) -> None:
        self.stage_names = self.stage_names or ["stage1"]
        self.set_output_features_output_indices(out_features, out_indices)
        super().__post_init__(**kwargs)
