"""What teachers say of pictures, kept: where pictures are varied in a few ways that come again (``data.views``), each
teacher sees each of these once. Trainings with the same pictures and teachers share a folder (``loss.keep``).

A view is computed for all training pictures in their order, not as a step happens to need them: so it has the same bits
whoever computes it, and a training that was killed goes on with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from superformer import data, files
from superformer.data.batches import view_batches
from superformer.errors import SuperformerError
from superformer.files import DamagedError
from superformer.recipes.settings import Recipe
from superformer.runs.processes import World
from superformer.runs.storage import digest_tensors, read_tensors, write_tensors
from superformer.train.features import Final
from superformer.train.losses import Teacher

BATCH = 64
"""Pictures that teachers see at a time."""
NOT_SEEN = ("memory", "workers", "calibration")
"""Settings of the data that leave views as they are."""
Said = tuple[list[Tensor], list[Final]]


@dataclass
class Kept:
    """What each teacher says of views: logits, and final tokens (in half precision) if ``features``."""

    folder: Path
    teachers: Sequence[Teacher]
    features: bool
    views: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(recipe: Recipe, teachers: Sequence[Teacher], pictures: int, size: int) -> Kept | None:
        """By the settings; None where nothing is kept, or where it would be more than ``data.memory`` allows."""
        if recipe.loss.keep is None or not teachers:
            return None
        if not recipe.data.views:
            what = "loss.keep keeps what teachers say of views that come again"
            raise SuperformerError(f"{what}: set data.views=8, or loss.keep=null")
        if recipe.mix.mixup or recipe.mix.cutmix:
            what = "loss.keep does not go with mixed pictures"
            raise SuperformerError(f"{what}: set mix.mixup=0 mix.cutmix=0, or loss.keep=null")
        kept = Kept(Path(recipe.loss.keep), teachers, recipe.loss.features > 0)
        one = kept._said(torch.zeros(1, len(teachers[0].scale), size, size, device=teachers[0].scale.device))
        room = recipe.data.views * pictures * sum(t.nbytes for t in one.values())
        return kept if room <= 1e9 * recipe.data.memory else None

    def prepare(self, view: int, pictures: data.DataSet, recipe: Recipe, size: int, world: World) -> None:
        """Have a view of the training pictures ready, cut at ``size``: from memory, the folder, or the teachers."""
        if view in self.views:
            return
        path = self.folder / self._key(pictures, recipe, size) / f"view-{view}.safetensors"
        if world.first and not self._read(path, view):
            batches = view_batches(pictures.train, recipe.data, size, recipe.seed, view, BATCH)
            parts = [self._said(x.to(world.device)) for x in batches]
            files.make_folder(path.parent)
            write_tensors(path, {name: torch.cat([part[name] for part in parts]) for name in parts[0]})
        world.wait()
        if view not in self.views and not self._read(path, view):
            raise SuperformerError(f"{path} could not be read: all processes must see the folder of loss.keep")

    def say(self, batch: data.Batch) -> Said | None:
        """What teachers said of the pictures of a batch; None if these were not prepared."""
        if batch.index is None or batch.view not in self.views:
            return None
        found, rows = self.views[batch.view], batch.index.cpu()
        own = {name: tensor[rows].float().to(batch.x.device) for name, tensor in found.items()}
        logits = [own[f"{k}.logits"] for k in range(len(self.teachers))]
        finals = [Final(own[f"{k}.first"], own[f"{k}.map"]) for k in range(len(self.teachers)) if self.features]
        return logits, finals

    @torch.no_grad()
    def _said(self, x: Tensor) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for k, teacher in enumerate(self.teachers):
            if not self.features:
                out[f"{k}.logits"] = teacher(x).cpu()
                continue
            logits, final = teacher.both(x)
            out[f"{k}.logits"] = logits.cpu()
            out |= {f"{k}.first": final.first.half().cpu(), f"{k}.map": final.map.half().cpu()}
        return out

    def _read(self, path: Path, view: int) -> bool:
        """Whether a view is in the folder; one that is damaged is not."""
        try:
            self.views[view] = read_tensors(path, "delete it", sealed=True)[0]
        except DamagedError:
            return False
        return True

    def _key(self, pictures: data.DataSet, recipe: Recipe, size: int) -> str:
        """Of all that decides what is said: pictures, how they are varied, who says it."""
        varied = recipe.data.model_dump(mode="json", exclude=set(NOT_SEEN))
        said_by = [digest_tensors(teacher.state_dict()) for teacher in self.teachers]
        all_of_it = [pictures.fingerprint, varied, recipe.seed, size, said_by, self.features]
        return files.digest(json.dumps(all_of_it, sort_keys=True).encode())
