"""ViT-ResNAS as released."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from superformer.errors import ArchError, SuperformerError
from superformer.interop.official.release import Release, Rules, State, numbers, rename
from superformer.space import Space
from superformer.space.arch import Arch, StageArch, Values
from superformer.spaces import space as published_space


class VitResNas(Release):
    """github.com/yilunliao/vit-search: ``network_def`` tuples."""

    head = "cls_head.weight"

    def settings(self, state: State) -> dict[str, Any]:
        return {"patch_head": "patch_head.weight" in state}

    def arch(self, official: Any) -> Arch:
        stages: list[tuple[int, list[Values], list[int], int]] = []
        for kind, *rest in official:
            if kind in (4, 3):
                stages.append((int(rest[0] if kind == 4 else rest[1]), [], [], 0))
            elif kind == 1:
                (_, heads, dim), (_, hidden), exists = rest
                width, blocks, at, position = stages[-1]
                if exists:
                    blocks.append(Values(heads=heads, attn=heads * dim, mlp=hidden))
                    at.append(position)
                stages[-1] = (width, blocks, at, position + 1)
            elif kind != 2:
                known = "4 (stem), 1 (block), 3 (reduction), 2 (head)"
                raise ArchError(f"entries of type {kind} of a network_def are not supported; known: {known}")
        if not stages:
            raise ArchError("a network_def starts with its stem, an entry of type 4")
        found = (
            StageArch(tuple(blocks), Values(width=width), None if len(at) == positions else tuple(at))
            for width, blocks, at, positions in stages
        )
        return Arch("vit_res", 224, Values(), tuple(found))

    def is_supernet(self, arch: Arch, state: State) -> bool:
        width = arch.stages[0].choices.int("width")
        count = len(numbers(state, r"blocks\.(\d+)\.attn"))
        misplaced = any(s.at is not None and len(s.at) != len(s.blocks) for s in arch.stages)
        return state["tokens"].shape[-1] != width or count != arch.depth or misplaced

    def space(self, state: State) -> Space:
        reductions = numbers(state, r"blocks\.(\d+)\.patch_reduce\.weight")
        widths = [state["tokens"].shape[-1], *(state[f"blocks.{k}.patch_reduce.weight"].shape[0] for k in reductions)]
        known = ("vit-resnas-tiny", "vit-resnas-small")
        for found in map(published_space, known):
            if [found.widths("width", i)[-1] for i in range(len(found.stages))] == widths:
                return found
        raise SuperformerError(
            f"no ViT-ResNAS space has a supernet of stage widths {widths}; known: {', '.join(known)}"
        )

    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        """Blocks and reductions share one running index; blocks that do not exist keep theirs."""
        used = numbers(state, r"blocks\.(\d+)\.")
        where: dict[int, str] = {}
        stage = position = 0
        for index in range(max(used, default=-1) + 1):
            if f"blocks.{index}.patch_reduce.weight" in state:
                stage, position = stage + 1, 0
                where[index] = f"stages.{stage}.enter."
            elif index in used:
                where[index] = f"stages.{stage}.blocks.{position}."
                position += 1
        if stage + 1 != len(space.stages):
            raise SuperformerError(f"these weights have {stage + 1} stages; the architecture has {len(space.stages)}")
        rules: Rules = [
            (r"^blocks\.(\d+)\.", lambda m: where[int(m[1])]),
            (r"enter\.patch_reduce", "enter.reduce"), (r"enter\.token_transform", "enter.token"),
            (r"pos_embed$", "pos_embed.weight"), (r"^tokens$", "cls_token.weight"),
            (r"^patch_embed\.conv_proj", "proj"), (r"^cls_head", "head"),
            (r"^patch_embed\.(conv\d)\.conv", r"stem.\1.0"), (r"^patch_embed\.(conv\d)\.bn", r"stem.\1.1"),
        ]  # fmt: skip
        tables = ("pos_embed.weight", "cls_token.weight")
        return {k: v.reshape(v.shape[-2:]) if k.endswith(tables) else v for k, v in rename(state, rules).items()}
