"""A trained model of another task as ONNX, with a proof: ONNX Runtime reads what was written, and must find the same.

Segmentation and question answering go the way of all networks here. Detectors go through torchvision's own export,
which traces what they do with boxes; RetinaNet and Mask R-CNN are those it is made for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
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
from superformer.interop import huggingface
from superformer.interop.export import Proof, proof_of, require, write_proved
from superformer.transfer import huggingface as pixels
from superformer.transfer.evaluation import some
from superformer.transfer.examples import load
from superformer.transfer.folder import TransferRun
from superformer.transfer.heads.detection import Detector, traceable
from superformer.transfer.heads.segmentation import Segmenter
from superformer.transfer.model import load_model
from superformer.transfer.settings import Transfer
from superformer.transfer.task import TaskData

FILE, STEP, SHOWN, OPSET, QUESTION = "model.onnx", 32, 3, 17, "question"
BOXES, SCORES = 0.05, 1e-3
"""The largest difference of a box (in pixels) and of a score, or of a mask's probability, that passes."""
FORMATS = ("onnx", "hf")


def export(folder: str | Path, to: str, out: Path, console: Console | None = None) -> Proof:
    """Write the model of a transfer for another tool, and prove that it works there."""
    if to not in FORMATS:
        raise SuperformerError(
            f"a transfer can be exported to ONNX or Hugging Face, not to {to}: {nearest(to, FORMATS)}"
        )
    run = TransferRun.open(folder)
    settings, facts = run.settings(), run.facts()
    if to == "hf" and settings.task != "segment":
        raise SuperformerError(
            f"{settings.task} is exported to ONNX; to Hugging Face go segment and classify: --to onnx"
        )
    require(to, *{"onnx": ("onnx", "onnxscript", "onnxruntime"), "hf": ("transformers",)}[to])
    data = load(settings.task, facts["data"], settings.data)
    model, pictures = load_model(run, data), squares(data, settings)
    about: dict[str, Any] = {"task": settings.task, "head": settings.head_used, "classes": list(data.classes)}
    about |= {"mean": list(settings.data.mean), "std": list(settings.data.std), "input_size": list(pictures.shape[1:])}
    if to == "hf":
        return _huggingface(model, pictures, settings, facts, data.classes, out, console)
    if settings.task == "segment":
        return _pixels(model, pictures, about, out, console)
    if settings.task == "vqa":
        return _answers(model, data, about, out, console)
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

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: of every detector it warns of shapes that only a picture tells
    return onnxruntime.InferenceSession(folder / FILE, options, providers=["CPUExecutionProvider"])


def _pixels(model: nn.Module, pictures: Tensor, about: dict[str, Any], out: Path, console: Console | None) -> Proof:
    """Logits of pixels, for any number of pictures of one size."""
    return _logits(model, {INPUT: pictures}, "pixels", about, out, console)


def _huggingface(
    model: nn.Module, pictures: Tensor, settings: Transfer, facts: dict[str, Any], classes: Sequence[str], out: Path,
    console: Console | None,
) -> Proof:  # fmt: skip
    """The same for transformers; pictures of other sides, too."""
    batches = [pictures[:1], pictures, pictures[:1, :, : STEP + 5, : STEP + 9]]

    def prove(partial: Path) -> Proof:
        with torch.no_grad():
            found = [cast(Segmenter, model).predict(list(x), [{}] * len(x)) for x in batches]
            ours = [torch.stack([one["logits"] for one in some]) for some in found]
        theirs = huggingface.logits_of(partial, batches, pixels.AUTO)
        proof = proof_of([y.numpy() for y in ours], theirs, "superformer and transformers without it, logits of pixels")
        return replace(proof, kind="test")

    def write(partial: Path) -> str:
        pixels.write(model, settings, facts, list(classes), partial)
        return ""

    return write_proved(out, "hf", write, prove, console)


def _answers(model: nn.Module, data: TaskData, about: dict[str, Any], out: Path, console: Console | None) -> Proof:
    """Logits of answers to questions about pictures, any number of them; the words by number are told beside."""
    split = some(data.test, SHOWN, seed=1)
    asked = [split.example(k) for k in range(len(split))]
    pictures = torch.stack([one.picture for one in asked])
    questions = torch.stack([one.target["question"] for one in asked])
    words = list(data.about["vocabulary"])
    about |= {"vocabulary": words, "question_length": questions.shape[1], "input_size": list(pictures.shape[1:])}
    return _logits(model, {INPUT: pictures, QUESTION: questions}, "answers", about, out, console)


def _logits(
    model: nn.Module, inputs: dict[str, Tensor], of: str, about: dict[str, Any], out: Path, console: Console | None
) -> Proof:
    """What a model says of test pictures, and whatever comes with them, for any number of them."""

    def write(partial: Path) -> str:
        few = [x[:2] if len(x) > 1 else torch.cat([x, x]) for x in inputs.values()]
        with torch.no_grad():
            program = as_onnx(model, *few, any_batch=True, names=tuple(inputs))
        program.model.producer_name, program.model.producer_version = "superformer", VERSION
        told = program.model.metadata_props
        told |= {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
        files.write_by(partial / FILE, lambda path: program.save(path))
        return ""

    def prove(partial: Path) -> Proof:
        session, batches = _session(partial), [{k: x[:1] for k, x in inputs.items()}, inputs]
        with torch.no_grad():
            ours = [model(*batch.values()).float().numpy() for batch in batches]
        theirs = [session.run(None, {k: x.numpy() for k, x in batch.items()})[0] for batch in batches]
        proof = proof_of(ours, theirs, f"superformer and ONNX Runtime, logits of {of}")
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
        try:
            session = _session(partial)
            theirs = [session.run(None, {INPUT: x.numpy()}) for x in pictures]
        except Exception as problem:  # onnxruntime has no error of its own
            told = str(problem).splitlines()[0]
            raise StoppedError(f"ONNX Runtime cannot run what was written ({told}); nothing was exported") from problem
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
