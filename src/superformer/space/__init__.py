"""Search spaces and architectures: declare, count, encode, sample, vary.

`arch` holds the value that a network is; `stage` and `space` how a space is declared; `genes` populations as integer
arrays; `sampling`, `tables` and `depths` how architectures are drawn; `variation` mutation and crossover."""

from superformer.space.arch import Arch, StageArch, Values
from superformer.space.genes import Genes
from superformer.space.space import Space, point
from superformer.space.stage import Choice, Ratio, Spec, Stage, Times, ratio, tenths, times

__all__ = [
    "Arch", "Choice", "Genes", "Ratio", "Space", "Spec", "Stage", "StageArch", "Times", "Values", "point", "ratio",
    "tenths", "times",
]  # fmt: skip
