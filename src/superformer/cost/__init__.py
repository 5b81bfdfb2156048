"""What a network costs: multiply-accumulates and parameters, exactly, for whole populations at once."""

from superformer.cost.population import Costs, cost

__all__ = ["Costs", "cost"]
