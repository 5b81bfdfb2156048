"""Small supernets in double precision, and pictures for them."""

from __future__ import annotations

import torch

import superformer as sf


def pictures(batch: int, space: sf.Space, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, space.img_size, space.img_size, generator=generator, dtype=torch.float64)


def double(space: sf.Space, rule: str = "ordinal", **settings: object) -> torch.nn.Module:
    """A supernet in double precision whose every tensor matters: norms and biases are not at their neutral start."""
    net = sf.supernet(space, 5, rule, seed=1, **settings).double().eval()
    generator = torch.Generator().manual_seed(2)
    for p in net.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return net
