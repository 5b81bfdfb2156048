"""What all families share: how a pass is planned, run and read.

A family is a subclass that builds its modules from a space and says what happens to a picture (`embed`, `enter`,
`finish`). Here that one definition becomes

* the supernet, ``net(x, arch)`` and ``net(x, [arch, ...])``;
* the stand-alone network, ``net.extract(arch)``: the same class on the space of one point;
* the cost (`costs`), and the mapping of weights (`superformer.families.weights`).

The architecture is an argument of every call and never a state of the network."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from superformer import machine
from superformer.elastic import masked
from superformer.elastic.axis import EMPTY, Axis, Pass, View, Visit, fixed
from superformer.elastic.layers import Cell, Linear
from superformer.elastic.positions import halved
from superformer.errors import ArchError, SuperformerError, nearest
from superformer.families import weights
from superformer.families.timm_api import Collected, TimmApi
from superformer.kernels.lockstep import masked_is_better, run_together
from superformer.kernels.slices import recycle
from superformer.sharing import Sharing
from superformer.space import Arch, Space
from superformer.space.costs import NOTHING, Cost, Count
from superformer.space.genes import Layout
from superformer.space.schema import Schema, in_patches

MODES = ("sliced", "masked")
PLANS = 64
"""Plans of passes that a network remembers."""
Widths = Mapping[Axis, Count]
Numbers = Mapping[str, Count]
"""Values of choices, as numbers or as arrays over a population."""
Archs = Arch | Sequence[Arch]
Size = tuple[Count, Count]
"""Rows and columns: of pixels, or of tokens."""


class StageModule(nn.Module):
    """A stage: what leads into it (nothing in the first stage of most families) and its blocks."""

    def __init__(self, blocks: Sequence[Cell], enter: Any = None):
        super().__init__()
        self.enter = enter
        self.blocks = nn.ModuleList(blocks)

    def block(self, position: int) -> Cell:
        return cast(Cell, self.blocks[position])


class Network(TimmApi, nn.Module):
    """A network of any family: a supernet if its space has many points, a stand-alone network if it has one."""

    schema: ClassVar[Schema]
    maskable: ClassVar[bool] = False
    """Whether architectures can share one masked pass; where not they run sliced, which gives the same numbers."""
    any_size: ClassVar[bool] = False
    """Whether pictures of any size run, not only multiples of a patch."""
    equal_blocks: ClassVar[bool] = False
    """Whether all blocks of a stage cost the same where they have nothing to choose by themselves."""
    depth_matters: ClassVar[bool] = False
    """Whether a block's output depends on how many blocks of its stage run (the scales of NASViT do)."""
    patch_head_possible: ClassVar[bool] = False
    """Whether it can classify each patch, for token labelling."""
    stages: nn.ModuleList

    def __init__(self, space: Space, num_classes: int = 1000, sharing: Sharing | str = "ordinal", in_chans: int = 3):
        super().__init__()
        if num_classes < 0:
            raise SuperformerError(f"num_classes must be 0 (no classifier) or more, not {num_classes}")
        self.space, self.num_classes, self.in_chans, self.stages = space, num_classes, in_chans, nn.ModuleList()
        self.sharing = sharing if isinstance(sharing, Sharing) else Sharing(sharing)
        self.grad_checkpointing = False
        self.resizes = len(space.widths("resolution")) > 1  # pictures, to the input size of an architecture
        self.pretrained_cfg = self.default_cfg = {}
        self._plans: dict[object, Pass] = {}
        self.build()
        self._own: Arch | None = space.smallest() if space.size == 1 else None

    # --- what a family defines ---

    @abc.abstractmethod
    def build(self) -> None:
        """Make the modules for ``self.space``."""

    @abc.abstractmethod
    def bind(self, choices: Numbers, stages: Sequence[Numbers]) -> dict[Axis, Count]:
        """The widths of the axes that network-wide and stage-wide choices set. Stages may also tell their ``depth``."""

    @abc.abstractmethod
    def grid(self, values: Numbers, height: Count, width: Count) -> Size:
        """Rows and columns of tokens that a picture of this size becomes."""

    def tokens_axis(self, stage: int) -> Axis:
        """The axis of the channels of a stage's tokens; a family that is ``maskable`` says it."""
        raise SuperformerError(f"{type(self).__name__} does not say on which axis the tokens of a stage lie")

    def token_channels(self) -> Sequence[Axis]:
        """Axes of tokens whose channels can be put into another order: all that reads or writes them moves along."""
        return ()

    def canvas(self, values: Numbers, size: Size) -> Size:
        """The size at which pictures of this size run."""
        return (values["resolution"], values["resolution"]) if self.resizes else size

    def prefix_tokens(self, stage: int) -> int:
        """How many tokens of a stage come before the patches: its class token, registers."""
        return 0

    def shared(self, x: Tensor) -> Tensor:
        """What is the same for all architectures, done once for the whole batch."""
        return x

    @abc.abstractmethod
    def embed(self, x: Tensor, at: Pass) -> Tensor:
        """The picture (or what `shared` made of it) as tokens."""

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        """What lies between the stages."""
        return x

    @abc.abstractmethod
    def finish(self, x: Tensor, at: Pass) -> Tensor:
        """The final norm."""

    @abc.abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """One vector a picture."""

    def classify(self, x: Tensor, at: Pass) -> Any:
        """Tokens to logits; a family may take words of its own (``patches`` of vit_res)."""
        pooled = self.pool(x)
        return self.head(self.drop_features(pooled), at.view) if self.head is not None else pooled

    def masked_group(self, arch: Arch) -> object:
        """Architectures of one group can run in one masked pass."""
        return arch.resolution

    @classmethod
    def rescaled(cls, arch: Arch, size: int) -> Arch:
        """The architecture for another input size."""
        return replace(arch, resolution=size)

    @abc.abstractmethod
    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        """The stem, or what leads into a later stage, for pictures of this size."""

    def block_cost(self, stage: int, position: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        """One block."""
        rows, cols = self.cost_grid(stage, values, size)
        tokens = rows * cols + self.prefix_tokens(stage)
        return self.stage(stage).block(position).cost(widths, values, tokens, (rows, cols))

    @abc.abstractmethod
    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        """The final norm and the classifier."""

    # --- what it may use for that ---

    def option(self, name: str) -> Any:
        """An option of the space, or its default."""
        return self.schema.option(self.space.options, name)

    def stage(self, index: int) -> StageModule:
        return cast(StageModule, self.stages[index])

    def cost_grid(self, stage: int, values: Numbers, size: Size) -> Size:
        """Rows and columns of a stage's tokens for pictures of this size."""
        return self.stage_grid(stage, self.grid(values, *size))

    def head_cost(self, widths: Widths) -> Cost:
        """The classifier, if there is one."""
        return self.head.cost(widths, 1) if self.head is not None else NOTHING

    def patch_grid(self, img_size: int) -> int:
        """Patches of the last stage in a row."""
        return int(self.stage_grid(len(self.stages) - 1, self.grid({"resolution": img_size}, img_size, img_size))[0])

    # --- planning a pass ---

    def _arch(self, arch: Arch | None) -> Arch:
        if arch is not None:
            return arch
        if self._own is None:
            how = "call net(x, arch), with an arch from net.space.sample() or the like"
            raise ArchError(f"this is a supernet of {self.space.size:.3g} architectures: {how}")
        return self._own

    def positions(self, arch: Arch) -> list[tuple[int, ...]]:
        """Where the blocks of an architecture of this space sit in each stage."""
        if arch is not self._own:
            self.space.encode([arch])
        pairs = zip(self.space.stages, arch.stages, strict=True)
        return [Layout.placement(stage, own, self.space.name) for stage, own in pairs]

    def view(self, arch: Arch, side: str = "left") -> View:
        """The channels that an architecture uses of every axis."""
        if arch is self._own:
            return EMPTY
        values = {**arch.choices, "resolution": arch.resolution}
        widths = self.bind(values, [{**s.choices, "depth": len(s.blocks)} for s in arch.stages])
        for i, (own, at) in enumerate(zip(arch.stages, self.positions(arch), strict=True)):
            for block, p in zip(own.blocks, at, strict=True):
                widths |= self.stage(i).block(p).bind(block)
        selections = {axis: self.sharing.select(axis, int(w), side) for axis, w in widths.items()}
        return View(selections, self.sharing.joint, side)

    def plan(self, arch: Arch, size: tuple[int, int], side: str = "left", own_size: bool = False) -> Pass:
        """A pass of one architecture; the last ones are remembered. ``own_size``: pictures keep their size also in a
        family that resizes them."""
        key = (arch, *(s.at for s in arch.stages), size, side, own_size)
        found = self._plans.get(key)
        if found is None:
            self.sharing.check_side(side)
            at = self.positions(arch)
            stages = tuple(
                tuple(Visit(self.stage(i).block(p), values) for values, p in zip(own.blocks, at[i], strict=True))
                for i, own in enumerate(arch.stages)
            )
            values = {**arch.choices, "resolution": arch.resolution}
            native = self.grid(values, arch.resolution, arch.resolution)
            canvas = size if own_size else self.canvas(values, size)
            grid = self.grid(values, *canvas)
            found = Pass(arch, self.view(arch, side), stages, grid, native, canvas)
            if len(self._plans) >= PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        # a copy plans, and runs, with its own blocks (compiled code has ours)
        return {k: v for k, v in self.__dict__.items() if k != "run"} | {"_plans": {}}

    # --- running it ---

    def forward(
        self, x: Tensor, arch: Archs | None = None, *, side: str = "left", mode: str | None = None, **heads: Any
    ) -> Any:
        """Logits. With a list of architectures the batch is cut into equal parts, one for each, in order.

        ``mode`` (with a list): ``"sliced"`` runs each part at its own width, ``"masked"`` all parts in one pass at full
        width; the numbers are the same. Without it parts run sliced on the CPU, where that is always faster; on other
        devices masked from four architectures on, in families that can (`superformer.kernels.lockstep`). ``side``:
        with bilateral sharing, which channels."""
        outs = [self.classify(tokens, at, **heads) for tokens, at in self.passes(x, arch, side, mode)]
        if len(outs) == 1:
            return outs[0]
        return tuple(map(torch.cat, zip(*outs, strict=True))) if isinstance(outs[0], tuple) else torch.cat(outs)

    def passes(
        self, x: Tensor, arch: Archs | None = None, side: str = "left", mode: str | None = None
    ) -> list[tuple[Tensor, Pass]]:
        """The final tokens of each pass that a batch needs: one, or for each architecture of a list."""
        if x.ndim != 4 or x.shape[1] != self.in_chans:
            wanted = f"(batch, {self.in_chans}, height, width)"
            raise SuperformerError(f"pictures must have the shape {wanted}, not {tuple(x.shape)}")
        if mode not in (None, *MODES):
            raise SuperformerError(f"unknown mode {mode!r}: {nearest(str(mode), MODES)}")
        if arch is None or isinstance(arch, Arch):
            at = self.plan(self._arch(arch), (int(x.shape[-2]), int(x.shape[-1])), side)
            return [(self.run(self.embed(self.shared(x), at), at), at)]
        return self._several(x, list(arch), side, mode)

    def _several(self, x: Tensor, archs: list[Arch], side: str, mode: str | None) -> list[tuple[Tensor, Pass]]:
        if not archs:
            raise SuperformerError("an empty list of architectures was given; at least one is needed")
        if len(x) % len(archs):
            what = f"{len(archs)} equal parts, one for each architecture; use a multiple of {len(archs)}"
            raise SuperformerError(f"a batch of {len(x)} cannot be cut into {what}")
        part_size = len(x) // len(archs)
        together = self.maskable and (masked_is_better(x, len(archs)) if mode is None else mode == "masked")
        if together:
            passes = masked.plans(self, archs, part_size, x, side)
        else:
            size = (int(x.shape[-2]), int(x.shape[-1]))
            passes = [(part_size, self.plan(a, size, side)) for a in archs]
        plans = [at for _, at in passes]
        parts = torch.split(self.shared(x), [rows for rows, _ in passes])
        tokens = [self.embed(part, at) for part, at in zip(parts, plans, strict=True)]
        if together:
            return [(masked.run(self, token, at), at) for token, at in zip(tokens, plans, strict=True)]
        if self.grad_checkpointing or len(plans) == 1:
            return [(self.run(token, at), at) for token, at in zip(tokens, plans, strict=True)]
        return list(zip(run_together(tokens, plans, self), plans, strict=True))

    def run(
        self, x: Tensor, at: Pass, collect: Collected | None = None, until: int | None = None, finish: bool = True
    ) -> Tensor:
        """The stages and the final norm. ``collect`` gets the stage and the tokens after each stage's entry and every
        block; stages after ``until`` are left out, and the norm with them, which also ``finish`` leaves out."""
        for i, visits in enumerate(at.stages):
            if until is not None and i > until:
                return x
            x = self.enter(i, x, at)
            if collect is not None and not visits:
                collect.append((i, x))
            for visit in visits:
                if self.grad_checkpointing:
                    x = checkpoint(visit.block, x, visit, at, use_reentrant=False)
                else:
                    x = visit.block(x, visit, at)
                if collect is not None:
                    collect.append((i, x))
        return self.finish(x, at) if finish else x

    # --- weights ---

    @classmethod
    def create(
        cls, space: Space, num_classes: int = 1000, sharing: Sharing | str = "ordinal", seed: int = 0, **settings: Any
    ) -> Self:
        """A network with initial weights drawn from ``seed``."""
        net = cls.skeleton(space, num_classes, sharing=sharing, **settings)
        machine.require_memory(sum(t.numel() * t.element_size() for t in net.parameters()), f"the network {space.name}")
        # not to_empty(), which imports sympy: slow
        net._apply(lambda t: torch.empty(t.shape, dtype=t.dtype))  # type: ignore[no-untyped-call]
        generator = torch.Generator().manual_seed(seed)
        for module in net.modules():
            weights.reset(module, generator)
        return net

    @classmethod
    def skeleton(cls, space: Space, num_classes: int = 1000, **settings: Any) -> Self:
        """The network without any weight in memory: to count its costs."""
        with torch.device("meta"):
            return cls(space, num_classes, **settings)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. Of a supernet their memory is used again (`superformer.kernels.slices`): clone a
        gradient that you want to keep."""
        if self._own is not None or not set_to_none:  # a stand-alone network has ordinary gradients
            super().zero_grad(set_to_none)
            return
        for p in self.parameters():
            recycle(p)

    def cells(self) -> list[Cell]:
        """Everything with a residual branch that stochastic depth may leave out, first to last."""
        return [self.stage(i).block(p) for i, stage in enumerate(self.space.stages) for p in range(stage.positions)]

    def set_drop_path(self, rate: float) -> Self:
        """Stochastic depth: from 0 at the first position to ``rate`` at the last."""
        cells = self.cells()
        for k, cell in enumerate(cells):
            cell.drop_path = rate * k / max(len(cells) - 1, 1)
        return self

    def extract(self, arch: Arch, side: str = "left", **settings: Any) -> Self:
        """The stand-alone network of an architecture, with this supernet's weights (copied)."""
        return weights.extract(self, arch, side, **settings)


class Pyramid(Network):
    """A network of stages, each with a width of its own (the choice ``width``) and half the rows and columns of the
    stage before, whose classifier reads the last one."""

    feature_level = "stage"

    @property
    @abc.abstractmethod
    def patch(self) -> int:
        """Pixels in a row that a token of the first stage stands for."""

    @cached_property
    def widths(self) -> list[Axis]:
        """The axis of each stage's width."""
        return [Axis(f"width{i}", self.space.widths("width", i)) for i in range(len(self.space.stages))]

    def tokens_axis(self, stage: int) -> Axis:
        return self.widths[stage]

    def new_head(self, num_classes: int) -> Linear | None:
        return Linear(self.widths[-1], fixed("classes", num_classes)) if num_classes else None

    def bind(self, choices: Numbers, stages: Sequence[Numbers]) -> dict[Axis, Count]:
        return {axis: s["width"] for axis, s in zip(self.widths, stages, strict=True)}

    def grid(self, values: Numbers, height: Count, width: Count) -> Size:
        return in_patches(height, width, self.patch)

    def stage_grid(self, stage: int, grid: Size) -> Size:
        return halved(grid, stage)

    def feature_width(self, arch: Arch, stage: int) -> int:
        return arch.stages[stage].choices.int("width")

    def reduction(self, arch: Arch, stage: int) -> int:
        return int(self.patch * 2**stage)
