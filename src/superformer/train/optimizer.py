"""How the gradients of a step's sub-networks become one (NASViT, section 3, eq. 1), how much they conflict (table 4),
and the optimiser that uses them: timm's, with weight decay that leaves alone what a step did not use.

The largest network runs first and its gradients are set aside (`GradientMemory`). The others' are summed in ``.grad``.
Then both are joined: added, or with the component of one that works against the other taken out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import timm.optim
import torch
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from torch.optim import Optimizer as TorchOptimizer

from superformer.errors import SuperformerError, nearest
from superformer.families.network import Network
from superformer.recipes.settings import Optimizer

Grads = Sequence[Tensor | None]
"""The gradient of each parameter, or None."""
RULES, PRIORITIES = ("sum", "project"), ("subnets", "supernet")
SCALE = "lr_scale"
"""What timm's schedules multiply a group's learning rate with."""
RELEASED_EPS = 1e-6
"""What the released code adds to the squared norm in the denominator, along with its cap of 2."""


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """The parameters whose gradients count, in the order that all functions here mean."""
    return [p for p in net.parameters() if p.requires_grad]


class GradientMemory:
    """Memory for gradients that are set aside; all steps use the same."""

    def __init__(self) -> None:
        self._memory: dict[int, Tensor] = {}

    @property
    def kept(self) -> list[Tensor]:
        """All of it."""
        return list(self._memory.values())

    @torch.no_grad()
    def keep(self, net: nn.Module) -> Grads:
        """Copies of the gradients that the parameters have now, valid until the next call."""
        params = trainable(net)
        for i, p in enumerate(params):
            own = self._memory.get(i)
            if p.grad is not None and (own is None or own.shape != p.grad.shape or own.device != p.grad.device):
                self._memory[i] = torch.empty_like(p.grad)
        kept = [None if p.grad is None else self._memory[i] for i, p in enumerate(params)]
        pairs = [(k, p.grad) for k, p in zip(kept, params, strict=True) if k is not None and p.grad is not None]
        if pairs:
            torch._foreach_copy_([k for k, _ in pairs], [g for _, g in pairs])
        return kept


Read = Callable[[Tensor], Any]
"""Numbers of the device as Python's, in one wait for it."""


@dataclass(frozen=True)
class Products:
    """Inner products of the two gradients of each parameter that has both (``at`` is its index): with each other, and
    with themselves."""

    at: tuple[int, ...] = ()
    dot: tuple[float, ...] = ()
    sub: tuple[float, ...] = ()
    sup: tuple[float, ...] = ()


@torch.no_grad()
def products(params: Sequence[nn.Parameter], kept: Grads, read: Read = Tensor.tolist) -> Products:
    """The inner products that projection and the measure of conflict need."""

    def flat(x: Tensor) -> Tensor:
        return x.reshape(-1) if x.dtype == torch.float64 else x.reshape(-1).float()

    pairs = enumerate(zip(params, kept, strict=True))
    both = [(i, flat(p.grad), flat(k)) for i, (p, k) in pairs if p.grad is not None and k is not None]
    if not both:
        return Products()
    columns = zip(*(((a, b), (a, a), (b, b)) for _, a, b in both), strict=True)
    dots = torch.stack([torch.stack([torch.dot(*pair) for pair in column]) for column in columns])
    return Products(tuple(i for i, _, _ in both), *map(tuple, read(dots)))


@torch.no_grad()
def combine(
    params: Sequence[nn.Parameter], kept: Grads, rule: str = "sum", priority: str = "subnets",
    cap: float | None = None, eps: float | None = None, known: Products | None = None,
) -> None:  # fmt: skip
    """Join the gradients of the largest network, ``kept``, with those of the others in ``.grad``; the result is there.

    ``project`` (eq. 1): where the inner product of a tensor's two gradients is negative, the component of the largest
    network's along the others' is taken out, so that nothing works against the others; with priority ``supernet``
    (table 7) the other way round. The paper writes eq. 1 for the gradient as a whole and measures conflict layer by
    layer; as released, this goes tensor by tensor.

    ``cap`` (2 as released) limits what is taken out to a multiple of the other gradient, and ``eps`` (default: 1e-6
    with a cap, as released, otherwise 0) is added to its squared norm; both leave a part of the conflict. The paper has
    neither. ``known``: the `products`, if they were computed for the measure of conflict already.

    A parameter that only one side used keeps that side's gradient, the kept tensor itself. (The released code, where
    the others' is None, doubles the largest's; it was written for a torch whose gradients were zeros there.)"""
    if rule not in RULES:
        raise SuperformerError(f"unknown rule for gradients {rule!r}: {nearest(rule, RULES)}")
    if priority not in PRIORITIES:
        raise SuperformerError(f"unknown priority {priority!r}: {nearest(priority, PRIORITIES)}")
    factors: dict[int, float] = {}
    if rule == "project":
        eps = (0.0 if cap is None else RELEASED_EPS) if eps is None else eps
        found = known or products(params, kept)
        for i, dot, norm in zip(found.at, found.dot, found.sub if priority == "subnets" else found.sup, strict=True):
            if dot < 0 < norm + eps:
                out = -dot / (norm + eps)
                factors[i] = 1 + (out if cap is None else min(out, cap))
    added: list[tuple[Tensor, Tensor]] = []
    for i, (p, sup) in enumerate(zip(params, kept, strict=True)):
        if sup is None:
            continue
        if p.grad is None:
            p.grad = sup
        elif i not in factors:
            added.append((p.grad, sup))
        elif priority == "subnets":
            torch.add(sup, p.grad, alpha=factors[i], out=p.grad)
        else:
            p.grad.add_(sup, alpha=factors[i])
    if added:
        torch._foreach_add_([g for g, _ in added], [k for _, k in added])


@torch.no_grad()
def total_norm(params: Iterable[nn.Parameter]) -> Tensor:
    """Of the gradients, all together."""
    return nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])


@torch.no_grad()
def shrink(params: Iterable[nn.Parameter], norm: float, limit: float | None) -> None:
    """Scale gradients of this norm such that it is at most ``limit``. As torch's, but nothing is written where nothing
    has to change."""
    if limit is not None and norm > limit:
        torch._foreach_mul_([p.grad for p in params if p.grad is not None], limit / (norm + 1e-6))


def clip(params: Iterable[nn.Parameter], limit: float | None, read: Read = Tensor.tolist) -> float:
    """Scale the gradients such that their norm is at most ``limit``; returns the norm before."""
    some = list(params)
    norm = float(read(total_norm(some)))
    shrink(some, norm, limit)
    return norm


def conflict(net: nn.Module, kept: Grads, known: Products | None = None) -> dict[str, Any]:
    """How far the largest network's gradients, ``kept``, work against the others', in ``.grad`` (NASViT, section 2,
    investigation 3).

    The paper takes the cosine of the largest network's gradient and the mean of the others' (their sum has the same
    cosine) and counts "the percentage of negative cosine similarity ... at a per layer granularity", over the training
    set. Here, of one step, without layers that one of both did not use:

    * ``ratio``: the share of layers (blocks) with a negative cosine; its mean over steps is table 4's *negative cosine
      similarity ratio*; ``tensors``: the same of single tensors, which is what projection works on;
    * ``negative``: the mean of the layers' negative cosines, 0 if there are none;
    * ``cosine``: that of the whole gradients; ``layers``: that of each layer."""
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    found = known or products(trainable(net), kept)
    sums: dict[str, list[float]] = {}
    for i, *row in zip(found.at, found.dot, found.sub, found.sup, strict=True):
        own = sums.setdefault(layer_of(names[i]), [0.0, 0.0, 0.0])
        own[:] = [a + b for a, b in zip(own, row, strict=True)]
    layers = {name: _cosine(*row) for name, row in sums.items() if row[1] > 0 and row[2] > 0}
    tensors = [dot < 0 for dot, sub, sup in zip(found.dot, found.sub, found.sup, strict=True) if sub > 0 and sup > 0]
    below = [c for c in layers.values() if c < 0]
    return {
        "ratio": len(below) / max(len(layers), 1),
        "tensors": sum(tensors) / max(len(tensors), 1),
        "negative": sum(below) / max(len(below), 1),
        "cosine": _cosine(sum(found.dot), sum(found.sub), sum(found.sup)),
        "layers": layers,
    }


def _cosine(dot: float, sub: float, sup: float) -> float:
    norm = (sub * sup) ** 0.5
    return dot / norm if norm > 0 else 0.0


def layer_of(name: str) -> str:
    """The layer of a parameter: its block, what leads into its stage, or its part outside the stages (stem, head)."""
    found = re.match(r"stages\.\d+\.(blocks\.\d+|[^.]+)", name)
    return found[0] if found else name.split(".")[0]


def unmatched(words: Sequence[str], net: nn.Module) -> list[str]:
    """The words of ``no_decay`` that are part of no parameter's name."""
    names = [name for name, _ in net.named_parameters()]
    return [word for word in words if not any(word in name for name in names)]


def check_no_decay(words: Sequence[str], net: nn.Module) -> None:
    """Refuse words of ``no_decay`` that mean nothing."""
    for word in unmatched(words, net):
        parts = {part: None for name, _ in net.named_parameters() for part in name.split(".") if not part.isdigit()}
        what = f"no weight of this network has {word!r} in its name: take the word out"
        raise SuperformerError(f"optimizer.no_decay: {what}; {nearest(word, parts)}")


def build(
    net: nn.Module, settings: Optimizer, *, decay: bool = True, scales: Mapping[str, float] | None = None
) -> TorchOptimizer:
    """An optimiser of timm with two groups: weights that decay; and those that do not: vectors (but with
    ``decay_vectors``), the names of ``no_decay`` and, as timm's do, what the network names (DeiT's tokens and
    positions, Swin's relative ones). Without ``decay`` it shrinks nothing itself; `decay_used` then does. ``scales``:
    of the learning rate, by names of weights; each makes groups of its own. Weights that need no gradient are left
    out."""
    known = timm.optim.list_optimizers()
    if settings.name not in known:
        raise SuperformerError(f"optimizer.name: unknown optimiser {settings.name!r}: {nearest(settings.name, known)}")
    own = _own_no_decay(net) if settings.own_no_decay else set[str]()
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in net.named_parameters():
        if p.requires_grad:
            vector = p.ndim <= 1 and not settings.decay_vectors
            spared = vector or name in own or any(word in name for word in settings.no_decay)
            key = (0.0 if spared else settings.weight_decay), (scales or {}).get(name, 1.0)
            members.setdefault(key, []).append(p)
    groups: list[dict[str, Any]] = [
        {"params": ps, "weight_decay": rate if decay else 0.0, "decay": rate} | ({} if scale == 1 else {SCALE: scale})
        for (rate, scale), ps in sorted(members.items(), key=lambda item: item[0])
    ]
    info = timm.optim.get_optimizer_info(settings.name)
    words: dict[str, Any] = {"opt": settings.name, "lr": settings.lr, "weight_decay": 0.0, "filter_bias_and_bn": False}
    words |= {name: getattr(settings, name) for name in ("eps", "betas", "momentum") if getattr(info, f"has_{name}")}
    if settings.name in ("adamw", "adam"):
        words["fused"] = True  # one pass over the weights
    made: TorchOptimizer = timm.optim.create_optimizer_v2(groups, **words)
    return made


def _own_no_decay(net: nn.Module) -> set[str]:
    """What a network, or a part of one that was put together, names itself."""
    if isinstance(net, Network):
        return net.no_weight_decay()
    named: list[tuple[str, Any]] = [(name, m) for name, m in net.named_modules() if name]
    named = [(name, module) for name, module in named if callable(getattr(module, "no_weight_decay", None))]
    return {f"{name}.{weight}" for name, module in named for weight in module.no_weight_decay()}


@torch.no_grad()
def decay_used(optimizer: TorchOptimizer) -> None:
    """Decoupled weight decay of what has a gradient: channels and blocks that a step did not use keep their weights."""
    for group in optimizer.param_groups:
        factor = group["lr"] * group["decay"]
        if factor:
            for p in group["params"]:
                if p.grad is not None:
                    p.addcmul_(p, (p.grad != 0).to(p.dtype), value=-factor)


class Schedule:
    """The learning rate of each step; it depends on nothing but where in the training the step is: its number, or
    between two of them, where time set the number of steps (`superformer.train.time_budget`)."""

    def __init__(self, optimizer: TorchOptimizer, settings: Optimizer, steps: int, steps_per_epoch: int):
        self.optimizer, self.settings = optimizer, settings
        warmup = settings.warmup_steps
        self.warmup = min(round(settings.warmup_epochs * steps_per_epoch) if warmup is None else warmup, steps)
        warm: dict[str, Any] = {"warmup_t": self.warmup, "warmup_lr_init": settings.warmup_lr, "t_in_epochs": False}
        self.rates: Scheduler
        if settings.schedule == "steps":
            at = [round(epoch * steps_per_epoch) + 1 for epoch in sorted(settings.milestones)]  # timm's is one early
            self.rates = MultiStepLRScheduler(optimizer, at, 0.1, warmup_prefix=False, **warm)
        elif settings.schedule == "poly":
            power, low = settings.power, settings.min_lr
            self.rates = PolyLRScheduler(optimizer, max(steps, 1), power, low, **warm)
        else:
            self.rates = CosineLRScheduler(optimizer, t_initial=max(steps, 1), lr_min=settings.min_lr, **warm)

    def set(self, step: float) -> float:
        """Set the rate of a step."""
        if self.settings.schedule == "constant" and step >= self.warmup:
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * group.get(SCALE, 1.0)
        else:
            self.rates.step_update(step)  # type: ignore[arg-type]  # between two steps, where time is a budget
        first = self.optimizer.param_groups[0]
        return float(first["lr"] / first.get(SCALE, 1.0))
