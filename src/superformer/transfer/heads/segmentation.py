"""Heads of semantic segmentation: UperNet, SegFormer's and DPT's from segmentation-models-pytorch, fed with our maps;
semantic FPN on torchvision's pyramid.

Where they are not what the papers used:

* UperNet (Xiao et al. 2018; S3, ViTAS v2): smp's decoder at 512 channels is MMSegmentation's, layer for layer. It has
  no auxiliary classifier, which is added here (a 3x3 convolution of 256 channels on the map at stride 16, counting
  0.4); and it norms the maps first, which our backbones do themselves.
* Semantic FPN (Kirillov et al. 2019; ViTAS v2): smp's leaves out the 3x3 convolutions of the pyramid, 2.4 million
  weights, so it is written here: torchvision's pyramid, then for each level as many 3x3 convolutions as it has to be
  doubled, with batch norms as in MMSegmentation (the paper: group norms).
* SegFormer (Xie et al. 2021; NASViT): as smp has it.
* DPT (Ranftl et al. 2021): as smp has it, without the class token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork

from superformer.errors import SuperformerError
from superformer.transfer.backbone import Backbone
from superformer.transfer.task import Batch, Prediction, Target

if TYPE_CHECKING:  # the export to Hugging Face has no settings of ours
    from superformer.transfer.heads.settings import HeadSettings

IGNORED = 255
"""The class of a pixel that does not count."""


def smp() -> Any:
    """segmentation-models-pytorch, which is an extra."""
    try:
        import segmentation_models_pytorch
    except ImportError as error:
        how = "pip install 'superformer[transfer]'"
        raise SuperformerError(f"this head needs segmentation-models-pytorch, which is not installed: {how}") from error
    return segmentation_models_pytorch


class ConvNorm(nn.Sequential):
    """A 3x3 convolution, batch norm, ReLU."""

    def __init__(self, inp: int, out: int):
        super().__init__(nn.Conv2d(inp, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class SemanticFpn(nn.Module):
    """Maps to one map at stride 4: a pyramid, each level convolved and doubled until it is as large as the first, and
    the sum."""

    def __init__(self, channels: Sequence[int], out: int):
        super().__init__()
        wide = 2 * out  # 256 in the paper
        self.fpn = FeaturePyramidNetwork(list(channels), wide)
        self.scales = nn.ModuleList(
            nn.ModuleList(ConvNorm(out if k else wide, out) for k in range(max(level, 1)))
            for level in range(len(channels))
        )

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        levels: Sequence[Tensor] = list(self.fpn(OrderedDict((str(k), y) for k, y in enumerate(maps))).values())
        out = []
        for convs, y in zip(self.scales, levels, strict=True):
            for conv in cast(nn.ModuleList, convs):
                y = conv(y)
                if y.shape[-2:] != maps[0].shape[-2:]:
                    y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
            out.append(y)
        return torch.stack(out).sum(0)


class FromSmp(nn.Module):
    """A decoder of smp, which wants the picture and a map at stride 2 before ours, and uses only their size."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        batch, _, rows, cols = maps[0].shape
        picture = maps[0].new_empty(batch, 0, 4 * rows, 4 * cols)
        return cast(Tensor, self.decoder([picture, picture, *maps]))


class FromDpt(nn.Module):
    """smp's DPT decoder, without class tokens."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        return cast(Tensor, self.decoder(list(maps), [None] * len(maps)))


class Segmenter(nn.Module):
    """A backbone, a decoder of its maps and a classifier of the pixels of what it makes. ``auxiliary``: another one,
    for the map at stride 16, and how much it counts."""

    def __init__(
        self, backbone: Backbone, decoder: nn.Module, classifier: nn.Module, auxiliary: nn.Module | None = None,
        weight: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.backbone, self.decoder, self.classifier = backbone, decoder, classifier
        self.auxiliary, self.weight = auxiliary, weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes, height, width); sides are multiples of the backbone's ``divisible``."""
        return self._upon(self.classifier(self.decoder(self.backbone(x))), x)

    @staticmethod
    def _upon(logits: Tensor, x: Tensor) -> Tensor:
        return F.interpolate(logits, size=x.shape[-2:], mode="bilinear", align_corners=False)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        x = self._together(batch.pictures, 0.0)
        truth = self._together([t["mask"][None] for t in batch.targets], IGNORED)[:, 0]
        maps = self.backbone(x)
        if len(x) == 1 and self.training and any(type(m) is nn.AdaptiveAvgPool2d for m in self.decoder.modules()):
            how = "make train.batch_size larger, or train.accumulate smaller"
            raise SuperformerError(f"UperNet's batch norms need two pictures or more in a batch: {how}")
        losses = {"loss_pixels": cross_entropy(self._upon(self.classifier(self.decoder(maps)), x), truth)}
        if self.auxiliary is not None:
            losses["loss_auxiliary"] = self.weight * cross_entropy(self._upon(self.auxiliary(maps[2]), x), truth)
        return losses

    def predict(self, pictures: Sequence[Tensor], targets: Sequence[Target]) -> list[Prediction]:
        logits = self(self._together(pictures, 0.0))
        return [{"logits": y[:, : p.shape[-2], : p.shape[-1]]} for y, p in zip(logits, pictures, strict=True)]

    def _together(self, pictures: Sequence[Tensor], fill: float) -> Tensor:
        """Pictures in one tensor, padded below and to the right."""
        sides = [max(p.shape[d] for p in pictures) for d in (-2, -1)]
        step = self.backbone.divisible
        rows, cols = (-(-n // step) * step for n in sides)
        pads = [(0, cols - p.shape[-1], 0, rows - p.shape[-2]) for p in pictures]
        return torch.stack([F.pad(p, pad, value=fill) for p, pad in zip(pictures, pads, strict=True)])


def cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """The mean over the pixels that count; 0 if none does."""
    count = (truth != IGNORED).sum().clamp_min(1)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # a sum over pixels
    return F.cross_entropy(wide, truth, ignore_index=IGNORED, reduction="sum") / count


def _classifier(channels: int, classes: int, settings: HeadSettings) -> nn.Module:
    return nn.Sequential(nn.Dropout2d(settings.dropout), nn.Conv2d(channels, classes, 1))


def upernet(backbone: Backbone, classes: int, settings: HeadSettings) -> Segmenter:
    channels = settings.channels or 512
    decoder = smp().decoders.upernet.decoder.UPerNetDecoder([3, 0, *backbone.channels], 5, channels)
    decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in backbone.channels)
    auxiliary = None
    if settings.auxiliary:
        conv = ConvNorm(backbone.channels[2], channels // 2)
        auxiliary = nn.Sequential(conv, _classifier(channels // 2, classes, settings))
    classifier = _classifier(channels, classes, settings)
    return Segmenter(backbone, FromSmp(decoder), classifier, auxiliary, settings.auxiliary)


def semantic_fpn(backbone: Backbone, classes: int, settings: HeadSettings) -> Segmenter:
    channels = settings.channels or 128
    return Segmenter(backbone, SemanticFpn(backbone.channels, channels), _classifier(channels, classes, settings))


def segformer(backbone: Backbone, classes: int, settings: HeadSettings) -> Segmenter:
    channels = settings.channels or 256
    decoder = smp().decoders.segformer.decoder.SegformerDecoder([3, 0, *backbone.channels], 5, channels)
    return Segmenter(backbone, FromSmp(decoder), _classifier(channels, classes, settings))


def dpt(backbone: Backbone, classes: int, settings: HeadSettings) -> Segmenter:
    channels = settings.channels or 256
    parts = smp().decoders.dpt.decoder
    # a plain transformer's maps count as at stride 16, whatever its patches: what is made of them is resized anyway
    strides = (16,) * 4 if backbone.plain else backbone.strides
    wide = tuple(channels * k for k in (1, 2, 4, 4))
    decoder = parts.DPTDecoder(backbone.channels, strides, False, "ignore", wide, channels)
    head: Callable[..., nn.Module] = parts.DPTSegmentationHead
    return Segmenter(backbone, FromDpt(decoder), head(channels, classes, upsampling=1))
