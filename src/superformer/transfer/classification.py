"""Small classification sets: the same retraining as everywhere (`superformer.train.retrain`), with other data and a new
classifier (ViTAS v1, section 5.2; for larger pictures S3, section 4.3, and ViT-ResNAS, section 3.1).

The folder of such a transfer is an ordinary run of one network: ``original/`` holds what it began with, ``model/`` the
result, and every command that takes a run takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import evaluate as evaluate_run
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.progress import teller
from superformer.recipes import Recipe, from_tree, merged
from superformer.recipes.settings import Start
from superformer.runs import Run, stored
from superformer.runs.storage import load_supernet, save_network
from superformer.runs.stored import TRANSFER
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family
from superformer.train.loop import train
from superformer.train.pretrained import from_timm_settings
from superformer.train.retrain import save_model, table_row
from superformer.transfer.settings import recipe_tree
from superformer.transfer.source import Source

ORIGINAL, SCORES = "original", "scores.json"


def classify(
    source: Source, spec: str, folder: Path, changes: Sequence[str], recipe: str | Path | None, minutes: float | None,
    console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Train a network on other pictures, with a new classifier, and judge it."""
    tree = merged({"data": dict(source.prepared)}, recipe_tree(recipe, changes))
    run = Run(folder)
    source = source.asked(_pretrained(tree) and source.arch is None)  # as a recipe may say of all networks
    random = source.net is None and source.checkpoint is None and not _pretrained(tree)
    start, arch = ({}, None) if random else _original(source, folder, tree)
    own = _recipe(tree, arch or source.arch or timm_arch(source), start)
    teller(console)(f"classify on {source.name}; weights: {source.weights}")
    train(own, spec, folder, console=console, minutes=minutes)
    if not run.retrained:
        save_model(run, load_supernet(run.supernet_file), folder / "model")
    facts = run.facts()
    known = {"task": "classify", "head": "linear", "data": spec, "fingerprint": facts["fingerprint"]}
    files.write_object(folder / TRANSFER, {**known, "classes": facts["classes"], "backbone": source.facts})
    return evaluate(folder, "test")


def _pretrained(tree: dict[str, Any]) -> bool:
    return bool((tree.get("start") or {}).get("pretrained", False))


def _recipe(tree: dict[str, Any], arch: Arch, start: dict[str, Any]) -> Recipe:
    """The recipe of a network, at the size that ``img_size`` says or at its own."""
    size = tree.get("img_size") or arch.resolution
    arch = arch if size == arch.resolution else family(arch.family).rescaled(arch, int(size))
    given = {"space": json.loads(point(arch).to_json()), "img_size": None, "start": start}
    return from_tree({**tree, **given}, str(tree.get("name", "classify")))


def _original(source: Source, folder: Path, tree: dict[str, Any]) -> tuple[dict[str, Any], Arch]:
    """The network that training begins with, kept in the folder: the words that began it go on when it is gone."""
    home = folder / ORIGINAL
    if not (home / CONFIG).exists():
        save_network(_network(source, tree), home)
    arch = json.loads((home / CONFIG).read_text("utf-8"))["arch"]
    return {"network": str(home)}, Arch.from_json(json.dumps(arch))


def _network(source: Source, tree: dict[str, Any]) -> Network:
    if source.net is not None:
        return source.net
    if source.arch is not None:
        what = f"{source.name} of superformer has no published weights"
        raise SuperformerError(f"{what}: give the folder of a trained one as --backbone, or no --checkpoint")
    start = Start(timm=source.name, checkpoint=source.checkpoint, pretrained=_pretrained(tree))
    return from_timm_settings(start)


def timm_arch(source: Source) -> Arch:
    """Of a network of timm that has a family here."""
    return from_timm_settings(Start(timm=source.name, pretrained=False)).space.smallest()


def there(folder: str | Path) -> bool:
    """Whether a folder is that of such a transfer."""
    path = Path(folder) / TRANSFER
    return path.exists() and stored.read(path).get("task") == "classify"


def evaluate(folder: str | Path, split: str = "test") -> dict[str, Any]:
    """The accuracy on the test pictures, or on those that were kept apart."""
    run = Run.open(folder)
    net = load_supernet(run.supernet_file)
    if split == "search":
        return {"metrics": {"accuracy": evaluate_run(folder, ["smallest"], "search")[0]["accuracy"]}}
    known, mark = stored.read(run.folder / SCORES), run.fingerprint()
    if known.get("test", {}).get("network") == mark:
        return dict(known["test"])
    row = table_row(run, net, "network", "finetuned" if run.recipe().start.network else "scratch")
    cost = {"params": row["params"], "macs": row["macs"]}
    found = {"metrics": {"accuracy": row["accuracy"]}, "pictures": row["pictures"], "task": "classify"}
    found |= {"head": "linear", "cost": cost, "network": mark}
    files.write_object(run.folder / SCORES, {"test": found})
    return found
