"""A trained model of another task as ONNX, with a proof: ONNX Runtime reads what was written, and must find the same.

Segmentation goes the way of all networks here. Detectors go through torchvision's own export, which traces what they
do with boxes; RetinaNet and Mask R-CNN are those it is made for."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from superformer import files
from superformer.cost.runtimes import INPUT, as_onnx
from superformer.errors import VERSION, StoppedError, SuperformerError, nearest
from superformer.interop.export import Proof, proof_of, require, write_proved
from superformer.transfer.evaluation import some
from superformer.transfer.examples import load
from superformer.transfer.folder import TransferRun
from superformer.transfer.heads.detection import Detector, traceable
from superformer.transfer.model import load_model
from superformer.transfer.settings import Transfer
from superformer.transfer.task import TaskData

FILE, STEP, SHOWN, OPSET = "model.onnx", 32, 3, 17
BOXES, SCORES = 0.05, 1e-3
"""The largest difference of a box (in pixels) and of a score, or of a mask's probability, that passes."""
FORMATS = ("onnx",)


def export(folder: str | Path, to: str, out: Path, console: Console | None = None) -> Proof:
    """Write the model of a transfer for another tool, and prove that it works there."""
    if to not in FORMATS:
        raise SuperformerError(f"a transfer can be exported to ONNX, not to {to}: {nearest(to, FORMATS)}")
    require("onnx", "onnx", "onnxscript", "onnxruntime")
    run = TransferRun.open(folder)
    settings, facts = run.settings(), run.facts()
    if settings.task == "vqa":
        raise SuperformerError("question answering is not exported yet: detect, instance, segment and classify are")
    data = load(settings.task, facts["data"], settings.data)
    model, pictures = load_model(run, data), squares(data, settings)
    about: dict[str, Any] = {"task": settings.task, "head": settings.head_used, "classes": list(data.classes)}
    about |= {"mean": list(settings.data.mean), "std": list(settings.data.std), "input_size": list(pictures.shape[1:])}
    if settings.task == "segment":
        return _segmentation(model, pictures, about, out, console)
    return _detector(model, pictures, about, out, console)


def squares(data: TaskData, settings: Transfer) -> Tensor:
    """Some test pictures in the upper left corner of squares, (n, 3, side, side); the rest is 0, as in padding."""
    split = some(data.test, SHOWN, seed=1)
    own = [split.example(k).picture for k in range(len(split))]
    side = -(-(settings.data.of(settings.task).size or 512) // STEP) * STEP
    out = torch.zeros(len(own), 3, side, side)
    for row, picture in zip(out, own, strict=True):
        cut = picture[:, :side, :side]
        row[:, : cut.shape[1], : cut.shape[2]] = cut
    return out


def _session(folder: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])


def _segmentation(
    model: nn.Module, pictures: Tensor, about: dict[str, Any], out: Path, console: Console | None
) -> Proof:
    """Logits of pixels, for any number of pictures of one size."""

    def write(partial: Path) -> str:
        with torch.no_grad():
            program = as_onnx(model, pictures[:2] if len(pictures) > 1 else pictures.repeat(2, 1, 1, 1), any_batch=True)
        program.model.producer_name, program.model.producer_version = "superformer", VERSION
        told = program.model.metadata_props
        told |= {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
        files.write_by(partial / FILE, lambda path: program.save(path))
        return ""

    def prove(partial: Path) -> Proof:
        session, batches = _session(partial), [pictures[:1], pictures]
        with torch.no_grad():
            ours = [model(x).float().numpy() for x in batches]
        theirs = [session.run(None, {INPUT: x.numpy()})[0] for x in batches]
        proof = proof_of(ours, theirs, "superformer and ONNX Runtime, logits of pixels")
        return replace(proof, kind="test")

    return write_proved(out, "onnx", write, prove, console)


class _Detections(nn.Module):
    """What a detector finds in one picture, (3, height, width): boxes, labels, scores and perhaps masks."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, picture: Tensor) -> tuple[Tensor, ...]:
        found = self.model.predict([picture], [{}])[0]  # type: ignore[operator]
        return tuple(found[name] for name in ("boxes", "labels", "scores", "masks") if name in found)


def _detector(model: nn.Module, pictures: Tensor, about: dict[str, Any], out: Path, console: Console | None) -> Proof:
    """Boxes, labels, scores and perhaps masks of one picture."""
    height, width = (int(n) for n in pictures.shape[-2:])
    net, traced = (_Detections(m).eval() for m in (model, traceable(cast(Detector, model), (height, width))))
    with torch.no_grad():
        ours = [[y.numpy() for y in net(x)] for x in pictures]
    names = ["boxes", "labels", "scores", "masks"][: len(ours[0])]

    def write(partial: Path) -> str:
        import onnx

        def save(path: Path) -> None:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's tracer tells of every number that it takes for fixed
                axes = {name: {0: "found"} for name in names}
                torch.onnx.export(
                    traced, (pictures[0],), str(path), dynamo=False, opset_version=OPSET, input_names=[INPUT],
                    output_names=names, dynamic_axes=axes,
                )  # fmt: skip
            made = onnx.load(str(path))
            made.producer_name, made.producer_version = "superformer", VERSION
            onnx.helper.set_model_props(made, {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()})
            onnx.save(made, str(path))

        files.write_by(partial / FILE, save)
        return ""

    def prove(partial: Path) -> Proof:
        session = _session(partial)
        theirs = [session.run(None, {INPUT: x.numpy()}) for x in pictures]
        return same_detections(ours, theirs, names)

    return write_proved(out, "onnx", write, prove, console)


def same_detections(ours: list[list[Any]], theirs: list[list[Any]], names: list[str]) -> Proof:
    """The proof, or an error if other objects are found."""
    what, worst, found = "superformer and ONNX Runtime", 0.0, 0
    for one, other in zip(ours, theirs, strict=True):
        if [a.shape for a in one] != [b.shape for b in other] or not np.array_equal(one[1], other[1]):
            raise StoppedError(f"{what}: {len(one[1])} and {len(other[1])} objects, or others; nothing was exported")
        found += len(one[1])
        for name, a, b in zip(names, one, other, strict=True):
            difference = float(np.abs(a.astype(np.float64) - b).max(initial=0.0))
            if difference > (BOXES if name == "boxes" else SCORES):
                raise StoppedError(f"{what}: {name} differ by up to {difference:.2g}; nothing was exported")
            worst = max(worst, difference if name == "scores" else 0.0)
    note = f"{found} objects were compared; boxes agree to {BOXES} pixels"
    note = note if found else "in none of them anything was found: the proof says little"
    return Proof((), worst, len(ours), what, note, "a score", "test")
