"""Two-dimensional relative positions of keys and values (AutoFormer).

For tokens n (query) and m (key) on a grid, with a class token in front:

    logit[n, m] = scale * q[n] . (k[m] + RK[n, m]),     out[n] = sum_m a[n, m] (v[m] + RV[n, m]), R[n, m] = rows[dr] +
    cols[dc],  dr, dc = row and column of m minus those of n;  entry 0 of both tables if n or m is the class token.

The released code gathers R as a tensor of (tokens, tokens, head width) in every block, and a third of its training step
is the backward pass of that lookup. But R is a row term plus a column term, so q . RK is a (rows + columns + 1)-vector
for each query which key m reads at its row, at its column and, for the class token, at the last entry; and sum_m a RV
needs only the sums of the attention over each row and column of keys. Both are extra channels of an ordinary attention:
the query carries its vector, keys and values carry one-hot marks of their row and column. That is exact and needs no
gather of the size of the attention.

The query's vector comes from one product with the entries of *all* distances: those a query at row i needs begin at
distance -i, so the vectors of all queries are a skewed window of the product, read and written by strides (`_windows`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from superformer.elastic.axis import EMPTY
from superformer.elastic.layers import Table, Widths
from superformer.kernels.attention import attend, unpack
from superformer.space.costs import Cost, Count

Grid = tuple[int, int]


def distances(grid: Grid) -> int:
    """Entries of all distances along the rows and along the columns, and the one of the class token."""
    return 2 * (grid[0] + grid[1]) - 1


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


def _near(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each token and each mark: which of the entries of all distances it needs (the class token: the last, for all
    keys), and the mark itself, one where a key has it."""
    (rows, cols), last = grid, sum(grid)
    row, col = (
        at.flatten()[:, None] for at in torch.meshgrid(*(torch.arange(n, device=device) for n in grid), indexing="ij")
    )
    marks = torch.arange(last + 1, device=device)
    far = torch.where(marks < rows, rows - 1 - row + marks, rows + cols - 2 - col + marks)
    index = torch.cat([torch.full_like(far[:1], distances(grid) - 1), far])
    index[:, last] = distances(grid) - 1
    own = (marks == row) | (marks == rows + col)
    return index, torch.cat([marks[None] == last, own])


def _traced(qkv: Tensor, keys: Tensor, values: Tensor, scale: float, grid: Grid) -> Tensor:
    """The same attention in plain operations, for export and compilation: each token's entries are gathered (they are
    constants there)."""
    index, marks = _near(grid, qkv.device)
    seen = torch.ones_like(index, dtype=qkv.dtype)
    seen[0, grid[0] : sum(grid)] = 0  # the class token's row marks carry its entry, its column marks nothing
    near_keys, near_values = (entries[index] * seen[..., None] for entries in (keys, values))
    q, k, v = unpack(qkv)
    asked = _by_token(q, near_keys.mT)
    own = marks.to(qkv.dtype).expand(*k.shape[:2], -1, -1)
    out = attend(torch.cat([q, asked], -1), torch.cat([k, own], -1), torch.cat([v, own], -1), scale)
    dim = q.shape[-1]
    return (out[..., :dim] + _by_token(out[..., dim:], near_values)).transpose(1, 2).flatten(2)


def _by_token(x: Tensor, matrices: Tensor) -> Tensor:
    """(batch, heads, tokens, channels), each token times a matrix of its own."""
    batch, heads = x.shape[:2]
    return (x.permute(2, 0, 1, 3).flatten(1, 2) @ matrices).view(x.shape[2], batch, heads, -1).permute(1, 2, 0, 3)


class RelativePosition(nn.Module):
    """Tables of ``2 * reach + 2`` entries for the rows and the columns of keys and of values; distances beyond
    ``reach`` are clipped."""

    def __init__(self, reach: int, head_dim: int):
        super().__init__()
        self.reach, self.head_dim = reach, head_dim
        for name in ("k_rows", "k_cols", "v_rows", "v_cols"):
            setattr(self, name, Table(2 * reach + 2, head_dim))

    def _entries(self, kind: str, grid: Grid, native: Grid) -> Tensor:
        """The entries of all distances, negative first, of rows and columns; then that of the class token. At another
        length than the network's own the distances are stretched: the entries are interpolated linearly."""
        out = []
        tables = [getattr(self, f"{kind}_{direction}")(EMPTY) for direction in ("rows", "cols")]
        for table, length, own in zip(tables, grid, native, strict=True):
            far = torch.arange(1 - own, own, device=table.device).clamp(-self.reach, self.reach) + self.reach + 1
            entries = table[far]
            if length != own:
                line = entries.t().unsqueeze(0)
                entries = F.interpolate(line, size=2 * length - 1, mode="linear", align_corners=True)[0].t()
            out.append(entries)
        return torch.cat([*out, tables[0][:1] + tables[1][:1]])

    def channels(self, grid: Grid) -> int:
        """Channels of a head with its marks, rounded up to what vector units like."""
        used = self.head_dim + grid[0] + grid[1] + 1
        return -(-used // 16) * 16

    def forward(self, qkv: Tensor, scale: float, grid: Grid, native: Grid) -> Tensor:
        """Attention of packed q, k, v (batch, 1 + rows * columns, 3, heads, head width), class token first."""
        keys, values = (self._entries(kind, grid, native).to(qkv.dtype) for kind in "kv")
        if torch.compiler.is_compiling():
            return _traced(qkv, keys, values, scale, grid)
        q, k, v = _Mark.apply(qkv, keys, grid, self.channels(grid))
        out: Tensor = _Unmark.apply(attend(q, k, v, scale), values, grid)
        return out

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: Grid) -> Cost:
        attention = 2 * heads * tokens * tokens * self.channels(grid)
        tables = 2 * heads * tokens * distances(grid) * self.head_dim
        return Cost(attention + tables, 4 * (2 * self.reach + 2) * self.head_dim)
