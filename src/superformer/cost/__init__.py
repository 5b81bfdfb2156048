"""What a network costs: multiply-accumulates and parameters, exactly, for whole populations at once; latency and memory, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from superformer.lazy import lazy

if TYPE_CHECKING:
    from superformer.cost.population import Costs, cost

__all__ = ["RUNTIMES", "Costs", "Runtime", "cost"]

Runtime = Literal["eager", "compiled", "onnx"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What runs networks: torch as it is, torch.compile, ONNX Runtime."""

lazy(__name__, {"Costs": "population:Costs", "cost": "population:cost"})
