"""timm's model interface: what its tools, and everything built on them, ask of a model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import EMPTY
from superformer.elastic.layers import Linear, Table
from superformer.errors import SuperformerError
from superformer.space.arch import Arch

if TYPE_CHECKING:
    from superformer.elastic.axis import Pass
    from superformer.space import Space

Collected = list[tuple[int, Tensor]]
"""Stages and their tokens, in the order of the pass."""
OutIndices = int | list[int] | tuple[int, ...] | None


def _taken(levels: int, indices: OutIndices) -> list[int]:
    """The levels that were asked for: all of them, the last so many, or these (negative ones from the end)."""
    chosen = range(levels)[-indices:] if isinstance(indices, int) and 0 < indices <= levels else indices
    chosen = range(levels) if chosen is None else chosen
    if isinstance(chosen, int) or not chosen or not all(-levels <= i < levels for i in chosen):
        there = f"this network has {levels} levels, 0 to {levels - 1}"
        raise SuperformerError(f"features {indices} were asked for; {there}")
    return [i % levels for i in chosen]


class TimmApi(abc.ABC):
    """The interface of timm's models. On a supernet methods take an ``arch``, which a stand-alone network needs not."""

    feature_level: ClassVar[str] = "block"
    """Where intermediate features are taken: after each ``block`` (of the first stage) or after each ``stage``."""
    training_only: ClassVar[tuple[str, ...]] = ()
    """Prefixes of tensors that only training uses."""

    drop_rate: float = 0.0
    """Dropout before the classifier, in training (NASViT, table 5)."""

    space: Space
    num_classes: int
    head: Linear | None
    _own: Arch | None
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]
    _arch: Callable[[Arch | None], Arch]
    plan: Callable[..., Pass]
    run: Callable[..., Tensor]
    shared: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor, Pass], Tensor]
    finish: Callable[[Tensor, Pass], Tensor]
    pool: Callable[[Tensor], Tensor]
    prefix_tokens: Callable[[int], int]

    @abc.abstractmethod
    def new_head(self, num_classes: int) -> Linear | None:
        """A classifier for so many classes, None for 0."""

    @abc.abstractmethod
    def stage_grid(self, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of a stage's tokens, where the picture became this grid."""

    @abc.abstractmethod
    def feature_width(self, arch: Arch, stage: int) -> int:
        """Channels of a stage's tokens."""

    @abc.abstractmethod
    def reduction(self, arch: Arch, stage: int) -> int:
        """Pixels in a row that a token of a stage stands for."""

    @property
    def num_features(self) -> int:
        """Channels of the final features (of a stand-alone network, or of the largest sub-network)."""
        arch = self._own or self.space.largest()
        return self.feature_width(arch, len(arch.stages) - 1)

    @property
    def head_hidden_size(self) -> int:
        return self.num_features

    embed_dim = num_features

    @property
    def num_prefix_tokens(self) -> int:
        return self.prefix_tokens(0)

    def has_class_token(self, stage: int) -> bool:
        """Whether the first of the tokens before a stage's patches is a class token."""
        return self.prefix_tokens(stage) > 0

    def _levels(self, arch: Arch) -> list[tuple[str, int]]:
        if self.feature_level == "stage":
            return [(f"stages.{i}", i) for i in self.feature_stages(arch)]
        return [(f"stages.0.blocks.{k}", 0) for k in range(len(arch.stages[0].blocks))]

    def feature_stages(self, arch: Arch) -> Sequence[int]:
        """The stages whose ends are the levels of the feature pyramid."""
        return range(len(arch.stages))

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        arch = self._own or self.space.largest()
        return [
            {"module": name, "num_chs": self.feature_width(arch, stage), "reduction": self.reduction(arch, stage)}
            for name, stage in self._levels(arch)
        ]

    def forward_features(self, x: Tensor, arch: Arch | None = None, side: str = "left") -> Tensor:
        """Tokens after the final norm, class token first."""
        at = self.plan(self._arch(arch), (int(x.shape[-2]), int(x.shape[-1])), side)
        return self.run(self.embed(self.shared(x), at), at)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The classifier of a stand-alone network."""
        x = self.pool(x)
        return x if pre_logits or self.head is None else self.head(self.drop_features(x), EMPTY)

    def drop_features(self, x: Tensor) -> Tensor:
        """What the classifier reads, with dropout."""
        return F.dropout(x, self.drop_rate, self.training) if self.drop_rate else x  # type: ignore[attr-defined]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: OutIndices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        arch: Arch | None = None,
        side: str = "left",
    ) -> Any:
        """Final features and those of the chosen levels (a list of them only, with ``intermediates_only``). Pictures
        run at their own size, also in a family that otherwise resizes them: maps are what `reduction` says."""
        output_fmt = str(getattr(output_fmt, "value", output_fmt))
        if output_fmt not in ("NCHW", "NLC"):
            raise SuperformerError(f"output_fmt must be NCHW or NLC, not {output_fmt!r}")
        chosen = self._arch(arch)
        at = self.plan(chosen, (int(x.shape[-2]), int(x.shape[-1])), side, own_size=True)
        levels = self._levels(chosen)
        take = _taken(len(levels), indices)
        if norm and len({stage for _, stage in levels}) > 1:
            raise SuperformerError("the final norm fits the last stage only: norm=True is not possible for a pyramid")
        collect: Collected = []
        last = levels[max(take)][1] if self.feature_level == "stage" else 0
        until = last if stop_early else None
        final = self.run(self.embed(self.shared(x), at), at, collect, until, finish=not intermediates_only)
        ends = dict(collect)  # the last of each stage
        out: list[Any] = []
        for k in take:
            stage, y = (levels[k][1], ends[levels[k][1]]) if self.feature_level == "stage" else collect[k]
            y = y.flatten(1, 2) if y.ndim == 4 else y  # maps are (batch, rows, columns, channels)
            prefix = self.prefix_tokens(stage)
            y = self.finish(y, at) if norm else y
            tokens, patches = y[:, :prefix], y[:, prefix:]
            if output_fmt == "NCHW":
                rows, cols = self.stage_grid(stage, at.grid)
                patches = patches.transpose(1, 2).reshape(y.shape[0], -1, rows, cols).contiguous()
            out.append((patches, tokens) if return_prefix_tokens else patches)
        return out if intermediates_only else (final, out)

    def get_classifier(self) -> nn.Module | None:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new classifier for another number of classes; 0 leaves the pooled features."""
        like = next(self.parameters())  # type: ignore[attr-defined]
        self.num_classes = num_classes
        self.head = self.new_head(num_classes)
        if self.head is not None:
            self.head.to(device=like.device, dtype=like.dtype)
            self.head.reset(torch.Generator().manual_seed(0))

    def no_weight_decay(self) -> set[str]:
        """Tables: class tokens, positions, scales (timm's optimisers ask)."""
        modules = self.named_modules()  # type: ignore[attr-defined]
        return {f"{name}.weight" for name, module in modules if isinstance(module, Table)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Groups of layers for layer-wise learning rates."""
        return {
            "stem": r"^(?:stems?|proj|cls_token|pos_embed|norm_pre)\.",
            "blocks": [
                (r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^stages\.(\d+)\.enter", (-1,)),
                (r"^(?:norm|head)", (99999,)),
            ],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable
