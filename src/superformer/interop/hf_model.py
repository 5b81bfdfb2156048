"""Networks as models of Hugging Face's transformers (``modeling_superformer.py`` of an export)."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from transformers.backbone_utils import BackboneMixin
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention as ClassifierOutput
from transformers.modeling_utils import PreTrainedModel

from superformer.families.network import Network
from superformer.families.weights import reset
from superformer.interop.hf_config import SuperformerConfig
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family


class SuperformerPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """A network, ``net``, built from the architecture in the configuration."""

    config_class = SuperformerConfig
    config: SuperformerConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    classifies = False
    _keys_to_ignore_on_load_unexpected: list[str] | None = [r"net\.head\."]

    def __init__(self, config: SuperformerConfig):
        super().__init__(config)
        arch = Arch.from_json(json.dumps(config.arch))
        classes = config.num_labels if self.classifies else 0
        self.net: Network = family(arch.family)(point(arch), classes, in_chans=config.num_channels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        reset(module, torch.default_generator)


class SuperformerModel(SuperformerPreTrainedModel):
    """The features: tokens (or a map) after the last block, and one vector for each picture."""

    def forward(self, pixel_values: Tensor, return_dict: bool | None = None, **kwargs: Any) -> Any:
        tokens = self.net.forward_features(pixel_values)
        pooled = self.net.forward_head(tokens, pre_logits=True)
        out = BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=pooled)
        return out if return_dict is not False else out.to_tuple()


class SuperformerForImageClassification(SuperformerPreTrainedModel):
    """The classifier."""

    classifies = True
    _keys_to_ignore_on_load_unexpected = None

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> Any:
        logits = self.net(pixel_values)
        loss = self.loss_function(labels, logits, self.config) if labels is not None else None
        out = ClassifierOutput(loss=loss, logits=logits)
        return out if return_dict is not False else out.to_tuple()


class SuperformerBackbone(BackboneMixin, SuperformerPreTrainedModel):  # type: ignore[misc]
    """Maps of features for detectors and the like: those of ``out_features``, each (batch, channels, rows, columns)."""

    has_attentions = False

    def __init__(self, config: SuperformerConfig):
        super().__init__(config)
        self.num_features = [level["num_chs"] for level in self.net.feature_info]

    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None, output_attentions: bool | None = None,
        return_dict: bool | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        levels = range(len(self.stage_names)) if output_hidden_states else self.out_indices
        maps = self.net.forward_intermediates(pixel_values, list(levels), intermediates_only=True, stop_early=True)
        by_level = dict(zip(levels, maps, strict=True))
        asked = tuple(by_level[i % len(self.stage_names)] for i in self.out_indices)
        out = BackboneOutput(feature_maps=asked, hidden_states=tuple(maps) if output_hidden_states else None)
        return out if return_dict is not False else out.to_tuple()
