"""Networks in double precision whose every tensor matters, the statistics of norms too; and how they are compared."""

from __future__ import annotations

import torch

import superformer as sf


def pictures(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def stirred(net: torch.nn.Module, seed: int = 2) -> torch.nn.Module:
    """In double precision, every tensor apart from its neutral start, the statistics of norms too."""
    generator = torch.Generator().manual_seed(seed)
    net = net.double().eval()
    for p in net.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    for b in net.buffers():
        if b.is_floating_point():
            b += torch.rand(b.shape, generator=generator, dtype=b.dtype)
    return net


def supernet(space: sf.Space, rule: str = "ordinal", seed: int = 1, classes: int = 5) -> torch.nn.Module:
    return stirred(sf.supernet(space, classes, rule, seed), seed + 10)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def state(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def little(**block: object) -> sf.Space:
    own = {"heads": (2, 4), "attn": sf.times(3, of="heads"), "mlp": (5, 8), **block}
    return sf.Space("s", "vit", (sf.Stage(own, depth=(1, 2)),), {"patch_size": 8, "width": (6, 8)}, img_size=16)
