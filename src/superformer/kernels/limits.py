"""Sizes from which on one way of computing is faster than another on a CPU, in one place.

``python benchmarks/kernels.py --limits all`` measures half and twice of each. The figures here are of two threads of an
EPYC with 32 MB of cache; differences of less than 3 % are noise.
"""

from __future__ import annotations

IN_CACHE = 2**21
"""Numbers of a map that stay in the cache between two operations: maps are cut into parts of this size. An evaluation
of NASViT takes as long with half of it and 6 % longer with twice; a training step differs by less than the noise."""

KEPT_KEYS = 320
"""Keys up to which a training step keeps the attention weights instead of computing them again in the backward pass: a
quarter faster at 50 tokens, a seventh at 200 and at 257. With more tokens they take too much memory."""

MANY_ROWS = 1024
"""Rows (pictures times tokens) from which on one product with a matrix put together from its slices is faster than a
product for each slice; and from which on more sub-networks in one batch make no product faster. A step of 16 networks
of ViT-ResNAS takes as long with half of it and 4 % longer with twice."""

FEW_BOXES = 4
"""Written boxes of a gradient up to which each is cleared by itself, instead of all of the gradient. Half and twice of
it differ by less than the noise (steps of NASViT and of 16 networks of ViT-ResNAS)."""

APART = 2**17
"""Numbers of a map from which on the gradients of a wide depthwise kernel are computed column by column: torch's
library has a fast gradient for kernels of up to three columns, a wider one takes three to four times as long. A step of
NASViT takes 3 % longer with half of it and 1 % with twice."""

LARGE_PATCH = 8
"""The side of a patch from which on one copy of all its pixels is faster than a copy for each pixel of a patch."""

TALKING_IN_CACHE = 2**20
"""Attention weights of talking heads that stay in the cache between two operations: two of their maps are in use. An
evaluation of NASViT takes 5 % longer with half of it and 2 % with twice."""

MASKED_PARTS = 4
"""Architectures in a batch from which on one masked pass starts fewer operations off the CPU than a sliced pass for
each: 3,063 against 4 times some 900 for ViT-ResNAS-Tiny (counted on torch's meta device)."""
