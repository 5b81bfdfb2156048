"""Search spaces and architectures: declare, count, encode, sample, vary.

`arch` holds the value that a network is; `stage` and `space` how a space is declared; `genes` populations as integer
arrays, mutation and crossover; `costs` what networks cost; `sampling` and `tables` how architectures are drawn."""

from superformer.space.arch import Arch, StageArch, Values
from superformer.space.genes import Genes
from superformer.space.space import Space, point
from superformer.space.stage import Choice, Divided, Ratio, Spec, Stage, Times, divided, ratio, tenths, times

__all__ = [
    "Arch", "Choice", "Divided", "Genes", "Ratio", "Space", "Spec", "Stage", "StageArch", "Times", "Values", "divided",
    "point", "ratio", "tenths", "times",
]  # fmt: skip
