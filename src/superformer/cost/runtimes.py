"""What runs networks: torch as it is, torch.compile, ONNX Runtime. Each gives functions that run a network once on
given pictures."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import keyword
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families.network import Network

INPUT, OUTPUT = "pixel_values", "logits"
"""Of an ONNX graph."""
Size = int | tuple[int, int]
Run = Callable[[], object]


def home(model: nn.Module) -> torch.device:
    """Where a model is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def measuring_device(asked: str | None, own: torch.device, runtime: str) -> str:
    """Where networks are measured: on the device that was ``asked`` for, else where they run; ONNX Runtime is the
    CPU's. Of several devices of a kind each process has its own, so only the kind is told."""
    if asked is None:
        return "cpu" if runtime == "onnx" else str(own).partition(":")[0]
    try:
        device = torch.device(asked)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise SuperformerError(f"device={asked} cannot be used here ({why}): use device=cpu") from error
    if runtime == "onnx" and device != torch.device("cpu"):
        raise SuperformerError(f"runtime=onnx measures on the CPU, not on {asked}: use runtime=eager or device=cpu")
    return str(device)


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
def runners(
    model: nn.Module, given: Sequence[Tensor], device: torch.device, runtime: str, threads: int
) -> Iterator[list[Run]]:
    """A function for each of the given batches, which returns the model's output for it. The model stays as and where
    it is: on another device a copy runs."""
    model = model if home(model) == device else copy.deepcopy(model).to(device)
    with evaluating(model):
        if runtime == "onnx":
            yield _onnx(model, given, threads)
        elif runtime == "compiled":
            yield [_torch(_compiled(model, x), x, torch.no_grad) for x in given]
        else:
            yield [_torch(model, x, torch.inference_mode) for x in given]


def _torch(model: Callable[[Tensor], object], x: Tensor, mode: Callable[[], Any]) -> Run:
    def run() -> object:
        with mode():
            return model(x)

    return run


def _compiled(model: nn.Module, x: Tensor) -> Callable[[Tensor], object]:
    """Exported first, so that it has code of its own: many networks of one class would count as one that changes all
    the time."""
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
    """One session for all batches (as fast as one for each), as `superformer.interop` writes it."""
    ort, options = onnxruntime(), session_options(threads)
    largest = max(given, key=len).cpu()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = str(Path(folder) / "model.onnx")
        as_onnx(model, largest, any_batch=len(given) > 1).save(file)
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feeds = [{session.get_inputs()[0].name: x.cpu().numpy()} for x in given]
    return [lambda feed=feed: session.run(None, feed)[0] for feed in feeds]  # type: ignore[misc]


def session_options(threads: int) -> Any:
    """Of a session of ONNX Runtime that is measured."""
    options = onnxruntime().SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or its threads disturb what comes next
    return options


# --- a network as torch traces it, and as ONNX: for measuring, and for export ---


def traced(model: nn.Module, *inputs: Tensor, any_batch: bool = False) -> torch.export.ExportedProgram:
    """What a model computes for inputs like these; with ``any_batch``, for any number of pictures."""
    shapes = ({0: torch.export.Dim("batch")},) * len(inputs) if any_batch else None
    with _quiet():
        program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    for spec in program.graph_signature.input_specs:
        words = (spec.target or "").split(".")
        if any(map(keyword.iskeyword, words)):  # torch writes them into Python source
            safe = ".".join(f"{word}_" if keyword.iskeyword(word) else word for word in words)
            program.state_dict[safe] = program.state_dict.pop(spec.target)
            spec.target = safe
    return program


def as_onnx(
    model: nn.Module, *inputs: Tensor, any_batch: bool = False, names: Sequence[str] = (INPUT,)
) -> torch.onnx.ONNXProgram:
    """A model as ONNX, without the places in its source that torch notes at every operation. ``names``: of its
    inputs."""
    exported, shapes = traced(model, *inputs, any_batch=any_batch), ({0: "batch"},) * len(inputs) if any_batch else None
    with _quiet():
        program = torch.onnx.export(
            exported, input_names=list(names), output_names=[OUTPUT], dynamic_shapes=shapes, dynamo=True, verbose=False
        )
    assert program is not None
    functions = program.model.functions.values()
    for node in itertools.chain(program.model.graph.all_nodes(), *(f.all_nodes() for f in functions)):
        node.metadata_props.clear()
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns of its own future and logs what it could not fold."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def onnxruntime() -> ModuleType:
    """The package, or an error that says how to get it."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(
            f"measuring with ONNX Runtime needs {', '.join(missing)}, not installed here: "
            "pip install 'superformer[onnx]', or use the runtime eager"
        )
    return importlib.import_module("onnxruntime")
