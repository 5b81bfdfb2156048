"""What exists for speed only. Each kernel stands beside its *plain twin*: a few lines of ordinary torch that say what
is computed, with the same arguments and the same result up to rounding.

One switch chooses between the two: ``superformer.kernels.use("plain")``, ``with superformer.kernels.using("fast"):``,
or the environment variable ``SUPERFORMER_KERNELS``.

* ``auto`` (the default): the kernel on a CPU, where it was measured to be faster; the plain twin on every other device,
  under ``torch.compile`` and export, and where a mode of torch watches the operations.
* ``plain``: the twin everywhere.
* ``fast``: the kernel wherever it is able to run, also on sizes for which it is not worth it.

This room knows nothing of the others: kernels take tensors. ``python benchmarks/kernels.py`` measures what each is
worth."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from superformer.errors import SuperformerError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MODES = ("auto", "plain", "fast")
VARIABLE = "SUPERFORMER_KERNELS"


def _checked(mode: str) -> str:
    if mode not in MODES:
        raise ValueError(f"kernels are {', '.join(MODES)}, not {mode!r}")
    return mode


_mode = _checked(os.environ.get(VARIABLE) or "auto")
_elsewhere = False
_forget: list[Callable[[], object]] = []
"""What gives back memory that is kept."""
KERNELS: dict[str, Kernel[..., Any]] = {}
"""All of them, by name."""


def mode() -> str:
    """What is switched on."""
    return _mode


def use(mode: str) -> None:
    """Switch to ``auto``, ``plain`` or ``fast``."""
    global _mode
    _mode = _checked(mode)


@contextmanager
def using(mode: str, *names: str) -> Iterator[None]:
    """The same for a while; with ``names`` of kernels, for these alone."""
    before, own = _mode, {name: KERNELS[name].mode for name in names}
    if names:
        for name in names:
            KERNELS[name].mode = _checked(mode)
    else:
        use(mode)
    try:
        yield
    finally:
        use(before)
        for name, old in own.items():
            KERNELS[name].mode = old


def on_cpu(x: Tensor) -> bool:
    """Whether this runs on a CPU, operation by operation: what is cut to fit its caches is cut there only."""
    return x.device.type == "cpu" and not _elsewhere and not torch.compiler.is_compiling()


@contextmanager
def rehearsing(elsewhere: bool) -> Iterator[None]:
    """For work on tensors without numbers: no memory of theirs is kept for others. ``elsewhere``: as on another device,
    whatever the tensors say."""
    global _elsewhere
    before, _elsewhere = _elsewhere, elsewhere
    forget()
    try:
        with using("plain") if elsewhere else nullcontext():
            yield
    finally:
        _elsewhere = before
        forget()


def forget() -> None:
    """Give back all memory that is kept to be used again."""
    for clear in _forget:
        clear()


def mixed(x: Tensor) -> bool:
    """Whether operations choose their precision themselves (autocast), which kernels would not."""
    return torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type)


def lowered(x: Tensor, *more: Tensor | None) -> list[Any]:
    """Tensors in the precision that operations choose themselves, if they do."""
    tensors = (x, *more)
    if not mixed(x):
        return list(tensors)
    dtype = torch.get_autocast_dtype(x.device.type)
    return [None if t is None else t.to(dtype) for t in tensors]


class Kernel(Generic[P, R]):
    """A fast function and its plain twin. ``able``: when the fast one can run at all; ``worth``: when it was measured
    to be faster, on a CPU."""

    def __init__(
        self,
        fast: Callable[P, R],
        plain: Callable[P, R],
        able: Callable[P, bool] | None,
        worth: Callable[P, bool] | None,
        amp: bool,
    ):
        self.fast, self.plain, self.able, self.worth, self.amp = fast, plain, able, worth, amp
        self.mode: str | None = None
        self.__doc__, self.__name__ = fast.__doc__, fast.__name__
        KERNELS[self.__name__] = self

    def __call__(self, *args: P.args, **words: P.kwargs) -> R:
        mode = self.mode or _mode
        first: Any = args[0]
        x: Tensor = first if isinstance(first, Tensor) else first[0]
        if (
            mode == "plain"
            or torch.compiler.is_compiling()
            or torch._C._is_torch_function_mode_enabled()
            or (mode == "auto" and x.device.type != "cpu")
            or (not self.amp and mixed(x))
            or (self.able is not None and not self.able(*args, **words))
            or (mode == "auto" and self.worth is not None and not self.worth(*args, **words))
        ):
            return self.plain(*args, **words)
        return self.fast(*args, **words)


def kernel(
    plain: Callable[P, R],
    able: Callable[P, bool] | None = None,
    worth: Callable[P, bool] | None = None,
    amp: bool = False,
) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a function a kernel beside its plain twin. ``amp``: it takes care of mixed precision itself."""
    return lambda fast: Kernel(fast, plain, able, worth, amp)


def tracked(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow that some of these tensors take part in."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def no_second_derivative() -> None:
    """What torch's ``once_differentiable`` does, at a fraction of its price."""
    if torch.is_grad_enabled():
        raise RuntimeError("kernels have no second derivatives: call backward() without create_graph=True")


# --- memory that is used again, and batches in parts that stay in the cache ---


class Scratch:
    """Memory for what its owner needs only while it runs: each thread has its own, as large as was ever asked for."""

    def __init__(self) -> None:
        self._own = threading.local()
        _forget.append(lambda: self._own.__dict__.clear())

    def __call__(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape that holds anything. The next call on the same thread gets the same memory."""
        pool: dict[tuple[object, ...], Tensor] = self._own.__dict__.setdefault("pool", {})
        key, size = (like.dtype, like.device), math.prod(shape)
        found = pool.get(key)
        if found is None or found.numel() < size:
            with torch.inference_mode(False):  # usable in any mode
                pool[key] = found = torch.empty(size, dtype=like.dtype, device=like.device)
        return found[:size].view(*shape)


def parts(batch: int, few: int) -> list[slice]:
    """A batch in parts of so few that what is computed for one stays in the cache."""
    return [slice(start, start + few) for start in range(0, batch, few)]


def together(computed: Iterator[Tensor], batch: int) -> Tensor:
    """Parts of a batch as one tensor, each put there as soon as it is computed."""
    part = next(computed)
    if part.shape[0] == batch:
        return part
    out, start = part.new_empty(batch, *part.shape[1:]), 0
    for each in itertools.chain([part], computed):
        out[start : start + each.shape[0]] = each
        start += each.shape[0]
    return out


def remembered(make: Callable[..., T]) -> Callable[..., T]:
    """Tensors made once for the same arguments, but not in a trace (export, compilation), whose tensors must not be
    kept."""
    kept = functools.lru_cache(maxsize=64)(make)
    _forget.append(kept.cache_clear)

    @functools.wraps(make)
    def wrapper(*args: Any) -> T:
        if torch.compiler.is_compiling():
            return make(*args)
        with torch.inference_mode(False):
            return kept(*args)

    return wrapper


# --- devices ---

NO_ACCELERATOR = ("cpu", "meta")
HIGH = "SUPERFORMER_TF32"
"""Set to 0, accelerators multiply float32 with all its bits."""


@functools.cache
def _fast_products() -> None:
    """Products of float32 as TF32 where the device has it, as torch did by itself when the papers' networks were
    trained: several times as fast, with the range of float32 and 10 bits of fraction."""
    if os.environ.get(HIGH, "1") != "0":
        torch.set_float32_matmul_precision("high")


def precision(device: torch.device, name: str) -> AbstractContextManager[Any]:
    """Operations in bfloat16 or float16 where that is safe (autocast); ``off``: as the tensors are; ``auto``: bfloat16
    where the device multiplies it faster. On an accelerator products of float32 are TF32's from then on."""
    if device.type not in NO_ACCELERATOR:
        _fast_products()
    if name == "auto":
        name = "bfloat16" if multiplies_bfloat16(device.type) else "off"
    return nullcontext() if name == "off" else torch.autocast(device.type, getattr(torch, name))


@functools.cache
def multiplies_bfloat16(kind: str) -> bool:
    """Whether a kind of device multiplies matrices of bfloat16 faster: of processors those with tiles (AMX) and those
    with its dot products (AVX512-BF16)."""
    if kind == "cpu":
        return any(getattr(torch.cpu, f"_is_{unit}_supported", bool)() for unit in ("amx_tile", "avx512_bf16"))
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "xpu"


def faster_in_bfloat16(device: torch.device) -> bool:
    """What ``auto`` goes by, on a device."""
    return multiplies_bfloat16(device.type)


def accelerated(device: torch.device) -> bool:
    """Whether it is another one than the processor."""
    return device.type != "cpu"


def counting(device: torch.device) -> torch.dtype:
    """What counts of pictures are held in: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def finished(x: Tensor) -> None:
    """Wait until everything that was started on the device of ``x`` is done."""
    if x.device.type not in NO_ACCELERATOR:
        torch.accelerator.synchronize(x.device)


def timer(device: torch.device, clock: Callable[[], float]) -> Callable[[Callable[[], object]], float]:
    """What tells the seconds that work takes on a device: by its own events, or on a processor by a clock."""
    if device.type in NO_ACCELERATOR:

        def by_clock(work: Callable[[], object]) -> float:
            before = clock()
            work()
            return clock() - before

        return by_clock
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))

    def by_events(work: Callable[[], object]) -> float:
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return by_events


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """The same as compiled code, where its gradients are wanted: made at the first call, and for other sizes again."""
    made = torch.compile(function, dynamic=False)

    def run(*args: Any, **words: Any) -> T:
        if words or not torch.is_grad_enabled():
            return function(*args, **words)
        try:
            return made(*args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            why = "is there a C++ compiler, or on an accelerator Triton?"
            raise SuperformerError(
                f"torch.compile does not work here ({why}): set train.compile=false. {error}"
            ) from error

    return run


class Arriving:
    """Tensors that are copied to an accelerator while it computes: from pinned memory, on a stream of their own. Where
    there is none such, nothing is copied before it is used."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device):
        self.tensors, self.event = tensors, None
        if device.type in STREAMS:
            with _copying(device) as stream:
                self.tensors = {k: t.pin_memory().to(device, non_blocking=True) for k, t in tensors.items()}
                self.event = stream.record_event()

    def wait(self) -> None:
        """What is started from now on, on the device, begins after they have arrived; nobody else waits."""
        if self.event is not None:
            own = torch.accelerator.current_stream()
            own.wait_event(self.event)
            for tensor in self.tensors.values():
                tensor.record_stream(own)


STREAMS = ("cuda", "xpu")
"""Kinds of devices that copy while they compute."""


@functools.cache
def _copying(device: torch.device) -> torch.Stream:
    return torch.Stream(device)


def device_name(device: str | torch.device) -> str | None:
    """What the maker calls an accelerator; None for the CPU."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None


# --- the allocator ---

OFF = "SUPERFORMER_RETURN_MEMORY"
"""Set to 1, it leaves the allocator as it is."""
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h


@functools.cache
def keep_freed() -> bool:
    """From now on this process keeps the memory it frees for the next step; whether the C library can (glibc can).

    The price: the process holds the most memory that it ever needed at once. Commands call it, building a network does
    not.
    """
    if os.environ.get(OFF, "0") not in ("", "0"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
