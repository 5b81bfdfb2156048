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
distance -i."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import EMPTY
from superformer.elastic.layers import Table
from superformer.kernels import remembered
from superformer.kernels.attention import attention, split_heads
from superformer.space.costs import Cost, Count

Grid = tuple[int, int]


class RelativePosition(nn.Module):
    """AutoFormer's relative positions of keys and values: tables of ``2 * reach + 2`` entries for the rows and the
    columns; distances beyond ``reach`` are clipped."""

    def __init__(self, reach: int, head_dim: int):
        super().__init__()
        self.reach, self.head_dim = reach, head_dim
        for name in ("k_rows", "k_cols", "v_rows", "v_cols"):
            setattr(self, name, Table(2 * reach + 2, head_dim))

    def forward(self, grid: Grid, native: Grid, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For keys and for values, the entries of all distances, negative first, of rows and columns; then that of the
        class token. At another length than the network's own (``native``) the entries are interpolated linearly."""
        out = []
        for kind in "kv":
            entries = []
            tables = [getattr(self, f"{kind}_{direction}")(EMPTY) for direction in ("rows", "cols")]
            for table, length, own in zip(tables, grid, native, strict=True):
                far = torch.arange(1 - own, own, device=table.device).clamp(-self.reach, self.reach) + self.reach + 1
                found = table[far]  # (distances, head width)
                if length != own:
                    line = found.t().unsqueeze(0)
                    found = F.interpolate(line, size=2 * length - 1, mode="linear", align_corners=True)[0].t()
                entries.append(found)
            out.append(torch.cat([*entries, tables[0][:1] + tables[1][:1]]).to(dtype))
        return out[0], out[1]

    def channels(self, grid: Grid) -> int:
        """Channels of a head with its marks, rounded up to what vector units like."""
        return -(-(self.head_dim + grid[0] + grid[1] + 1) // 16) * 16

    def cost(self, heads: Count, tokens: Count, grid: Grid) -> Cost:
        attention = 2 * heads * tokens * tokens * self.channels(grid)
        tables = 2 * heads * tokens * (2 * (grid[0] + grid[1]) - 1) * self.head_dim
        return Cost(attention + tables, 4 * (2 * self.reach + 2) * self.head_dim)


def relative_attention(qkv: Tensor, keys: Tensor, values: Tensor, scale: float, grid: Grid, channels: int) -> Tensor:
    """Attention of packed q, k, v (batch, 1 + rows * columns, 3, heads, width), class token first, to
    (batch, tokens, heads * width). ``keys`` and ``values``: the entries of all distances along the rows and along the
    columns, negative first, and that of the class token. ``channels``: of a head with its marks."""
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
