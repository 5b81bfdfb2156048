"""What runs networks: torch as it is, torch.compile, ONNX Runtime. Each gives functions that run a network once on given pictures."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.export.trace import as_onnx, traced
from superformer.families.base import Network

Size = int | tuple[int, int]
Run = Callable[[], object]


def home(model: nn.Module) -> torch.device:
    """Where a model is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def pictures(model: nn.Module, img_size: Size | None, batch: int, device: torch.device) -> Tensor:
    """Noise as a model's pictures; ``img_size`` None is a stand-alone network's own input size."""
    if img_size is None:
        if not isinstance(model, Network) or model.space.size != 1:
            raise SuperformerError("img_size is needed for a model that is not a stand-alone network of superformer")
        img_size = model.space.smallest().resolution
    height, width = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    channels = model.in_chans if isinstance(model, Network) else 3
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(0)).to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode; every part is in its own mode again afterwards."""
    training = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def runners(model: nn.Module, given: Sequence[Tensor], device: torch.device, runtime: str, threads: int) -> Iterator[list[Run]]:
    """A function for each of the given batches, which returns the model's output for it. The model is as before afterwards."""
    before = home(model)
    with evaluating(model):
        model.to(device)
        try:
            if runtime == "onnx":
                yield _onnx(model, given, threads)
            elif runtime == "compiled":
                yield [_torch(_compiled(model, x), x, torch.no_grad) for x in given]
            else:
                yield [_torch(model, x, torch.inference_mode) for x in given]
        finally:
            model.to(before)


def _torch(model: Callable[[Tensor], object], x: Tensor, mode: Callable[[], Any]) -> Run:
    def run() -> object:
        with mode():
            out = model(x)
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
        return out

    return run


def _compiled(model: nn.Module, x: Tensor) -> Callable[[Tensor], object]:
    """Exported first, so that it has code of its own: many networks of one class would count as one that changes all the time."""
    with torch.no_grad():
        run: Callable[[Tensor], object] = torch.compile(traced(model, x).module(), dynamic=False)
        try:
            run(x)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise SuperformerError(
                f"torch.compile does not work here (is there a C++ compiler?): use the runtime eager or onnx. {error}"
            ) from error
    return run


def _onnx(model: nn.Module, given: Sequence[Tensor], threads: int) -> list[Run]:
    """One session for all batches (as fast as one for each), as `superformer.export` writes it."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads would disturb what is measured next
    largest = max(given, key=len).cpu()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = str(Path(folder) / "model.onnx")
        as_onnx(model, largest, any_batch=len(given) > 1).save(file)
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    feeds = [{name: x.cpu().numpy()} for x in given]
    return [lambda feed=feed: session.run(None, feed)[0] for feed in feeds]  # type: ignore[misc]


def onnxruntime() -> ModuleType:
    """The package, or an error that says how to get it."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(
            f"measuring with ONNX Runtime needs {', '.join(missing)}, not installed here: pip install 'superformer[onnx]', or use "
            "the runtime eager"
        )
    return importlib.import_module("onnxruntime")
