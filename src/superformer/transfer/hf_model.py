"""A model that classifies pixels among Hugging Face's transformers (``modeling_superformer.py`` of an export)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SemanticSegmenterOutput
from transformers.modeling_utils import PreTrainedModel

from superformer.families.weights import reset
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family
from superformer.transfer.backbone import Backbone, timm_network
from superformer.transfer.heads.segmentation import cross_entropy, dpt, segformer, semantic_fpn, upernet
from superformer.transfer.hf_config import SuperformerPixelsConfig

BUILDS: dict[str, Any] = {"semantic-fpn": semantic_fpn, "upernet": upernet, "segformer": segformer, "dpt": dpt}


class SuperformerForSemanticSegmentation(PreTrainedModel):  # type: ignore[misc]
    """Logits of every pixel, (batch, classes, height, width), of pictures of any size."""

    config_class = SuperformerPixelsConfig
    config: SuperformerPixelsConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def __init__(self, config: SuperformerPixelsConfig):
        super().__init__(config)
        if config.timm is not None:
            net = timm_network(config.timm, pretrained=False)
        else:
            arch = Arch.from_json(json.dumps(config.arch))
            net = family(arch.family)(point(arch), 0, in_chans=config.num_channels)
        own: Any = SimpleNamespace(**(config.head_settings or {}))
        self.segmenter = BUILDS[config.head](Backbone(net, blocks=config.head == "dpt"), config.num_labels, own)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        reset(module, torch.default_generator)
        made_again = getattr(module, "init_non_persistent_buffers", None)  # of timm's layers
        if made_again is not None:
            made_again()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> Any:
        height, width = pixel_values.shape[-2:]
        step = self.segmenter.backbone.divisible
        padded = F.pad(pixel_values, (0, -width % step, 0, -height % step))
        logits = self.segmenter(padded)[..., :height, :width]
        loss = cross_entropy(logits, labels) if labels is not None else None
        out = SemanticSegmenterOutput(loss=loss, logits=logits)
        return out if return_dict is not False else out.to_tuple()
