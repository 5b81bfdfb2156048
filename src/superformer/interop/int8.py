"""Networks in 8 bits, by ONNX Runtime's own quantisation, beside the networks they were made from.

Weights have a scale for each channel, and 7 of the 8 bits are used: processors without VNNI add up products in 16 bits,
which 8 bits would overflow. Layer norms, softmax, GELU and the products of attention stay in float.

``dynamic`` (the default) finds the scale of each input while the network runs, of linear layers only. ``static`` finds
it beforehand, on training pictures, of convolutions too, and writes it into the graph (QDQ). On a processor without
VNNI dynamic was faster than static in all four networks that were measured, and faster than float in the transformer of
224 pixels only to speak of; accuracies could not be told apart (docs/exporting.md)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from rich.console import Console

from superformer import data, files
from superformer.cost.latency import times_in_turn
from superformer.cost.runtimes import INPUT, session_options
from superformer.errors import StoppedError, SuperformerError, nearest
from superformer.interop.export import Floats, require
from superformer.interop.onnx import FILE
from superformer.machine import machine
from superformer.progress import doing
from superformer.runs import Run, stored
from superformer.runs.storage import StoredNetwork
from superformer.settings import INT8

TABLE, INT8_FILE = "int8.json", "model.int8.onnx"
CALIBRATED, AT_ONCE, BATCH = 256, 32, 64
"""Training pictures that scales are found on, so many at once; test pictures at once."""
LINEAR, ALL = ["MatMul", "Gemm"], ["MatMul", "Gemm", "Conv"]
"""What is quantised: convolutions only where scales are known beforehand (dynamic ones are slower than float)."""

Row = dict[str, Any]


def check(how: str) -> None:
    """Refuse what cannot be done, before anything is computed."""
    if how not in INT8:
        raise SuperformerError(f"unknown quantisation {how!r}: {nearest(how, INT8)}")
    require("onnx", "onnx", "onnxscript", "onnxruntime")


def quantise(source: Path, out: Path, how: str, batches: Sequence[Floats]) -> None:
    """Write the ONNX file of a network in 8 bits. ``batches``: pictures that ``static`` finds scales on."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    check(how)
    kinds = quantization.QuantType
    common: dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": kinds.QInt8}
    common["extra_options"] = {"MatMulConstBOnly": True}  # the products of attention stay in float
    with tempfile.TemporaryDirectory() as folder, _quiet():
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        graph = onnx.load(prepared)
        del graph.graph.value_info[:]  # of before: quantising turns some weights round
        onnx.save(graph, prepared)

        def write(partial: Path) -> None:
            if how == "static":
                common.update(activation_type=kinds.QUInt8, quant_format=quantization.QuantFormat.QDQ)
                reader = _reader(quantization, batches)
                quantization.quantize_static(str(prepared), str(partial), reader, op_types_to_quantize=ALL, **common)
            else:
                quantization.quantize_dynamic(str(prepared), str(partial), op_types_to_quantize=LINEAR, **common)
            made, original = onnx.load(partial), onnx.load(source, load_external_data=False)
            told = {entry.key: entry.value for entry in original.metadata_props} | {"int8": how}
            del made.metadata_props[:]
            onnx.helper.set_model_props(made, told)
            onnx.save(made, partial)

        files.write_by(out, write)


def _reader(quantization: ModuleType, batches: Sequence[Floats]) -> Any:
    waiting = iter(batches)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, Floats] | None:
            x = next(waiting, None)
            return None if x is None else {INPUT: x}

    return Reader()


@contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's quantiser advises by warnings what is done here already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def add_int8(
    run: Run, network: StoredNetwork, folder: Path, name: str, how: str = INT8[0], *, threads: int = 1,
    seconds: float = 1.0, console: Console | None = None,
) -> Row:  # fmt: skip
    """Quantise the ONNX export in a folder, beside it, and compare the two: accuracy on the test pictures, time of one
    picture, size. Scales are found on training pictures. The row is also in the run's ``int8.json``."""
    check(how)
    recipe, size = run.recipe(), network.net.space.smallest().resolution
    pictures = data.load(run.facts()["data"], recipe.data, size)
    run.require_pictures(pictures.fingerprint)
    paths = [folder / FILE, folder / INT8_FILE]
    with doing(console, f"quantising {name} ({how})"):
        chosen = pictures.train.subset(min(CALIBRATED, len(pictures.train)), recipe.seed)
        batches = [x.numpy() for x, _ in data.eval_batches(chosen, recipe.data, size, AT_ONCE)]
        quantise(paths[0], paths[1], how, batches if how == "static" else ())
    with doing(console, f"judging {name} on the test pictures, before and after"):
        sessions = [_session(path, threads) for path in paths]
        right, agreed, count = np.zeros(2), 0, 0
        for x, labels in data.eval_batches(pictures.test(), recipe.data, size, BATCH):
            logits = [session.run(None, {INPUT: x.numpy()})[0] for session in sessions]
            if not np.isfinite(logits[1]).all():
                paths[1].unlink(missing_ok=True)
                raise StoppedError(f"{name} in 8 bits ({how}) gives logits that are not finite; {paths[1]} was removed")
            classes = [own.argmax(1) for own in logits]
            right += [float((own == labels.numpy()).sum()) for own in classes]
            agreed, count = agreed + int((classes[0] == classes[1]).sum()), count + len(labels)
    with doing(console, f"measuring {name}, before and after"):
        feed = {INPUT: batches[0][:1]}
        runs = [lambda s=session: s.run(None, feed) for session in sessions]
        times = [np.quantile(own, (0.5, 0.9)).tolist() for own in times_in_turn(runs, 2 * seconds)]
    row: Row = {"name": name, "key": network.net.space.smallest().key, "how": how, "threads": threads}
    row |= {"machine": machine(runtime="onnx"), "pictures": count, "agreed": agreed / max(count, 1)}
    for prefix, k in (("", 0), ("int8_", 1)):
        row |= {f"{prefix}accuracy": right[k] / max(count, 1), f"{prefix}median": times[k][0]}
        row |= {f"{prefix}p90": times[k][1], f"{prefix}size": paths[k].stat().st_size}
    path = run.folder / TABLE
    this = (name, row["key"], how)
    known = [r for r in stored.read(path).get("rows", []) if (r.get("name"), r["key"], r["how"]) != this]
    files.write_object(path, {"rows": [*known, row]})
    return row


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, session_options(threads), providers=["CPUExecutionProvider"])
