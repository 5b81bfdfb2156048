"""Attention with two-dimensional relative positions of keys and values (AutoFormer).

For tokens n (query) and m (key) on a grid, with a class token in front:

    logit[n, m] = scale * q[n] . (k[m] + RK[n, m]),     out[n] = sum_m a[n, m] (v[m] + RV[n, m]),
    R[n, m] = rows[dr] + cols[dc],  dr, dc = row and column of m minus those of n;  entry 0 of both tables if n or m is
    the class token.

The released code gathers R as a tensor of (tokens, tokens, head width) in every block, and a third of its training step
is the backward pass of that lookup. But R is a row term plus a column term, so q . RK is a (rows + columns + 1)-vector
for each query which key m reads at its row, at its column and, for the class token, at the last entry; and sum_m a RV
needs only the sums of the attention over each row and column of keys. Both are extra channels of an ordinary attention:
the query carries its vector, keys and values carry one-hot *marks* of their row and column. That is exact and needs no
gather of the size of the attention.

The query's vector comes from one product with the entries of *all* distances: those a query at row i needs begin at
distance -i. The plain twin gathers them; the kernel reads and writes them by strides, as a skewed window (`_windows`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels import kernel, remembered
from superformer.kernels.attention import attention, split_heads

Grid = tuple[int, int]


def plain_relative_attention(
    qkv: Tensor, keys: Tensor, values: Tensor, scale: float, grid: Grid, channels: int
) -> Tensor:
    index, carried, marks = _marks_of(grid, qkv.device)
    q, k, v = split_heads(qkv)  # each (batch, heads, tokens, width)
    batch, heads, tokens, dim = q.shape
    index = index.expand(batch, heads, -1, -1)
    spare = q.new_zeros(batch, heads, tokens, channels - dim - marks.shape[1])
    own = marks.to(q.dtype).expand(batch, heads, -1, -1)
    asked = (q @ keys.t()).gather(-1, index) * carried.to(q.dtype)
    q, k, v = (torch.cat([x, more, spare], -1) for x, more in ((q, asked), (k, own), (v, own)))
    out = attention(q, k, v, scale)
    seen = out[..., dim : dim + marks.shape[1]] * carried.to(q.dtype)
    sums = out.new_zeros(batch, heads, tokens, len(values)).scatter_add(-1, index, seen)
    return (out[..., :dim] + sums @ values).transpose(1, 2).flatten(2)


@remembered
def _marks_of(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each token and each mark (of a row, of a column, of the class token): which of the entries of all distances
    it needs (the class token: the last, for all keys), whether it carries that (the class token's marks of columns do
    not: those of rows do already), and whether a key has the mark."""
    (rows, cols), last = grid, sum(grid)
    row, col = (at.flatten()[:, None] for at in torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij"))
    mark = torch.arange(last + 1)
    far = torch.where(mark < rows, rows - 1 - row + mark, rows + cols - 2 - col + mark)
    index = torch.cat([torch.full_like(far[:1], 2 * last - 2), far])
    index[:, last] = 2 * last - 2
    carried = torch.ones_like(index, dtype=torch.bool)
    carried[0, rows:last] = False
    marks = torch.cat([mark[None] == last, (mark == row) | (mark == rows + col)])
    return index.to(device), carried.to(device), marks.to(device)


@kernel(plain_relative_attention, amp=True)
def relative_attention(qkv: Tensor, keys: Tensor, values: Tensor, scale: float, grid: Grid, channels: int) -> Tensor:
    """Attention of packed q, k, v (batch, 1 + rows * columns, 3, heads, width), class token first, to
    (batch, tokens, heads * width). ``keys`` and ``values``: the entries of all distances along the rows and along the
    columns, negative first, and that of the class token. ``channels``: of a head with its marks."""
    q, k, v = _Mark.apply(qkv, keys, grid, channels)
    out: Tensor = _Unmark.apply(attention(q, k, v, scale), values, grid)
    return out


def _windows(products: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """What each patch needs of its products with all distances, ``products`` being (batch, heads, tokens, distances):
    views of (batch, heads, rows, columns, rows) and (batch, heads, rows, columns, columns)."""
    rows, cols = grid
    b, h, n, e = products.stride()
    assert e == 1
    batch, heads = products.shape[:2]
    start = products.storage_offset() + n
    by_row = products.as_strided((batch, heads, rows, cols, rows), (b, h, cols * n - 1, n, 1), start + rows - 1)
    by_col = products.as_strided(
        (batch, heads, rows, cols, cols), (b, h, cols * n, n - 1, 1), start + 2 * rows - 1 + cols - 1
    )
    return by_row, by_col


def _marks(marked: Tensor, dim: int, grid: Grid) -> tuple[Tensor, Tensor]:
    """The channels of the row and the column marks of the patches of (batch, heads, tokens, channels)."""
    rows, cols = grid
    patches = marked[:, :, 1:].view(*marked.shape[:2], rows, cols, -1)
    return patches[..., dim : dim + rows], patches[..., dim + rows : dim + rows + cols]


class _Mark(torch.autograd.Function):
    """Packed q, k, v (batch, tokens, 3, heads, width) to three tensors (batch, heads, tokens, width and marks)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, entries: Tensor, grid: Grid, channels: int) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _, heads, dim = qkv.shape
        (rows, cols), last = grid, sum(grid)
        out = qkv.new_empty(3, batch, heads, tokens, channels)
        out[..., :dim] = qkv.permute(2, 0, 3, 1, 4)
        marks = qkv.new_zeros(tokens, channels - dim)
        marks[0, last] = 1
        marks[1:, :rows] = torch.eye(rows, dtype=qkv.dtype, device=qkv.device).repeat_interleave(cols, 0)
        marks[1:, rows:last] = torch.eye(cols, dtype=qkv.dtype, device=qkv.device).repeat(rows, 1)
        out[1:, ..., dim:] = marks

        query = out[0]
        products = (query.view(-1, channels)[:, :dim] @ entries.t()).view(batch, heads, tokens, -1)
        for there, here in zip(_marks(query, dim, grid), _windows(products, grid), strict=True):
            there.copy_(here)
        query[:, :, 0, dim : dim + rows] = products[
            :, :, 0, -1:
        ]  # the class token sees every key at entry 0: its row mark carries that
        query[:, :, 0, dim + rows :] = 0
        query[..., dim + last :] = 0
        query[..., dim + last] = products[..., -1]
        ctx.save_for_backward(query, entries)
        ctx.grid, ctx.dim = grid, dim
        return query, out[1], out[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, entries = ctx.saved_tensors
        batch, heads, tokens, channels = q.shape
        grid, dim, rows, last = ctx.grid, ctx.dim, ctx.grid[0], sum(ctx.grid)
        products = q.new_zeros(batch, heads, tokens, len(entries))
        for there, here in zip(_windows(products, grid), _marks(query, dim, grid), strict=True):
            there.copy_(here)
        products[..., -1] = query[..., dim + last]
        products[:, :, 0, -1] += query[:, :, 0, dim : dim + rows].sum(-1)
        flat = products.view(-1, len(entries))
        grad = q.new_empty(batch, tokens, 3, heads, dim)
        own = query[..., :dim] + (flat @ entries).view(batch, heads, tokens, dim)
        for n, part in enumerate((own, key[..., :dim], value[..., :dim])):
            grad[:, :, n] = part.transpose(1, 2)
        return grad, flat.t() @ q.view(-1, channels)[:, :dim], None, None


class _Unmark(torch.autograd.Function):
    """Attention over marked values (batch, heads, tokens, width and marks) to (batch, tokens, heads * width)."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, entries: Tensor, grid: Grid) -> Tensor:
        last, dim = sum(grid), entries.shape[1]
        batch, heads, tokens, _ = out.shape
        sums = out.new_zeros(batch, tokens, heads, len(entries))
        by_head = sums.transpose(1, 2)
        for there, here in zip(_windows(by_head, grid), _marks(out, dim, grid), strict=True):
            there.copy_(here)
        by_head[..., -1] = out[..., dim + last]
        by_head[:, :, 0, -1] = 1  # the class token sees all values at entry 0, and attention sums to one
        own = out[..., :dim].transpose(1, 2).reshape(batch * tokens * heads, dim)
        own = torch.addmm(own, sums.view(-1, len(entries)), entries)
        ctx.save_for_backward(sums, entries)
        ctx.grid, ctx.channels = grid, out.shape[-1]
        return own.view(batch, tokens, heads * dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        sums, entries = ctx.saved_tensors
        batch, tokens, heads, _ = sums.shape
        last, dim = sum(ctx.grid), entries.shape[1]
        flat = grad.reshape(-1, dim)
        back = flat.new_empty(batch, tokens, heads, ctx.channels)
        back[..., :dim] = flat.view(batch, tokens, heads, dim)
        products = (flat @ entries.t()).view(batch, tokens, heads, -1).transpose(1, 2)
        out = back.transpose(1, 2)
        for there, here in zip(_marks(out, dim, ctx.grid), _windows(products, ctx.grid), strict=True):
            there.copy_(here)
        out[..., dim + last :] = 0
        out[..., dim + last] = products[..., -1]
        out[:, :, 0, dim:] = 0
        return out, sums.view(-1, len(entries)).t() @ flat, None
