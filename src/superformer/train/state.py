"""What the next step depends on, as tensors by name and plain values, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from superformer.train.checkpoint import Checkpoint
from superformer.train.step import Trainer


def capture(trainer: Trainer, step: int) -> Checkpoint:
    """The state after ``step`` steps: weights, their average, the optimiser's moments, and what the guard against bad losses knows."""
    tensors = {f"net.{k}": v for k, v in trainer.net.state_dict().items()}
    if trainer.ema is not None:
        tensors |= {f"ema.{k}": v for k, v in trainer.ema.module.state_dict().items()}
    plain: dict[str, dict[str, Any]] = {}
    names = {id(p): name for name, p in trainer.net.named_parameters()}
    for p, state in trainer.optimizer.state.items():
        name = names[id(p)]
        tensors |= {f"optimizer.{name}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        if rest := {k: v for k, v in state.items() if not isinstance(v, Tensor)}:
            plain[name] = rest
    guard = {"recent": trainer.guard.recent, "skipped": trainer.guard.skipped, "in_a_row": trainer.guard.in_a_row}
    return Checkpoint(step, tensors, {"optimizer": plain, "guard": guard})


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Go on from a checkpoint."""
    trainer.net.load_state_dict(checkpoint.part("net."))
    if trainer.ema is not None:
        trainer.ema.module.load_state_dict(checkpoint.part("ema."))
    states: dict[str, dict[str, Any]] = {name: dict(values) for name, values in checkpoint.rest["optimizer"].items()}
    for key, tensor in checkpoint.part("optimizer.").items():
        name, _, entry = key.rpartition("/")
        states.setdefault(name, {})[entry] = tensor
    _give(trainer, states)
    for name, value in checkpoint.rest["guard"].items():
        setattr(trainer.guard, name, value)


def _give(trainer: Trainer, states: Mapping[str, Mapping[str, Any]]) -> None:
    for name, p in trainer.net.named_parameters():
        if name in states:
            trainer.optimizer.state[p] = {k: _placed(v, p) for k, v in states[name].items()}


def _placed(value: Any, like: nn.Parameter) -> Any:
    """Moments lie where their weights are; the count of steps stays where the optimiser keeps it."""
    return value.to(like.device) if isinstance(value, Tensor) and value.ndim else value
