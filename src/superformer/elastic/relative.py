"""Two-dimensional relative positions of keys and values (AutoFormer).

For tokens n (query) and m (key) on a grid, with a class token in front:

    logit[n, m] = scale * q[n] . (k[m] + RK[n, m]),     out[n] = sum_m a[n, m] (v[m] + RV[n, m]),
    R[n, m] = rows[dr] + cols[dc],  dr, dc = row and column of m minus those of n;  entry 0 of both tables if n or m is the class token.

The released code gathers R as a tensor of (tokens, tokens, head width) in every block, and a third of its training step is the backward
pass of that lookup. But R is a row term plus a column term, so q . RK is a (rows + columns + 1)-vector for each query which key m reads at
its row, at its column and, for the class token, at the last entry; and sum_m a RV needs only the sums of the attention over each row and
column of keys. Both are extra channels of an ordinary attention: the query carries its vector, keys and values carry one-hot marks of
their row and column. That is exact and needs no gather of the size of the attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import EMPTY
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import Table, Widths

Grid = tuple[int, int]


class RelativePosition(nn.Module):
    """Tables of ``2 * reach + 2`` entries for the rows and the columns of keys and of values; distances beyond ``reach`` are clipped."""

    def __init__(self, reach: int, head_dim: int):
        super().__init__()
        self.reach, self.head_dim = reach, head_dim
        for name in ("k_rows", "k_cols", "v_rows", "v_cols"):
            setattr(self, name, Table(2 * reach + 2, head_dim))

    def _table(self, name: str) -> Tensor:
        table = getattr(self, name)
        assert isinstance(table, Table)
        out: Tensor = table(EMPTY)
        return out

    def _pairs(self, table: Tensor, length: int, native: int) -> Tensor:
        """Entries for all pairs of positions of one direction (query, key, channel). At another length than the network's own the
        distances are stretched: the entries are interpolated linearly."""
        far = torch.arange(1 - native, native, device=table.device).clamp(-self.reach, self.reach) + self.reach + 1
        entries = table[far]
        if length != native:
            line = entries.t().unsqueeze(0)
            entries = F.interpolate(line, size=2 * length - 1, mode="linear", align_corners=True)[0].t()
        steps = torch.arange(length, device=table.device)
        return entries[steps[None, :] - steps[:, None] + length - 1]

    def channels(self, grid: Grid) -> int:
        """Channels of a head with its marks, rounded up to what vector units like."""
        used = self.head_dim + grid[0] + grid[1] + 1
        return -(-used // 16) * 16

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: Grid, native: Grid) -> Tensor:
        """Attention of (batch, heads, 1 + rows * columns, head width) tensors, class token first."""
        batch, heads, tokens, dim = q.shape
        rows, cols = grid
        marks = torch.zeros(tokens, self.channels(grid) - dim, dtype=q.dtype, device=q.device)
        marks[0, rows + cols] = 1
        marks[1:, :rows] = torch.eye(rows, dtype=q.dtype, device=q.device).repeat_interleave(cols, 0)
        marks[1:, rows : rows + cols] = torch.eye(cols, dtype=q.dtype, device=q.device).repeat(rows, 1)
        marks = marks.expand(batch, heads, -1, -1)

        key_rows, key_cols = self._table("k_rows"), self._table("k_cols")
        patches = q[:, :, 1:].reshape(batch, heads, rows, cols, dim)
        by_row = torch.einsum("bhijd,ikd->bhijk", patches, self._pairs(key_rows, rows, native[0])).flatten(2, 3)
        by_col = torch.einsum("bhijd,jkd->bhijk", patches, self._pairs(key_cols, cols, native[1])).flatten(2, 3)
        to_class = (q * (key_rows[0] + key_cols[0])).sum(-1, keepdim=True)
        first = to_class[:, :, :1]  # the class token sees every key at entry 0: its row mark alone carries that
        seen_rows = torch.cat([first.expand(-1, -1, -1, rows), by_row], 2)
        seen_cols = F.pad(by_col, (0, 0, 1, 0))
        query = torch.cat([q, seen_rows, seen_cols, to_class, q.new_zeros(batch, heads, tokens, marks.shape[-1] - rows - cols - 1)], -1)
        out = F.scaled_dot_product_attention(query, torch.cat([k, marks], -1), torch.cat([v, marks], -1), scale=scale)

        value_rows, value_cols = self._table("v_rows"), self._table("v_cols")
        at_class = value_rows[0] + value_cols[0]
        sums = out[:, :, 1:, dim:].reshape(batch, heads, rows, cols, -1)
        own = torch.einsum("bhijk,ikd->bhijd", sums[..., :rows], self._pairs(value_rows, rows, native[0]))
        own = own + torch.einsum("bhijk,jkd->bhijd", sums[..., rows : rows + cols], self._pairs(value_cols, cols, native[1]))
        own = own + sums[..., rows + cols, None] * at_class
        return out[..., :dim] + torch.cat([at_class.expand(batch, heads, 1, dim), own.flatten(2, 3)], 2)

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: Grid) -> Cost:
        rows, cols = grid
        attention = 2 * heads * tokens * tokens * self.channels(grid)
        tables = 2 * heads * rows * cols * (rows + cols) * self.head_dim
        return Cost(attention + tables, 4 * (2 * self.reach + 2) * self.head_dim)
