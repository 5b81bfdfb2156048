"""The layers by themselves: slices, their gradients, and what a step allocates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.strategies import runs
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import superformer as sf
from superformer.elastic.axis import EMPTY, Axis, Selection, View, fixed
from superformer.elastic.layers import Conv2d, LayerNorm, Linear
from superformer.elastic.masked import MaskedView, masks_of
from superformer.elastic.positions import join_windows, resized, split_windows
from superformer.elastic.relative import RelativePosition, relative_attention
from superformer.kernels import Scratch
from superformer.kernels.convolution import depthwise, input_gradient, kernel_gradient, patches, with_margins
from superformer.kernels.slices import gather, layer_norm, linear, scatter, take


@given(runs(5), runs(4), st.booleans())
def test_gradients_of_slices_equal_autograd(rows, columns, with_bias):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True) if with_bias else None
    x = torch.randn(
        3, 2, len(gather(torch.zeros(4), (columns,))), dtype=torch.float64, generator=generator, requires_grad=True
    )

    def gradients(y: torch.Tensor) -> list[torch.Tensor]:
        for t in (weight, bias, x):
            if t is not None:
                t.grad = None
        y.sin().sum().backward()
        return [t.grad.clone() for t in (weight, bias, x) if t is not None and t.grad is not None]

    ours = gradients(linear(x, weight, bias, (rows, columns), (rows,) if with_bias else ()))
    theirs = gradients(F.linear(x, gather(weight, (rows, columns)), None if bias is None else gather(bias, (rows,))))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    ours = gradients(take((weight, (rows, columns)))[0] * x.sum())
    theirs = gradients(gather(weight, (rows, columns)) * x.sum())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@given(runs(5), runs(4))
def test_scatter_is_the_opposite_of_gather(rows, columns):
    tensor, out = torch.randn(5, 4), torch.zeros(5, 4)
    scatter(out, (rows, columns), gather(tensor, (rows, columns)))
    assert torch.equal(gather(out, (rows, columns)), gather(tensor, (rows, columns)))
    assert out.count_nonzero() == gather(tensor, (rows, columns)).numel()


class Allocations(TorchDispatchMode):
    """The sizes of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if (
                isinstance(t, torch.Tensor)
                and t._base is None
                and "detach" not in str(func)
                and "_" not in str(func).split(".")[1][-1:]
            ):
                self.made.append(tuple(t.shape))
        return out


def test_a_step_allocates_no_full_size_tensor_for_each_sub_network():
    """However many sub-networks share a step, each weight's full-size gradient is made once."""
    space = sf.space("autoformer-tiny").narrow(depth=12, heads=3, width=[192, 216], mlp=3.5)
    wide = sf.supernet(sf.space("autoformer-tiny"), 10).train()
    archs, x = space.sample(4), torch.zeros(4, 3, 224, 224)
    full = tuple(wide.stage(0).block(0).mlp.fc1.weight.shape)
    with Allocations() as seen:
        wide(x, archs, mode="sliced").sum().backward()
    assert seen.made.count(full) == 12, "one gradient for each of the 12 blocks, for all four sub-networks together"
    wide.zero_grad()
    with Allocations() as seen:
        wide(x, archs, mode="sliced").sum().backward()
    assert seen.made.count(full) == 0, "and none in the next step: its memory is used again"


def test_memory_that_is_used_again_is_clean():
    """A step with the largest sub-network, or a gradient that somebody wrote into, leaves nothing behind for the next
    step."""
    space, x = sf.space("vitas-block"), torch.randn(2, 3, 224, 224)
    net, fresh = sf.supernet(space, 10), sf.supernet(space, 10)
    net(x, [space.largest(), space.smallest()]).sum().backward()
    net(x, space.sample(1)[0]).sum().backward()
    for p in net.parameters():
        if p.grad is not None:
            p.grad.add_(1)
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    for other in (net, fresh):
        other(x, space.smallest()).sum().backward()
    for (name, p), q in zip(net.named_parameters(), fresh.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or torch.equal(p.grad, q.grad), name


def test_memory_that_is_used_again_has_the_precision_of_the_weights():
    space, x = sf.space("vitas-block"), torch.randn(2, 3, 224, 224)
    net = sf.supernet(space, 10)
    net(x, space.smallest()).sum().backward()
    net.zero_grad()
    net.double()(x.double(), space.smallest()).sum().backward()
    assert {p.grad.dtype for p in net.parameters() if p.grad is not None} == {torch.float64}


def test_sub_networks_that_are_alike_are_one_batch():
    """Three equal ones and another in a batch of eight: six pictures go through each matrix together, and two by
    themselves."""
    space = sf.space("vitas-block")
    net, x = sf.supernet(space, 10), torch.randn(8, 3, 224, 224)
    small, large = space.smallest(), space.largest()
    seen = []
    hook = net.stage(0).block(0).mlp.fc1.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    out = net(x, [small, small, large, small])
    hook.remove()
    assert sorted(seen) == [2, 6]
    rows = torch.tensor([0, 1, 2, 3, 6, 7])
    torch.testing.assert_close(out[rows], net(x[rows], small))
    torch.testing.assert_close(out[4:6], net(x[4:6], large))


def test_gradients_survive_another_memory_format():
    net = sf.supernet("vitas-block", 10).to(memory_format=torch.channels_last)
    net(torch.randn(1, 3, 224, 224), net.space.smallest()).sum().backward()
    assert net.stems["16"].proj.weight.grad.abs().sum() > 0


def test_frozen_weights_get_no_gradient():
    net = sf.supernet("vitas-block", 10)
    net.stems.requires_grad_(False)
    net(torch.randn(1, 3, 224, 224), net.space.smallest()).sum().backward()
    assert net.stems["16"].proj.weight.grad is None
    assert net.head.weight.grad is not None


@pytest.mark.parametrize(
    ("space", "size"), [("vitas-block", 224), ("nasvit", 192), ("vitas-resnet50", 64), ("vitas-twins-tiny", 64)]
)
def test_autocast(space, size):
    torch.manual_seed(0)
    net, x = sf.supernet(space, 10), torch.randn(2, 3, size, size)
    arch = net.space.smallest()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, z = net(x, arch), net.extract(arch)(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, z, rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters() if p.grad is not None
    )
    assert net.head.weight.grad.abs().sum() > 0


@given(
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([1, 2]),
)
def test_depthwise_gradients_by_columns_are_those_of_torch(batch, rows, columns, channels, size, stride):
    x = torch.randn(batch, rows, columns, channels, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(channels, 1, size, size, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x.permute(0, 3, 1, 2), kernel, None, stride, size // 2, groups=channels).permute(0, 2, 3, 1)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, kernel), grad)
    margins = with_margins(Scratch(), x, kernel).copy_(x.detach())
    again = kernel_gradient(grad, margins, kernel.detach(), stride, stride == 1 and size > 3)
    back = input_gradient(grad, x.detach(), kernel.detach(), stride)
    torch.testing.assert_close(depthwise(x, kernel, None, stride), expected)
    torch.testing.assert_close((back, again), wanted)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_patches_and_windows_are_those_of_unfold(side, rows, cols, spare):
    x = torch.arange(2.0 * (side * rows + spare % side) * side * cols * 6).view(2, -1, side * cols, 6)
    found = F.unfold(x.permute(0, 3, 1, 2), side, stride=side)  # (batch, channels * side * side, patches)
    assert torch.equal(patches(x, side).flatten(1, 2).flatten(2).transpose(1, 2), found)
    whole = x[:, : side * rows]
    windows = split_windows(whole, side, 3, 2)  # q, k, v of two heads with one channel each
    wanted = found.view(2, 3, 2, side * side, -1).permute(1, 0, 4, 2, 3).flatten(1, 2)
    assert torch.equal(torch.stack(windows).squeeze(-1), wanted)
    joined = [join_windows(w, side, side * rows, side * cols) for w in windows]
    assert torch.equal(torch.cat(joined, -1), whole)


@given(runs(4), st.integers(1, 3))
def test_layer_norm_of_a_slice(columns, batch):
    weight, bias = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    w, b = gather(weight, (columns,)), gather(bias, (columns,))
    x = torch.randn(batch, 2, len(w), dtype=torch.float64, requires_grad=True)
    ours, theirs = layer_norm(x, weight, bias, (columns,), 1e-6), F.layer_norm(x, w.shape, w, b, 1e-6)
    torch.testing.assert_close(ours, theirs)
    mix = torch.randn_like(ours)
    wanted = torch.autograd.grad(theirs, (x, weight, bias), mix)
    (ours * mix).sum().backward()
    torch.testing.assert_close((x.grad, weight.grad, bias.grad), wanted)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (7, 7, 0), (3, 1, 1), (2, 2, 0)])
def test_convolution_as_a_matrix_product(kernel, stride, padding):
    layer = Conv2d(fixed("in", 4), fixed("out", 6), kernel, stride, padding).double()
    x = torch.randn(2, 4, 14, 14, dtype=torch.float64)
    expected = F.conv2d(x, layer.weight, layer.bias, stride, padding).flatten(2).transpose(1, 2)
    torch.testing.assert_close(layer(x, EMPTY), expected)


def test_masked_layer_norm_is_the_layer_norm_of_the_kept_channels():
    axis = Axis("w", (3, 5, 8))
    norm = LayerNorm(axis).double()
    norm.weight.data.normal_()
    norm.bias.data.normal_()
    x = torch.randn(4, 7, 8, dtype=torch.float64) * 10 + 100
    parts = [View({axis: Selection(runs, width)}) for runs, width in ((((0, 3),), 3), (((6, 8), (0, 3)), 5))]
    view = MaskedView(masks_of(parts, 2, x), (), frozenset(), "left")
    y = norm(view.keep(x, axis), view)
    torch.testing.assert_close(y[:2, :, :3], F.layer_norm(x[:2, :, :3], (3,), norm.weight[:3], norm.bias[:3], norm.eps))
    kept = [6, 7, 0, 1, 2]
    torch.testing.assert_close(
        y[2:][..., kept], F.layer_norm(x[2:][..., kept], (5,), norm.weight[kept], norm.bias[kept], norm.eps)
    )
    assert y[:2, :, 3:].abs().max() == y[2:, :, 3:6].abs().max() == 0


def test_packed_parts_are_sliced_part_by_part_weights_and_biases_alike():
    axis = Axis("attn", (2, 4))
    layer = Linear(fixed("in", 3), axis, parts=3, tag="qkv")
    view = View({axis: Selection(((0, 2),), 2)})
    assert layer.index("weight", view)[0] == layer.index("bias", view)[0] == ((0, 2), (4, 6), (8, 10))
    joint = View({axis: Selection(((0, 2),), 2)}, frozenset({"qkv.bias"}))
    assert layer.index("weight", joint)[0] == ((0, 2), (4, 6), (8, 10))
    assert layer.index("bias", joint)[0] == ((0, 6),)


@pytest.mark.parametrize("reach", [2, 14])
def test_relative_positions_against_the_definition(reach):
    """R[n, m] gathered pair by pair, as in the released code."""
    torch.manual_seed(0)
    rows, cols, dim = 3, 4, 5
    module = RelativePosition(reach, dim).double()
    for p in module.parameters():
        p.data.normal_()
    packed = torch.randn(2, 1 + rows * cols, 3, 2, dim, dtype=torch.float64, requires_grad=True)
    q, k, v = packed.permute(2, 0, 3, 1, 4)

    def pairs(vertical: torch.Tensor, horizontal: torch.Tensor) -> torch.Tensor:
        out = torch.empty(1 + rows * cols, 1 + rows * cols, dim, dtype=torch.float64)
        for n in range(1 + rows * cols):
            for m in range(1 + rows * cols):
                a = b = 0
                if n and m:
                    a, b = ((m - 1) // cols - (n - 1) // cols, (m - 1) % cols - (n - 1) % cols)
                    a, b = (max(-reach, min(reach, d)) + reach + 1 for d in (a, b))
                out[n, m] = vertical[a] + horizontal[b]
        return out

    keys, values = pairs(module.k_rows.weight, module.k_cols.weight), pairs(module.v_rows.weight, module.v_cols.weight)
    logits = 0.3 * (q @ k.transpose(-1, -2) + torch.einsum("bhnd,nmd->bhnm", q, keys))
    weights = logits.softmax(-1)
    expected = weights @ v + torch.einsum("bhnm,nmd->bhnd", weights, values)
    expected = expected.transpose(1, 2).flatten(2)
    tables = module((rows, cols), (rows, cols), packed.dtype)
    actual = relative_attention(packed, *tables, 0.3, (rows, cols), module.channels((rows, cols)))
    torch.testing.assert_close(actual, expected)

    inputs = [packed, *module.parameters()]
    mix = torch.randn_like(expected)
    for mine, true in zip(
        torch.autograd.grad(actual, inputs, mix), torch.autograd.grad(expected, inputs, mix), strict=True
    ):
        torch.testing.assert_close(mine, true)


def test_position_tables():
    table = torch.randn(1 + 9, 4)
    assert resized(table, (3, 3), (3, 3), 1) is table
    bigger = resized(table, (3, 3), (6, 6), 1)
    assert bigger.shape == (37, 4)
    assert torch.equal(bigger[0], table[0])
    for antialias in (False, True):
        half = resized(table.bfloat16(), (3, 3), (2, 2), 1, antialias)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), resized(table, (3, 3), (2, 2), 1, antialias), atol=0.05, rtol=0.05)
    flat = resized(torch.ones(9, 2), (3, 3), (5, 4), 0)
    torch.testing.assert_close(flat, torch.ones(20, 2))
