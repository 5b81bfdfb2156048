"""Every kernel computes what its plain twin says, and so do its gradients; and the switch switches."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.strategies import runs
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.kernels import KERNELS, attention, convolution, inverted, lockstep, slices

SEEN: set[str] = set()


def randn(*shape: int, seed: int = 0, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def agree(kernel, inputs, *args, **words) -> None:
    """Outputs and all gradients; kernels write the gradients of slices of weights straight into ``.grad``."""
    SEEN.add(kernel.__name__)
    found = []
    for mode in ("plain", "fast"):
        for t in inputs:
            t.grad = None
        with sf.kernels.using(mode):
            out = kernel(*args, **words)
            with torch.no_grad():
                again = kernel(*args, **words)
        outs, later = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (out, again))
        sum((y * randn(*y.shape, seed=7, grad=False)).sum() for y in outs).backward()
        grads = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in inputs]
        found.append([*(y.detach() for y in outs), *later, *grads])
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)


@given(runs(5), runs(4), st.booleans())
def test_slices(rows, columns, with_bias):
    weight, bias = randn(5, 4), randn(5, seed=1) if with_bias else None
    x = randn(3, 2, slices.gather(torch.zeros(4), (columns,)).numel(), seed=2)
    given_ = [t for t in (weight, bias, x) if t is not None]
    agree(slices.linear, given_, x, weight, bias, (rows, columns), (rows,) if with_bias else ())
    agree(slices.take, [weight], (weight, (rows, columns)))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_attention(batch, heads, side, many):
    q, k, v = (randn(2 * batch, heads, side * side, 3, seed=n) for n in range(3))
    bias = randn(*((2,) if many else ()), heads, side * side, side * side, seed=3)
    agree(attention.attention, [q, k, v], q, k, v, 0.3)
    agree(attention.attention, [q, k, v, bias], q, k, v, 0.3, bias)
    packed = randn(batch, side, 3, heads, 2)
    agree(attention.split_heads, [packed], packed)
    own = [randn(*s, seed=n) for n, s in enumerate(((heads, heads), (heads,)) * 2, 4)]
    square = randn(heads, side * side, side * side, seed=9)
    agree(attention.talking_heads, [q, k, v, square, own[0], *own[2:]], q, k, v, square, tuple(own), 0.3)


def test_attention_in_bfloat16():
    """Under autocast the kernel is as close to float64 as torch's own attention is."""
    q, k, v = (randn(4, 3, 17, 8, seed=n) for n in range(3))
    bias, found = randn(3, 17, 17, seed=3), {}
    for mode in ("exact", "plain", "fast"):
        for t in (q, k, v, bias):
            t.grad = None
        lowered = torch.autocast("cpu", torch.bfloat16, enabled=mode != "exact")
        with lowered, sf.kernels.using("plain" if mode == "exact" else mode):
            *given_, added = ((t if mode == "exact" else t.float()) for t in (q, k, v, bias))
            out = attention.attention(*given_, 0.3, added)
            assert out.dtype == (torch.float64 if mode == "exact" else torch.bfloat16)
        (out.double() * randn(*out.shape, seed=7, grad=False)).sum().backward()
        found[mode] = [out.detach().double(), *(t.grad.clone() for t in (q, k, v, bias))]
    for exact, plain, fast in zip(*found.values(), strict=True):
        off = [((t - exact).norm() / exact.norm()).item() for t in (plain, fast)]
        assert off[1] < max(0.02, 1.5 * off[0])


@pytest.mark.parametrize("units", [True, False])
def test_auto_is_bfloat16_where_there_are_units_for_it(monkeypatch, units):
    monkeypatch.setattr(sf.kernels, "multiplies_bfloat16", lambda kind: units)
    with sf.kernels.precision(torch.device("cpu"), "auto"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (torch.bfloat16 if units else torch.float32)


def norm(channels: int, training: bool, seed: int) -> convolution.Norm:
    weight, bias = randn(channels, seed=seed), randn(channels, seed=seed + 1)
    mean, var = randn(channels, seed=seed + 2, grad=False), randn(channels, seed=seed + 3, grad=False).square() + 1
    return convolution.Norm((weight, (None,)), (bias, (None,)), mean, var, training, 1e-5)


def of_two(own: convolution.Norm) -> convolution.Norm:
    """Of two processes, the other one with the same pictures: so are its sums, and what comes back from it."""
    return own._replace(training=True, join=lambda sums: 2 * sums, processes=2)


@given(st.integers(2, 6), st.sampled_from([1, 3, 5, 7]), st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_convolutions(side, size, stride, training, gates):
    x = randn(2, side, side + 1, 3)

    def fresh(channels: int, seed: int) -> convolution.Norm:
        return norm(channels, training, seed)

    agree(convolution.patches, [x], x, 2)
    own = fresh(3, 10)  # in training its statistics are set by both forms alike
    agree(convolution.norm_swish, [x, own.weight[0], own.bias[0]], x, own)
    both = of_two(own)
    agree(convolution.joined_norm, [x, own.weight[0], own.bias[0]], x, own.weight[0], own.bias[0], both)
    agree(convolution.norm_swish, [x, own.weight[0], own.bias[0]], x, both)
    weight = randn(4, 3, 3, 3, seed=2)
    for swish in (False, True):
        last, whole = norm(4, False, 20), (weight, (None,) * 4)
        agree(convolution.conv_norm, [x, weight, last.weight[0], last.bias[0]], x, whole, last, stride, swish)
    weights, inputs = residual(size, stride, gates, training)
    agree(inverted.inverted_residual, [x, *inputs], x, weights, shortcut(stride))
    agree(inverted.inverted_residual, [x, *inputs], x, joined(weights, *[of_two] * 3), shortcut(stride))


def residual(size: int, stride: int, gates: bool, training: bool) -> tuple[inverted.Inverted, list[torch.Tensor]]:
    """The weights of an inverted residual, and all that get a gradient."""
    wide, narrow = randn(5, 3, 1, 1, seed=3), randn(4, 5, 1, 1, seed=4)
    deep, norms = randn(5, 1, size, size, seed=5), [norm(n, training, 30 + 5 * n) for n in (5, 5, 4)]
    excite = [randn(2, 5, seed=6), randn(2, seed=7), randn(5, 2, seed=8), randn(5, seed=9)] if gates else []
    weights = inverted.Inverted(
        ((wide, (None,) * 4), norms[0]),
        ((deep, (None,) * 4), norms[1]),
        tuple((t, (None,) * t.ndim) for t in excite),
        ((narrow, (None,) * 4), norms[2]),
        stride,
    )
    return weights, [wide, deep, narrow, *excite, *(t for n in norms for t in (n.weight[0], n.bias[0]))]


def joined(weights: inverted.Inverted, *others) -> inverted.Inverted:
    """The same, each norm changed by one of these."""
    expand, wide, point = ((w, other(n)) for other, (w, n) in zip(others, (weights[0], *weights[1::2]), strict=True))
    return weights._replace(expand=expand, wide=wide, point=point)


def shortcut(stride: int):
    return lambda x: x[:, ::stride, ::stride, :1]


@given(st.integers(2, 5), st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.booleans())
def test_two_processes_with_half_of_the_pictures_are_one_with_all(side, size, stride, gates):
    """Threads play the processes; each has its own weights, whose gradients add up."""
    x, barrier, sent = randn(4, side, side + 1, 3, grad=False), threading.Barrier(2), {}

    def part(k: int | None) -> list[torch.Tensor]:
        def join(sums: torch.Tensor) -> torch.Tensor:
            sent[k] = sums
            barrier.wait(60)
            total = sent[0] + sent[1]
            barrier.wait(60)
            return total

        weights, inputs = residual(size, stride, gates, True)
        if k is not None:
            weights = joined(weights, *[lambda n: n._replace(join=join, processes=2)] * 3)
        here = slice(None) if k is None else slice(2 * k, 2 * k + 2)
        own = x[here].clone().requires_grad_()
        out = inverted.inverted_residual(own, weights, shortcut(stride))
        (out * randn(4, *out.shape[1:], seed=7, grad=False)[here]).sum().backward()
        norms = [n for _, n in (weights.expand, weights.wide, weights.point)]
        return [out.detach(), own.grad, *(t for n in norms for t in (n.mean, n.var)), *(t.grad for t in inputs)]

    with sf.kernels.using("fast"), ThreadPoolExecutor(2) as pool:
        whole, (first, second) = part(None), pool.map(part, range(2))
    for k, (one, a, b) in enumerate(zip(whole, first, second, strict=True)):
        both = torch.cat([a, b]) if k < 2 else a if k < 8 else a + b
        torch.testing.assert_close(both, one, rtol=1e-8, atol=1e-10)


def test_sub_networks_in_step():
    space = sf.space("vitas-block")
    net, x = sf.supernet(space, 5).double().train(), randn(4, 3, 224, 224, grad=False)
    archs = [space.smallest(), space.smallest(), *space.sample(2)]
    plans = [net.plan(a, (224, 224)) for a in archs]
    tokens = [net.embed(part, at).detach().requires_grad_() for part, at in zip(x.split(1), plans, strict=True)]
    agree(lockstep.run_together, tokens, tokens, plans, net)


def test_every_kernel_was_compared():
    test_slices()
    test_attention()
    test_convolutions()
    test_sub_networks_in_step()
    assert set(KERNELS) == SEEN


def test_the_switch():
    assert sf.kernels.mode() == "auto"
    with sf.kernels.using("plain"):
        assert sf.kernels.mode() == "plain"
        with sf.kernels.using("fast", "attention"):
            assert (KERNELS["attention"].mode, sf.kernels.mode()) == ("fast", "plain")
        assert KERNELS["attention"].mode is None
    assert sf.kernels.mode() == "auto"
    with pytest.raises(ValueError, match="auto, plain, fast"):
        sf.kernels.use("quick")
    program = "import superformer as sf; print(sf.kernels.mode())"
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env={"SUPERFORMER_KERNELS": "plain"})
    assert said.stdout.strip() == "plain"


def test_auto_is_plain_off_the_cpu_and_in_a_trace(monkeypatch):
    calls = []
    attend = KERNELS["attention"]
    monkeypatch.setattr(attend, "fast", lambda *args: calls.append("fast") or args[0])
    monkeypatch.setattr(attend, "plain", lambda *args: calls.append("plain") or args[0])
    q = randn(1, 1, 2, 2).float()
    attend(q, q, q, 1.0)
    other = torch.empty(1, 1, 2, 2, device="meta", requires_grad=True)
    attend(other, other, other, 1.0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    attend(q, q, q, 1.0)
    assert calls == ["fast", "plain", "plain"]
