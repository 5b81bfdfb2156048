"""What a network costs: MACs and parameters, exactly, for whole populations at once; latency and memory, measured. And
networks scaled to a cost (`superformer.cost.scaling`)."""

from __future__ import annotations

from superformer.space.costs import Costs, cost

__all__ = ["Costs", "cost"]
