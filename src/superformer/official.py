"""Weights and architectures in the form in which the papers' authors released them.

Architectures: the entries ``arch`` of their configurations. Weights: the state dictionaries of their stand-alone networks or supernets,
with their names. Where released code departs from its paper (the scale of ViTAS's attention, how AutoFormer cuts biases), networks made
here compute what the released code computes, because the weights were trained that way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superformer.elastic.positions import resized
from superformer.errors import ArchError, SuperformerError, nearest
from superformer.families import family as network_family
from superformer.families.base import Network
from superformer.sharing import Sharing
from superformer.space import Space, Stage, point, ratio, times
from superformer.space.arch import Arch, StageArch, Values
from superformer.spaces import autoformer as autoformer_spaces
from superformer.spaces import space as published_space
from superformer.spaces import vitas as vitas_spaces

State = Mapping[str, Tensor]


def arch(family: str, official: Any) -> Arch:
    """An architecture from its authors' form."""
    try:
        return _family(family).arch(official)
    except (KeyError, IndexError, TypeError) as error:
        raise ArchError(f"this is not an architecture in the form of {family}: {type(error).__name__} {error}") from error


def model(family: str, official: Any, state_dict: State, img_size: int = 224) -> Network:
    """The stand-alone network of an architecture with its authors' weights, in eval mode.

    ``state_dict`` is that of a stand-alone network or of their supernet. Position tables are resized if ``img_size`` is not theirs.
    """
    here = _family(family)
    chosen = arch(family, official)
    state = here.clean(state_dict)
    if here.is_supernet(chosen, state):
        found = supernet(family, state_dict).extract(chosen, **here.settings(state))
        return (found if img_size == chosen.resolution else _at_size(found, img_size)).eval()
    own = replace(chosen, resolution=img_size)
    with torch.device("meta"):
        net = network_family(own.family)(point(own), len(state[here.head]), **here.settings(state))
    return _load(net, here.standalone(chosen, state), family).eval()


def supernet(family: str, state_dict: State) -> Network:
    """The authors' supernet: ``net(x, arch)``, ``net(x, [archs])``, in eval mode."""
    here = _family(family)
    state = here.clean(state_dict)
    space = here.space(state)
    with torch.device("meta"):
        net = network_family(space.family)(space, len(state[here.head]), here.sharing, **here.settings(state))
    return _load(net, here.supernet(space, state), family).eval()


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise SuperformerError(f"no official weights of {name!r} are known: {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def _load(net: Network, state: dict[str, Tensor], family: str) -> Network:
    """Check names and shapes before anything is changed, then take the tensors over."""
    wanted = net.state_dict()
    for name in wanted:
        if name.endswith("num_batches_tracked"):  # a counter that no output depends on
            state.setdefault(name, torch.zeros((), dtype=torch.long))
    missing, unknown = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    if missing or unknown:
        raise SuperformerError(f"these are not the weights of this {family} network: missing {missing[:3]}, not expected {unknown[:3]}")
    for name, tensor in wanted.items():
        if name.endswith("pos_embed.weight"):
            state[name] = _fitted(state[name], tensor.shape)
        if state[name].shape != tensor.shape:
            raise SuperformerError(
                f"weights of the wrong shape: {name} is {tuple(state[name].shape)}, this {family} network needs {tuple(tensor.shape)}"
            )
    net.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
    for p in net.parameters():
        p.requires_grad_(True)
    return net


def _fitted(table: Tensor, shape: torch.Size) -> Tensor:
    """A position table resized to another number of positions, if both are square grids (with a class token or without)."""
    for prefix in (1, 0):
        old, new = math.isqrt(max(len(table) - prefix, 0)), math.isqrt(max(shape[0] - prefix, 0))
        if table.ndim == 2 and old * old + prefix == len(table) and new * new + prefix == shape[0]:
            return resized(table, (old, old), (new, new), prefix)
    return table


def _at_size(net: Network, img_size: int) -> Network:
    own = net._arch(None)
    settings: dict[str, Any] = {"patch_head": True} if "patch_head.weight" in net.state_dict() else {}
    with torch.device("meta"):
        out = type(net)(point(replace(own, resolution=img_size)), net.num_classes, **settings)
    return _load(out, dict(net.state_dict()), own.family)


class Family:
    """One family of released weights."""

    head: str
    sharing: Sharing | str = "ordinal"

    def clean(self, state: State) -> dict[str, Tensor]:
        """The tensors that matter, under the authors' names; checks that this is such a state dictionary."""
        tensors = {k: v.detach() if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v)) for k, v in state.items()}
        found = {k.removeprefix("module."): v for k, v in tensors.items()}
        if self.head not in found:
            raise SuperformerError(f"not a state dictionary of this family: it has no {self.head!r} (first names: {list(found)[:3]})")
        return found

    def settings(self, state: State) -> dict[str, Any]:
        return {}

    def arch(self, official: Any) -> Arch:
        raise NotImplementedError

    def is_supernet(self, arch: Arch, state: State) -> bool:
        raise NotImplementedError

    def space(self, state: State) -> Space:
        """The space of a supernet with these weights."""
        raise NotImplementedError

    def standalone(self, arch: Arch, state: State) -> dict[str, Tensor]:
        """Our names for a stand-alone network's tensors."""
        raise NotImplementedError

    def supernet(self, space: Space, state: State) -> dict[str, Tensor]:
        """Our names for a supernet's tensors."""
        raise NotImplementedError


def _rename(state: State, rules: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]) -> dict[str, Tensor]:
    out = {}
    for name, tensor in state.items():
        new = name
        for pattern, replacement in rules:
            new = re.sub(pattern, replacement, new)
        out[new] = tensor
    return out


class VitResNas(Family):
    """github.com/yilunliao/vit-search: ``network_def`` tuples."""

    head = "cls_head.weight"

    def settings(self, state: State) -> dict[str, Any]:
        return {"patch_head": "patch_head.weight" in state}

    def arch(self, official: Any) -> Arch:
        stages: list[tuple[int, list[Values], list[int], int]] = []
        for kind, *rest in official:
            if kind == 4:
                stages.append((int(rest[0]), [], [], 0))
            elif kind == 3:
                stages.append((int(rest[1]), [], [], 0))
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
        out = []
        for width, blocks, at, positions in stages:
            out.append(StageArch(tuple(blocks), Values(width=width), None if len(at) == positions else tuple(at)))
        return Arch("vit_res", 224, Values(), tuple(out))

    def is_supernet(self, arch: Arch, state: State) -> bool:
        width = arch.stages[0].choices.int("width")
        count = len({m[1] for k in state if (m := re.match(r"blocks\.(\d+)\.attn", k))})
        misplaced = any(s.at is not None and len(s.at) != len(s.blocks) for s in arch.stages)
        return state["tokens"].shape[-1] != width or count != arch.depth or misplaced

    def space(self, state: State) -> Space:
        widths = [state["tokens"].shape[-1]] + [state[k].shape[0] for k in _sorted(state, r"blocks\.(\d+)\.patch_reduce\.weight")]
        for name in ("vit-resnas-tiny", "vit-resnas-small"):
            found = published_space(name)
            if [found.widths("width", i)[-1] for i in range(len(found.stages))] == widths:
                return found
        raise SuperformerError(f"no ViT-ResNAS space has a supernet of stage widths {widths}; known: vit-resnas-tiny, vit-resnas-small")

    def _names(self, state: State, positions: Sequence[int]) -> dict[str, Tensor]:
        """Blocks and reductions share one running index; blocks that do not exist keep theirs."""
        used = {int(m[1]) for k in state if (m := re.match(r"blocks\.(\d+)\.", k))}
        where: dict[int, str] = {}
        stage = position = 0
        for index in range(max(used, default=-1) + 1):
            if f"blocks.{index}.patch_reduce.weight" in state:
                stage, position = stage + 1, 0
                where[index] = f"stages.{stage}.enter."
            elif index in used:
                where[index] = f"stages.{stage}.blocks.{position}."
                position += 1
        if stage + 1 != len(positions):
            raise SuperformerError(f"these weights have {stage + 1} stages; the architecture has {len(positions)}")
        rules: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
            (r"^blocks\.(\d+)\.", lambda m: where[int(m[1])]),
            (r"enter\.patch_reduce", "enter.reduce"),
            (r"enter\.token_transform", "enter.token"),
            (r"pos_embed$", "pos_embed.weight"),
            (r"^tokens$", "cls_token.weight"),
            (r"^patch_embed\.conv_proj", "proj"),
            (r"^patch_embed\.(conv\d)\.conv", r"stem.\1.0"),
            (r"^patch_embed\.(conv\d)\.bn", r"stem.\1.1"),
            (r"^cls_head", "head"),
        ]
        out = _rename(state, rules)
        return {k: v.reshape(v.shape[-2:]) if k.endswith(("pos_embed.weight", "cls_token.weight")) else v for k, v in out.items()}

    def standalone(self, arch: Arch, state: State) -> dict[str, Tensor]:
        return self._names(state, [len(s.blocks) for s in arch.stages])

    def supernet(self, space: Space, state: State) -> dict[str, Tensor]:
        return self._names(state, [s.positions for s in space.stages])


class AutoFormer(Family):
    """github.com/microsoft/Cream, AutoFormer: YAML files with SUPERNET, SEARCH_SPACE and SUBNET (or RETRAIN), or a sub-network's
    configuration alone.

    Their q, k and v rows are interleaved in the weight but not in the bias: a sub-network of h heads takes the first 3 * 64 h entries of
    the bias and cuts them in thirds, so an entry changes its role with h. Kept (``joint``), or released weights would not fit.
    """

    head = "head.weight"
    sharing = Sharing("ordinal", frozenset({"qkv.bias"}))

    def arch(self, official: Any) -> Arch:
        sub = official.get("SUBNET") or official.get("RETRAIN") or official
        sub = {k.lower(): v for k, v in sub.items()}
        depth = int(sub.get("layer_num", sub.get("depth", 0)))
        widths = sub["embed_dim"]
        width = int(widths[0] if isinstance(widths, Sequence) else widths)
        if isinstance(widths, Sequence) and len(set(widths)) > 1:
            raise ArchError(f"AutoFormer networks have one embedding width, not {sorted(set(widths))}")
        heads, ratios = sub["num_heads"], sub["mlp_ratio"]
        if len(heads) != depth or len(ratios) != depth:
            raise ArchError(f"{depth} layers need as many head counts and ratios, not {len(heads)} and {len(ratios)}")
        return autoformer_spaces.network(width, [int(h) for h in heads], [float(r) for r in ratios])

    def is_supernet(self, arch: Arch, state: State) -> bool:
        blocks = arch.stages[0].blocks
        own = all(state[f"blocks.{k}.fc1.bias"].shape[0] == b["mlp"] for k, b in enumerate(blocks) if f"blocks.{k}.fc1.bias" in state)
        return not own or state["cls_token"].shape[-1] != arch.choices["width"] or f"blocks.{len(blocks)}.fc1.bias" in state

    def space(self, state: State) -> Space:
        """The released space whose supernet this is; ratio 3, which AutoFormer-T uses outside its own space, is let in."""
        known = {256: "autoformer-tiny", 448: "autoformer-small", 640: "autoformer-base"}
        size = state["cls_token"].shape[-1]
        if size not in known:
            raise SuperformerError(f"no AutoFormer supernet has {size} channels; known: {', '.join(map(str, known))}")
        found = published_space(known[size])
        heads = range(1, state["blocks.0.attn.qkv.bias"].shape[0] // 192 + 1)
        block = {"heads": heads, "attn": times(64, of="heads"), "mlp": ratio(3, 3.5, 4, of="width")}
        return replace(found, name=f"{found.name}-released", stages=(Stage(block, depth=found.stages[0].depths),))

    def _names(self, state: State, width: int, hidden: Sequence[int]) -> dict[str, Tensor]:
        """Our names; channels that no sub-network uses (the supernets are wider than their largest choice) are left out."""
        out: dict[str, Tensor] = {}
        rules = [
            (r"^blocks\.", "stages.0.blocks."),
            (r"attn_layer_norm", "norm1"), (r"ffn_layer_norm", "norm2"), (r"\.(fc\d)\.", r".mlp.\1."),
            (r"rel_pos_embed_(k|v)\.embeddings_table_v$", r"relative.\1_rows.weight"),
            (r"rel_pos_embed_(k|v)\.embeddings_table_h$", r"relative.\1_cols.weight"),
            (r"^patch_embed_super\.", "stems.16."), (r"^(pos_embed|cls_token)$", r"stems.16.\1.weight"),
        ]  # fmt: skip
        for name, tensor in _rename(state, rules).items():
            if name.endswith("qkv.weight"):
                tensor = torch.cat([tensor[part::3] for part in range(3)])[:, :width]
            elif "relative" not in name and not name.endswith("qkv.bias"):
                if name.startswith("stems.16.") and tensor.ndim == 3:
                    tensor = tensor[0]
                block = int(m[1]) if (m := re.match(r"stages\.0\.blocks\.(\d+)\.mlp", name)) else -1
                if name.startswith(("stems.16.proj", "norm.")) or ".norm" in name or "attn.proj" in name or "fc2" in name:
                    tensor = tensor[:width]
                elif "fc1" in name:
                    tensor = tensor[: hidden[block]]
                if name == "head.weight" or "fc1.weight" in name or name.endswith(("pos_embed.weight", "cls_token.weight")):
                    tensor = tensor[:, :width]
                if "fc2.weight" in name:
                    tensor = tensor[:, : hidden[block]]
            out[name] = tensor
        return out

    def standalone(self, arch: Arch, state: State) -> dict[str, Tensor]:
        return self._names(state, arch.choices.int("width"), [b.int("mlp") for b in arch.stages[0].blocks])

    def supernet(self, space: Space, state: State) -> dict[str, Tensor]:
        return self._names(state, space.widths("width")[-1], [space.widths("mlp", 0, p)[-1] for p in range(space.stages[0].positions)])


class Vitas(Family):
    """github.com/xiusu/ViTAS (v1): networks as the configuration's ``backbone``, with ``net_id`` genes.

    Kept from the released code: attention logits are scaled by (width // heads)^-1/2 in stand-alone networks and by 128^-1/2 in supernets,
    and a supernet's packed q and k are cut as one run (``joint``). Mended: the supernet's position table, of which the released code gives
    every token the last row, and genes of identities, which its forward pass does not consume.
    """

    head = "net.backbone_FC_FC_0.0.module.0.weight"
    sharing = Sharing("bilateral", frozenset({"qk.weight", "qk.bias"}))
    ratios = tuple(i / 10 for i in range(1, 11))

    def arch(self, official: Any) -> Arch:
        own = official.get("supernet", official)
        backbone = own["backbone"]
        patches, width = backbone["init_stem"][2], int(backbone["init_stem"][4])
        positions, _, heads, packed, _, hidden, *_ = backbone["Block"]
        genes = official.get("net_id")
        options = {**vitas_spaces.OPTIONS, "scale": 128**-0.5 if "supernet" in official else "embed"}
        if genes is None:
            return vitas_spaces.network(width, [(heads[0], packed // 3, hidden)] * positions, patches[0], options)
        if isinstance(genes, str):
            genes = [int(g) for g in genes.split()]
        if len(genes) != positions + 3 + 1 + 2 * positions:
            raise ArchError(f"a net_id of {positions} positions has {4 + 3 * positions} genes, not {len(genes)}")
        ratios = official.get("channel_percent", self.ratios)
        ops, widths = genes[1 : positions + 1], [ratios[g] for g in genes[positions + 3 :]]
        blocks, at = [], []
        for p, op in enumerate(ops):
            if op < len(heads):
                a, f = widths[1 + 2 * p], widths[2 + 2 * p]
                blocks.append((heads[op], round(a * packed) // 3, round(f * hidden)))
                at.append(p)
        found = vitas_spaces.network(round(widths[0] * width), blocks, patches[genes[0]], options)
        placed = None if at == list(range(len(at))) else tuple(at)
        return found.placed((placed,))

    def is_supernet(self, arch: Arch, state: State) -> bool:
        return any(".attn.qk0." in name for name in state)

    def space(self, state: State) -> Space:
        width = state["net.backbone_Norm_Norm_0.0.weight"].shape[0]
        known = {384: "vitas-v1", 768: "vitas-v1-wide"}
        if width not in known:
            raise SuperformerError(f"no ViTAS supernet is {width} wide; known: {', '.join(map(str, known))}")
        found = published_space(known[width])
        return replace(found, name=f"{found.name}-released", options={**found.options, "scale": 128**-0.5})

    def _names(self, state: State, stems: Sequence[int], index: Mapping[int, int]) -> dict[str, Tensor]:
        out = {}
        heads = vitas_spaces.HEADS
        rules: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
            (r"^net\.", ""),
            (r"^backbone_init_stem_Patch_init_0\.(\d)\.", lambda m: f"stems.{stems[int(m[1])]}."),
            (r"patch_embed\.proj", "proj"),
            (r"(cls_token|pos_embed)$", r"\1.weight"),
            (r"^backbone_Block_(?:Block|id)_(\d+)\.0\.", lambda m: f"stages.0.blocks.{index[int(m[1])]}."),
            (r"attn\.qk(\d)\.", lambda m: f"attn.qk.{heads[int(m[1])]}."),
            (r"attn\.v\.", "attn.v.all."),
            (r"^backbone_Norm_Norm_0\.0", "norm"),
            (r"^backbone_FC_FC_0\.0\.module\.0", "head"),
        ]
        for name, tensor in _rename(state, rules).items():
            out[name] = tensor[0] if tensor.ndim == 3 and name.startswith("stems.") else tensor
        return out

    def _index(self, state: State) -> dict[int, int]:
        found = sorted({int(m[1]) for k in state if (m := re.match(r"net\.backbone_Block_(?:Block|id)_(\d+)\.0\.norm1", k))})
        return {position: k for k, position in enumerate(found)}

    def standalone(self, arch: Arch, state: State) -> dict[str, Tensor]:
        return self._names(state, [arch.choices.int("patch_size")] * 3, self._index(state))

    def supernet(self, space: Space, state: State) -> dict[str, Tensor]:
        return self._names(state, sorted(space.widths("patch_size")), {p: p for p in range(space.stages[0].positions)})


def _sorted(state: State, pattern: str) -> list[str]:
    found = [(int(m[1]), k) for k in state if (m := re.fullmatch(pattern, k))]
    return [k for _, k in sorted(found)]


FAMILIES: dict[str, Family] = {"autoformer": AutoFormer(), "vit_resnas": VitResNas(), "vitas": Vitas()}

__all__ = ["arch", "model", "supernet"]
