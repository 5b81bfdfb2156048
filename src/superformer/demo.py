"""The first look that ``superformer demo`` gives."""

from __future__ import annotations

import time

import numpy as np
import torch
from rich.console import Console

import superformer as sf


def run(console: Console) -> None:
    """A space, networks of a budget drawn from it, and one of them run in the supernet, by itself, and with others in one batch."""
    space = sf.space("vit-resnas-tiny")
    console.rule("1. A search space")
    console.print(f"[bold]{space.name}[/]: {space.size:.3g} different architectures (superformer spaces {space.name} lists its choices)")

    console.rule("2. What networks cost, exactly and for a whole population at once")
    start = time.perf_counter()
    genes = space.sample_genes(100_000, seed=0)
    costs = sf.cost(space, genes, num_classes=10)
    taken = time.perf_counter() - start
    console.print(f"{len(genes):,} networks drawn and counted in {taken:.2f} s; how their MACs (G) spread:")
    counts, edges = np.histogram(costs.macs / 1e9, bins=12)
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        console.print(f"  {low:4.2f} to {high:4.2f}  [cyan]{'#' * round(60 * count / counts.max())}[/]")

    console.rule("3. Networks of a budget")
    archs = space.sample(4, seed=0, macs=(1.19e9, 1.21e9), num_classes=10)
    for arch, macs, params in zip(archs, *vars(sf.cost(space, archs, num_classes=10)).values(), strict=True):
        console.print(f"  {arch.key}  {macs / 1e9:.3f} G MACs, {params / 1e6:.1f} M parameters, {arch.depth} blocks")

    console.rule("4. One supernet holds them all")
    with console.status("building the supernet"):
        net = sf.supernet(space, num_classes=10, seed=0).eval()
    weights = sum(p.numel() for p in net.parameters())
    x = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), console.status("running the networks"):
        mixed = net(x, archs)
        model = net.extract(archs[0])
        apart = (model(x[:2]) - net(x[:2], archs[0])).abs().max().item()
        together = (mixed[:2] - net(x[:2], archs[0])).abs().max().item()
    console.print(f"The supernet has {weights / 1e6:.1f} M weights. The first network, run three ways on the same pictures:")
    console.print(f"  through the supernet against extracted:            largest difference {apart:.1e}")
    console.print(f"  alone against with three others in one batch:      largest difference {together:.1e}")
    console.print("Next: net.extract(arch) is an ordinary model for timm; docs/guide.md shows the rest.")
