"""What fitted networks are worth: those of a finished `superformer fit` beside the baselines, tuned as long, with the
same teacher, at the same latency. One JSON line for each network.

* the original, tuned (``DIR/original``);
* evenly dropped blocks: the original without every so-many-th block;
* smaller pictures: the original at the largest input size at which it takes no longer;
* Torch-Pruning (the package torch-pruning): Taylor importance of the tuned original, at the ratio that takes as long;
* scratch: the architecture that was found, with new weights.

A network of ``fit`` was trained in the supernet, with others, and by itself; a baseline gets the epochs of its own
training and its share of the supernet's: all of them on all training pictures, in the same views.

python benchmarks/fit.py RUN [--baselines even,smaller,pruned,scratch] [--below 0.6] [--above 0.4]
                        [--epochs N]

What was measured is kept in ``RUN/baselines.jsonl``, and not measured again.

For plain vision transformers (family vit). Torch-Pruning is not among the dependencies: pip install torch-pruning."""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from common import report
from safetensors import safe_open
from torch import Tensor, nn

import superformer as sf
from superformer import data
from superformer.cost.latency import Job, measure_jobs
from superformer.data.batches import eval_batches, train_batches
from superformer.elastic.positions import at_size
from superformer.families.network import Network
from superformer.kernels import precision
from superformer.runs import Run, stored
from superformer.runs.processes import World
from superformer.runs.storage import load_network, load_supernet
from superformer.space.arch import StageArch
from superformer.space.schema import family
from superformer.train import optimizer
from superformer.train.kept import Kept
from superformer.train.losses import load_teachers, with_teachers
from superformer.train.warm_start import from_network

STEPS, BATCHES = 7, 8
"""Of the bisection for a ratio that meets a latency; of 64 pictures, by whose gradients weights are judged."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--baselines", default="even,smaller,pruned,scratch")
    parser.add_argument("--epochs", type=float, help="of each baseline; else those of retraining and a share of others")
    parser.add_argument("--below", type=float, default=1.0, help="baselines of networks below this share of the time")
    parser.add_argument("--above", type=float, default=0.0, help="and above this one")
    given = parser.parse_args()
    run = Run.open(given.run)
    original = load_network(run.folder / "original" / "network").net.eval()
    found = stored.read(run.folder / "fit.json")["found"]
    homes = [Run.open(run.folder / "retrained" / f"{row['key']}-finetuned") for row in found]
    kept = Lines(run.folder / "baselines.jsonl")
    for k, home in enumerate(homes):
        tuner = Tuner(home, given.epochs or epochs_of(run, home, len(homes)))
        if k == 0:
            kept("original", "", lambda tuner=tuner: (original, original, tuner))
        net = load_supernet(home.supernet_file).eval()
        share = kept("fit", home.folder.name, lambda net=net, tuner=tuner: (net, original, tuner))["latency"]
        for name in given.baselines.split(",") if given.above < share < given.below else ():

            def work(name: str = name, net: Network = net, share: float = share, tuner: Tuner = tuner) -> Measured:
                make = {"even": even, "smaller": smaller, "pruned": pruned}
                made = scratch(net) if name == "scratch" else make[name](original, share, tuner)
                return tuner(made), original, tuner

            kept(name, home.folder.name, work)


def epochs_of(run: Run, home: Run, networks: int) -> float:
    """Of a network's own training, and its share of the supernet's; as many as were trained, if for a time."""
    return sum(float(steps_of(r)) / per_epoch(r) / n for r, n in ((home, 1), (run, networks)))


def steps_of(run: Run) -> int:
    with safe_open(run.supernet_file, "pt") as file:
        return int(json.loads(file.metadata()["facts"])["step"])


def per_epoch(run: Run) -> int:
    return data.steps_per_epoch(run.facts()["pictures"]["train"], run.recipe().train.batch_size)


class Lines:
    """Measurements, a line of JSON each; those that are there are not made again."""

    def __init__(self, path: Path):
        self.path = path
        text = path.read_text() if path.exists() else ""
        self.known = {(row["name"], row["beside"]): row for row in map(json.loads, text.splitlines())}

    def __call__(self, name: str, beside: str, work: Callable[[], Measured]) -> dict[str, Any]:
        """What is measured of a network; ``beside``: that which it is to be as fast as."""
        row = self.known.get((name, beside))
        if row is None:
            row = {"name": name, "beside": beside, **measured(*work())}
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        report(**row)
        return row


def measured(net: nn.Module, original: Network, tuner: Tuner) -> dict[str, Any]:
    accuracy, share = tuner.accuracy(net), ratio(net, original, tuner.size)
    parameters = sum(p.numel() for p in net.parameters())
    seen = len(tuner.pictures.test())
    return {"accuracy": accuracy, "latency": share, "params": parameters, "epochs": tuner.epochs, "pictures": seen}


def ratio(net: nn.Module, original: nn.Module, size: int) -> float:
    """Its time for a picture, of that of the original; measured in turn, each at its own size."""
    jobs = [Job(net.eval(), img_size=size_of(net, size)), Job(original, img_size=size)]
    ours, theirs = (found[0] for found in measure_jobs(jobs, seconds=2.0))
    return float(ours.median / theirs.median)


def home_size(home: Run) -> int:
    """Of the pictures that are cut for the teacher."""
    teacher = load_network(home.recipe().loss.teachers[0]).net
    return int(teacher.space.img_size)


def size_of(net: nn.Module, size: int) -> int:
    """Of the pictures that a network sees: its own, or those of the run."""
    return int(net.space.img_size) if isinstance(net, Network) else size


class Tuner:
    """A plain loop: the pictures, the teacher and the settings that a network was trained with, for any network."""

    def __init__(self, home: Run, epochs: float):
        self.recipe, self.epochs, self.size = home.recipe(), epochs, home_size(home)
        self.pictures = data.load(str(home.facts()["data"]), self.recipe.data, self.size)
        how = len(self.pictures.classes), self.recipe.data.mean, self.recipe.data.std, self.pictures.classes
        teachers = load_teachers(self.recipe.loss.teachers, *how)
        self.kept = Kept.of(self.recipe, teachers, len(self.pictures.train), self.size)
        assert self.kept is not None, "too many pictures to keep what the teacher says of them"

    def __call__(self, net: nn.Module) -> nn.Module:
        recipe, batch = self.recipe, self.recipe.train.batch_size
        per_epoch = data.steps_per_epoch(len(self.pictures.train), batch)
        steps = max(1, round(self.epochs * per_epoch))
        decayed = [p for p in net.parameters() if p.ndim > 1]
        groups = [{"params": decayed}, {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0}]
        own = torch.optim.AdamW(groups, lr=recipe.optimizer.lr, weight_decay=recipe.optimizer.weight_decay)
        schedule = optimizer.Schedule(own, recipe.optimizer, steps, per_epoch)
        net.train()
        size = size_of(net, self.size)
        for n, (x, target) in enumerate(self.batches(steps, per_epoch, batch)):
            schedule.set(n)
            with precision(x.device, recipe.train.amp):
                loss = F.cross_entropy(net(at_size(x, (size, size))), target)
            own.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), recipe.gradients.clip or 1.0)
            own.step()
            if n % 100 == 0:
                print(f"step {n} of {steps}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
        return net.eval()

    def batches(self, steps: int, per_epoch: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pictures, and targets with the teacher's share of them."""
        recipe = self.recipe
        for epoch in range(-(-steps // per_epoch)):
            self.kept.prepare(epoch % recipe.data.views, self.pictures, recipe, self.size, World())
            words: dict[str, Any] = {"seed": recipe.seed, "epoch": epoch, "batch_size": batch, "start": 0}
            train = train_batches(self.pictures.train, recipe.data, recipe.mix, self.size, rank=0, world=1, **words)
            for k, b in enumerate(train):
                if epoch * per_epoch + k >= steps:
                    return
                said = self.kept.say(b)
                assert said is not None
                yield b.x, with_teachers(b.target, said[0], recipe.loss)

    @torch.inference_mode()
    def accuracy(self, net: nn.Module) -> float:
        net.eval()
        right = total = 0
        for x, labels in eval_batches(self.pictures.test(), self.recipe.data, size_of(net, self.size), 64):
            with precision(x.device, self.recipe.train.amp):
                right += int((net(x).argmax(-1) == labels).sum())
            total += len(labels)
        return right / total


Measured = tuple[nn.Module, Network, Tuner]


def even(original: Network, share: float, tuner: Tuner) -> nn.Module:
    """The original with so few blocks, evenly spread, that it takes no longer."""
    arch = original.space.smallest()
    most = len(arch.stages[0].blocks)
    for depth in range(most - 1, 0, -1):
        kept = [round(k * (most - 1) / max(depth - 1, 1)) for k in range(depth)]
        stage = StageArch(tuple(arch.stages[0].blocks[p] for p in kept), arch.stages[0].choices)
        net = sf.model(
            sf.Arch(arch.family, arch.resolution, arch.choices, (stage,), arch.options), original.num_classes
        )
        state = {k: v for k, v in original.state_dict().items() if not k.startswith("stages.0.blocks.")}
        for k, p in enumerate(kept):
            prefix = f"stages.0.blocks.{p}."
            own = {n: v for n, v in original.state_dict().items() if n.startswith(prefix)}
            state |= {f"stages.0.blocks.{k}.{n.removeprefix(prefix)}": v for n, v in own.items()}
        net.load_state_dict(state)
        if ratio(net, original, tuner.size) <= 1.02 * share:
            return net
    return net


def smaller(original: Network, share: float, tuner: Tuner) -> nn.Module:
    """The original on pictures so small that it takes no longer, or on the smallest."""
    arch = original.space.smallest()
    step = int(arch.choices["patch_size"])
    for size in range(tuner.size - step, 0, -step):
        net = sf.model(family(arch.family).rescaled(arch, size), original.num_classes)
        from_network(net, original)
        if ratio(net, original, tuner.size) <= 1.02 * share:
            return net
    return net


def scratch(net: Network) -> nn.Module:
    return sf.model(net.space.smallest(), net.num_classes)


def pruned(original: Network, share: float, tuner: Tuner) -> nn.Module:
    """The original, pruned by Torch-Pruning's Taylor importance, at the ratio with which it takes as long."""
    whole = copy.deepcopy(sf.to_timm(original)).train()
    for n, (pictures, target) in enumerate(tuner.batches(BATCHES, 10**9, 64)):
        (F.cross_entropy(whole(pictures), target) / BATCHES).backward()
        if n >= BATCHES - 1:
            break
    low, high, best = 0.0, 0.95, None
    for _ in range(STEPS):
        middle = (low + high) / 2
        net = taylor(whole, middle, tuner.size)
        if ratio(net, original, tuner.size) <= 1.02 * share:
            high, best = middle, net
        else:
            low = middle
    assert best is not None
    return best


def taylor(whole: nn.Module, share: float, size: int) -> nn.Module:
    """A copy of a network of timm, whose gradients tell what its weights matter, without this share of its widths."""
    import torch_pruning as tp

    net: Any = copy.deepcopy(whole)
    for own, other in zip(net.parameters(), whole.parameters(), strict=True):
        own.grad = other.grad.clone()  # which a copy of a network does not have
    heads = {block.attn.qkv: block.attn.num_heads for block in net.blocks}
    for block in net.blocks:
        block.attn.forward = MethodType(_attention, block.attn)
    pruner = tp.pruner.BasePruner(
        net, torch.zeros(1, 3, size, size), importance=tp.importance.GroupTaylorImportance(), pruning_ratio=share,
        global_pruning=False, num_heads=heads, prune_num_heads=False, prune_head_dims=True, ignored_layers=[net.head],
        round_to=4,
    )  # fmt: skip
    pruner.step()
    for block in net.blocks:
        block.attn.num_heads = pruner.num_heads[block.attn.qkv]
        block.attn.head_dim = block.attn.qkv.out_features // (3 * block.attn.num_heads)
        block.attn.scale = block.attn.head_dim**-0.5
    net.zero_grad()
    return net  # type: ignore[no-any-return]


def _attention(self: Any, x: Tensor, *more: Any, **words: Any) -> Tensor:
    """timm's attention, where the heads' width is no longer that of the tokens."""
    batch, tokens, _ = x.shape
    q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, -1)
    return self.proj(y)


if __name__ == "__main__":
    main()
