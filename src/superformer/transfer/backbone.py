"""Backbones of dense tasks: maps at strides 4, 8, 16 and 32 of pictures of any size and shape, from any network of ours
or of timm.

A network with four stages gives the maps that its stages end in. NASViT runs at the picture's own size, with windows of
about 7 x 7 tokens (its section 4.2); Swin pads (`superformer.families`). A plain transformer has one map: ViTDet's
simple feature pyramid (Li et al. 2022) makes the others of its last one, by deconvolutions and pooling; for DPT it
gives the maps of four blocks instead. ViT-ResNAS has three stages at strides 14, 28 and 56: each level is made of the
nearest one and resized.

Where a network ends in a layer norm, which only its last stage is used to, each level gets a norm of its own, as Swin's
has for detection. What no level needs (the classifier, the final norm, NASViT's last stage at stride 64) is let go, as
is what only levels need that the head does not read (`Backbone.only`)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import timm
import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from superformer.errors import SuperformerError

STRIDES = (4, 8, 16, 32)
PROBE = 64
"""Pixels in a row of the picture that tells which weights the levels need."""
Norms = Literal["trained", "frozen"]
SIZES: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True}, {})
"""With which of these words a network of timm takes pictures of any size, tried in turn."""


class Backbone(nn.Module):
    """Levels of a network: ``channels`` and ``strides`` of each, ``forward(x)`` their maps.

    ``classifier``: how many weights the network's classifier had, which the papers' counts sometimes include."""

    def __init__(self, net: nn.Module, *, blocks: bool = False):
        super().__init__()
        self.net: Any = net
        self.classifier = _let_classifier_go(net)
        levels = [(int(i["num_chs"]), int(i["reduction"])) for i in net.feature_info]  # type: ignore[union-attr]
        self.plain = len({stride for _, stride in levels}) == 1
        self.take, sources = _levels(levels, self.plain, blocks)
        kept = [levels[i] for i in self.take]
        flat = blocks and self.plain
        self.step = kept[-1][1] * (2 if flat else 1)
        """Pixels whose multiples the network runs at; `forward` pads to them."""
        self.divisible = self.step if flat else STRIDES[-1]
        """Pixels whose multiples heads give, so that maps fit each other."""
        ends_in_norm = isinstance(getattr(net, "norm", None), nn.LayerNorm)
        self.norms = nn.ModuleList(LayerNorm2d(c, eps=1e-5) if ends_in_norm else nn.Identity() for c, _ in kept)
        self.sources = sources
        self.strides: tuple[int, ...] = (kept[0][1],) * len(kept) if flat else STRIDES
        self.lifts = nn.ModuleList(Lift(*kept[k], s) for k, s in zip(sources, self.strides, strict=True))
        self.channels = tuple(cast(Lift, lift).channels for lift in self.lifts)
        self.read = set(range(len(kept) if flat else len(STRIDES)))
        self._frozen: list[nn.Module] = []
        self.probe = _probe(self)
        _let_unused_go(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps (batch, channels, height / stride, width / stride) of pictures (batch, 3, height, width), rounded up."""
        height, width = int(x.shape[-2]), int(x.shape[-1])
        rows, cols = (-(-n // self.step) * self.step for n in (height, width))
        if (rows, cols) != (height, width):
            x = F.pad(x, (0, cols - width, 0, rows - height))
        maps = self.net.forward_intermediates(x, indices=self.take, stop_early=True, intermediates_only=True)
        maps = [norm(y) for norm, y in zip(self.norms, maps, strict=True)]
        out = []
        for level, (lift, k, stride) in enumerate(zip(self.lifts, self.sources, self.strides, strict=True)):
            if level not in self.read:
                out.append(x.new_empty(0))
                continue
            y = lift(maps[k])
            if y.shape[-2:] != (size := (-(-rows // stride), -(-cols // stride))):
                y = F.interpolate(y, size=size, mode="bilinear", align_corners=False)
            out.append(y[..., : -(-height // stride), : -(-width // stride)])
        return out

    def only(self, levels: Iterable[int]) -> Self:
        """Give the maps of these levels alone; those of others are empty."""
        self.read = {level % len(self.strides) for level in levels}
        needed = {self.sources[level] for level in self.read}
        for parts, kept in ((self.lifts, self.read), (self.norms, needed)):
            for k in set(range(len(parts))) - kept:
                parts[k] = nn.Identity()
        _let_unused_go(self)
        return self

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self._frozen:
            module.eval()
        return self

    def freeze(self, stages: int, norms: Norms) -> Self:
        """Keep the stem and the first ``stages`` stages (blocks, in a plain transformer) as they are; ``norms`` frozen:
        all batch norms too, their statistics and their weights (as torchvision's FrozenBatchNorm2d)."""
        groups = list(self.layers(coarse=not self.plain).values())
        if stages >= len(groups):
            what = "blocks" if self.plain else "stages"
            known = f"{len(groups) - 1} {what}" if len(groups) > 1 else f"{what} that it tells nothing of"
            raise SuperformerError(f"backbone.freeze={stages}: {type(self.net).__name__} has {known}: give less, or 0")
        fixed = {name for group in groups[: stages + 1] for name in group} if stages else set[str]()
        for name, p in self.net.named_parameters():
            if name in fixed:
                p.requires_grad_(False)
        batch_norms = {name: m for name, m in self.net.named_modules() if isinstance(m, _BatchNorm)}
        for name, module in batch_norms.items():
            if norms == "frozen" or f"{name}.weight" in fixed:
                self._frozen.append(module)
                module.requires_grad_(False)
        return self.train(self.training)

    def layers(self, coarse: bool = False) -> Mapping[int, Sequence[str]]:
        """The network's weights (names within ``net``) layer by layer, the stem first: blocks, or ``coarse`` stages."""
        if not hasattr(self.net, "group_matcher"):
            return {0: [name for name, _ in self.net.named_parameters()]}
        found: Mapping[int, Sequence[str]] = group_parameters(self.net, self.net.group_matcher(coarse=coarse))
        return found

    def rates(self, decay: float) -> dict[str, float]:
        """By what each weight's learning rate (names within this module) is multiplied: layer-wise, ``decay`` times
        smaller with each layer further from the head. What is new here has the head's."""
        layers = self.layers()
        if decay != 1 and len(layers) < 2:
            raise SuperformerError(f"{type(self.net).__name__} tells no layers: leave backbone.layer_decay={decay} out")
        own = {name: decay ** (len(layers) - k) for k, names in layers.items() for name in names}
        return {name: own.get(name.removeprefix("net."), 1.0) for name, _ in self.named_parameters()}


class Lift(nn.Module):
    """A map at another stride: deconvolutions that double it and halve its channels, with a norm and GELU between them
    (ViTDet, section 3), or max pooling."""

    def __init__(self, channels: int, stride: int, wanted: int):
        super().__init__()
        times = round(math.log2(stride / wanted))
        layers: list[nn.Module] = [nn.MaxPool2d(2**-times)] if times < 0 else []
        for k in range(times):
            layers += [LayerNorm2d(channels), nn.GELU()] if k else []
            layers.append(nn.ConvTranspose2d(channels, max(channels // 2, 1), 2, 2))
            channels = max(channels // 2, 1)
        self.layers = nn.Sequential(*layers)
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))


def _levels(levels: Sequence[tuple[int, int]], plain: bool, blocks: bool) -> tuple[list[int], list[int]]:
    """Which of a network's levels are taken, and which of those each of ours is made of."""
    if plain and blocks:
        take = [len(levels) * (k + 1) // 4 - 1 for k in range(4)]
        return take, [0, 1, 2, 3]
    if plain:
        return [len(levels) - 1], [0] * len(STRIDES)
    last = {stride: i for i, (_, stride) in enumerate(levels)}  # the last of each stride
    if all(stride in last for stride in STRIDES):
        return [last[stride] for stride in STRIDES], [0, 1, 2, 3]
    take = sorted(last.values())[-len(STRIDES) :]
    return take, [max(k - len(STRIDES) + len(take), 0) for k in range(len(STRIDES))]


def _let_classifier_go(net: Any) -> int:
    before = sum(p.numel() for p in net.parameters())
    if hasattr(net, "reset_classifier"):
        net.reset_classifier(0)
    return int(before - sum(p.numel() for p in net.parameters()))


def _probe(backbone: Backbone) -> tuple[int, int]:
    """Height and width of a picture that the network reads. One whose windows are of its own size (MaxViT) reads
    multiples of that, to which pictures are padded then."""
    net: Any = backbone.net
    own = (getattr(net, "default_cfg", None) or {}).get("input_size", (0,))[-1]
    like, problem, mode = next(net.parameters()), None, net.training
    net.eval()
    for step, size in ((backbone.step, (PROBE, PROBE)), (own, (own, 2 * own)))[: 2 if own else 1]:
        backbone.step = step
        try:
            with torch.no_grad():
                backbone(torch.zeros(1, 3, *size, device=like.device, dtype=like.dtype))
        except (AssertionError, RuntimeError) as error:  # timm's
            problem = problem or error
            continue
        net.train(mode)
        return size
    told = f"{type(net).__name__} of timm reads pictures of its own size only ({problem})"
    raise SuperformerError(f"{told}: take a network whose size is not fixed")


def _let_unused_go(backbone: Backbone) -> None:
    """Take out the weights that no level depends on; a pass tells which."""
    net: nn.Module = backbone.net
    mode = net.training
    like = next(net.parameters())
    params = dict(net.named_parameters())
    learn = [p.requires_grad for p in params.values()]
    net.eval().requires_grad_(True)
    with torch.enable_grad():
        out = backbone(torch.zeros(1, 3, *backbone.probe, device=like.device, dtype=like.dtype))
        total = torch.stack([y.sum() for y in out if y.numel()]).sum()
        found = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    for p, given in zip(params.values(), learn, strict=True):
        p.requires_grad_(given)
    net.train(mode)
    for module in backbone._frozen:
        module.eval()
    unused = {id(p) for p, grad in zip(params.values(), found, strict=True) if grad is None}
    for module in net.modules():
        own = dict(module.named_parameters(recurse=False))
        for name, p in own.items():
            if id(p) in unused:
                module._parameters[name] = None
        if own and all(id(p) in unused for p in own.values()):
            for name in dict(module.named_buffers(recurse=False)):
                module._buffers[name] = None


def timm_network(name: str, **words: Any) -> nn.Module:
    """A network of timm that takes pictures of any size."""
    net: nn.Module | None = None
    for size in SIZES:
        try:
            net = timm.create_model(name, **words, **size)
            break
        except TypeError as error:
            if not any(word in str(error) for word in size):
                raise SuperformerError(f"timm cannot make {name!r} with {words}: {error}") from error
    forward = getattr(net, "forward_intermediates", None)
    if forward is not None and "intermediates_only" in inspect.signature(forward).parameters:
        return cast(nn.Module, net)
    try:
        return Features(timm.create_model(name, features_only=True, **words))
    except Exception as error:  # networks that have none raise anything
        told = f"{name} of timm tells no features of its stages (forward_intermediates, features_only)"
        raise SuperformerError(f"{told}: take another") from error


class Features(nn.Module):
    """A network of timm that tells features by ``features_only`` alone (DenseNet, VGG, HRNet)."""

    def __init__(self, net: Any):
        super().__init__()
        self.net, info = net, net.feature_info
        pairs = zip(info.channels(), info.reduction(), strict=True)
        self.feature_info = [{"num_chs": channels, "reduction": stride} for channels, stride in pairs]
        self.default_cfg = net.default_cfg if hasattr(net, "default_cfg") else None

    def forward_intermediates(self, x: Tensor, indices: Sequence[int], **words: Any) -> list[Tensor]:
        maps = self.net(x)
        return [maps[k] for k in indices]
