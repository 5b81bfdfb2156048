"""The settings of a transfer, with the words of recipes (`superformer.recipes.settings`), and the published ones: at
the papers' scale, and ``-laptop`` for minutes on two cores. Small classification sets have recipes of the ordinary
kind: there a transfer is a retraining (`superformer.transfer.classification`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from superformer.errors import SuperformerError, nearest, shown
from superformer.recipes import merged
from superformer.recipes.settings import OFF, Length, Optimizer, Recipe, Watch
from superformer.settings import SettingsBase, changed, load_yaml, read_key_value
from superformer.transfer.answers import AnswerSettings
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.heads.settings import HeadSettings
from superformer.transfer.task import HEADS, TASKS, TaskName

FOLDER = "recipes"
MAIN = {"classify": "accuracy", "detect": "ap", "instance": "mask_ap", "segment": "miou", "vqa": "accuracy"}
"""The figure that a model is chosen by."""


class Backbone(SettingsBase):
    """How the backbone is trained along."""

    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth")
    freeze: int = Field(
        0, ge=0, le=1000, description="stages (of a plain transformer blocks) that keep their weights, and the stem too"
    )
    norms: Literal["frozen", "trained"] = Field("trained", description="batch norms: their statistics and weights")
    layer_decay: float = Field(1.0, gt=0, le=1, description="learning rate of a layer, as a share of the next one's")
    rate: float = Field(1.0, gt=0, le=100, description="learning rate, as a multiple of the head's")
    pretrained: bool = Field(False, description="timm: with its published weights, from the network")


class Train(Length):
    epochs: float = Field(12, gt=0)
    steps: int | None = Field(None, ge=1, description="in place of epochs, where a paper counts those")
    batch_size: int = Field(16, ge=1, description="of all processes together")
    accumulate: int = Field(1, ge=1, description="parts that a batch is computed in")
    clip: float | None = Field(None, gt=0, description="largest norm of the whole gradient")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of averaged weights, for evaluation")
    amp: Annotated[Literal["off", "auto", "bfloat16", "float16"], OFF] = "off"
    compile: bool = Field(False, description="torch.compile, of the backbone: minutes first; again for each other size")
    threads: int | None = Field(None, ge=1, description="of a process; none: torch's")


class Transfer(SettingsBase):
    """Everything that a transfer depends on, but the backbone and the pictures."""

    name: str
    about: str = ""
    task: TaskName
    head_name: str | None = Field(None, description="one of the task's heads; none: the usual one")
    seed: int = Field(0, ge=0)
    data: ExampleSettings = ExampleSettings()
    backbone: Backbone = Backbone()
    head: HeadSettings = HeadSettings()
    answers: AnswerSettings = Field(AnswerSettings(), description="vqa: the cross-modal transformer")
    optimizer: Optimizer = Optimizer()
    train: Train = Train()
    watch: Watch = Watch(pictures=200)

    @property
    def head_used(self) -> str:
        return self.head_name or HEADS[self.task][0]


def names() -> list[str]:
    """The published recipes of transfers."""
    found = (resources.files(__package__) / FOLDER).iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in found if f.name.endswith(".yaml"))


def read_tree(recipe: str | Path) -> dict[str, Any]:
    """The tree of settings of a published recipe or of a file."""
    name, path = str(recipe), Path(recipe)
    if name in names():
        text = (resources.files(__package__) / FOLDER / f"{name}.yaml").read_text("utf-8")
    elif path.suffix in (".yaml", ".yml") or (len(name) < 4096 and os.path.isfile(name)):
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SuperformerError(f"the recipe {name} cannot be read: {error}") from error
    else:
        raise SuperformerError(f"unknown recipe {shown(name)}, and no file of that name: {nearest(name, names())}")
    tree = load_yaml(text, f"the recipe {name}")
    if not isinstance(tree, dict):
        raise SuperformerError(f"the recipe {name} must be a tree of settings, not {shown(tree)}")
    return tree


def asked_for(task: str | None, head: str | None, recipe: str | Path | None) -> tuple[TaskName, str, dict[str, Any]]:
    """The task, the head and the tree of settings that words mean; a recipe says what is not said."""
    if task is not None and task not in TASKS:
        raise SuperformerError(f"unknown task {task!r}: {nearest(task, TASKS)}")
    of = next((one for one in TASKS if head in HEADS[one]), None)
    if task is None and recipe is None:
        if head is None:
            raise SuperformerError(f"what is the network to do? --task takes {', '.join(TASKS)}")
        if of is None:
            known = [one for own in HEADS.values() for one in own]
            raise SuperformerError(f"unknown head {head!r}: {nearest(head, known)}")
        task = of
    tree = read_tree(recipe if recipe is not None else f"{task}-laptop")
    own = tree.get("task", "classify")
    task = own if task is None else task
    if own != task or task not in TASKS:
        raise SuperformerError(f"the recipe {tree.get('name')} is for --task {own}, not for {task}")
    head = head or tree.get("head_name") or HEADS[task][0]
    if head not in HEADS[task]:
        how = nearest(head, HEADS[task]) if of is None else f"it is a head of --task {of}"
        raise SuperformerError(f"unknown head {head!r} for --task {task}: {how}")
    return task, head, tree


def resolve(
    task: str | None, head: str | None = None, recipe: str | Path | None = None, changes: Iterable[str] = (),
    usual: Mapping[str, Any] | None = None,
) -> Transfer:  # fmt: skip
    """The settings of a transfer; ``usual``: what holds where neither the recipe nor a word says anything."""
    _, own, tree = asked_for(task, head, recipe)
    return from_tree(merged(usual or {}, {**tree, "head_name": own}), changes)


def from_tree(tree: dict[str, Any], changes: Iterable[str]) -> Transfer:
    words = [read_key_value(change) for change in changes]
    return Transfer.read(changed(tree, words, Transfer), str(tree.get("name")))


def recipe_tree(recipe: str | Path | None, changes: Iterable[str]) -> dict[str, Any]:
    """The same for classification: a recipe of the ordinary kind, but for the space, which is the network's own."""
    _, _, tree = asked_for("classify", None, recipe)
    tree = {k: v for k, v in tree.items() if k not in ("task", "head_name")}
    return changed(tree, [read_key_value(change) for change in changes], Recipe)


def dump(settings: Transfer) -> str:
    """The complete settings as YAML text."""
    return str(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))
