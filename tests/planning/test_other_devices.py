"""On a device that is not the processor: steps, evaluation, statistics of batch norms, a round of a search, each with
the networks and the whole batch of a paper. torch's meta device refuses to meet tensors of any other, and has no
numbers that could be waited for: who asks for one fails, but where it is listed here. Tensors without numbers that say
they lie on ``cuda`` do the same for the forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import THOROUGH
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from superformer.cost import cost
from superformer.data import Batch, Pictures
from superformer.data.augment import EvalTransform
from superformer.data.stores import Arrays
from superformer.elastic.conv import recalibrate
from superformer.evaluation.evaluator import Evaluator, Race, needs_recalibration
from superformer.kernels import rehearsing
from superformer.planning import Nowhere, _batch, _macs, _network
from superformer.planning.trace import Trace
from superformer.recipes import Recipe, names, resolve, space_of
from superformer.recipes.searching import split_options
from superformer.search import Problem, method
from superformer.search.judging import FewFirst
from superformer.search.scores import Scorer
from superformer.spaces import supernet
from superformer.train.losses import untrained_teachers
from superformer.train.state import Guard, State
from superformer.train.step import Trainer

META, CUDA = torch.device("meta"), torch.device("cuda")
PAPER = [name for name in names() if not name.endswith("-laptop")]
READS = {"sum": 1, "project": 2}
"""How often a step waits for the device: for the loss and the norm of the gradient; with projection also for the
products of both gradients."""
LAUNCHES = {
    "alphanet": 10_562, "nasvit": 20_485, "s3": 5_745, "vit-resnas": 4_355, "vitas-deit": 1_692,
    "vitas-resnet50": 1_836, "vitas-twins": 3_231, "vitas-v1": 1_654,
}  # fmt: skip
"""The most operations that a device starts for a whole step: all its networks, forward and backward, the optimiser."""
FIRST = 16
"""Steps, of which the one with the most work is looked at."""
SEARCHED, RACED = ["s3", "nasvit"], ["vitas-deit"]


class Elsewhere(Nowhere):
    """A process on the meta device that counts what it reads."""

    reads = 0

    def read(self, numbers: Tensor) -> Any:
        type(self).reads += 1
        return np.ones(tuple(numbers.shape)).tolist()


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the meta device does not know."""
    whole = torch.is_autocast_enabled

    def enabled(device: str | None = None) -> bool:
        return device != "meta" and (whole(device) if device else whole())

    monkeypatch.setattr(torch, "is_autocast_enabled", enabled)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often numbers of the device are asked for, by whom; zeros are the answer."""
    seen = Counter[str]()

    def asked(name: str, answer: Any) -> None:
        own = getattr(Tensor, name)

        def instead(x: Tensor) -> Any:
            if x.device != META:
                return own(x)
            seen[name] += 1
            return answer(torch.zeros(x.shape, dtype=x.dtype))

        monkeypatch.setattr(Tensor, name, instead)

    asked("cpu", lambda x: x)
    asked("tolist", Tensor.tolist)
    return seen


def trainer_of(recipe: Recipe, classes: int = 1000, processes: int = 1) -> Trainer:
    space = space_of(recipe)
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    words = {"drop_path": recipe.train.drop_path, "dropout": recipe.train.dropout}
    net = supernet(space, classes, recipe.sharing, **words, **heads).to(META).train()
    made = Trainer(net, recipe, 100, 100, Elsewhere(0, processes, META))
    for group in made.optimizer.param_groups:
        group |= {"fused": False, "foreach": True}  # the meta device has no fused optimiser
    return made


def on(device: torch.device, batch: Batch) -> Batch:
    return Batch(**{k: t.to(device) for k, t in vars(batch).items() if isinstance(t, Tensor)})


def test_who_asks_for_a_number_or_meets_another_device_fails():
    x = torch.zeros(2, device=META)
    for ask in (Tensor.sum, Tensor.nonzero, Tensor.cpu, Tensor.tolist):
        with pytest.raises((RuntimeError, NotImplementedError)):
            bool(ask(x))
    with pytest.raises(RuntimeError):
        x + torch.zeros(2)
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.empty(2, device=CUDA) + torch.empty(2)


@pytest.mark.parametrize("name", PAPER)
def test_a_whole_step_what_it_starts_and_what_it_waits_for(name, waits):
    """The paper's own networks and batch, with the optimiser."""
    recipe = resolve(name, ["loss.teachers=[]", "watch.conflicts=0", "train.amp=off"])
    trainer = trainer_of(recipe)
    given = on(META, _batch(trainer, 1000))
    largest = max(range(FIRST), key=lambda n: _macs(trainer, n, len(given.x)))
    Elsewhere.reads = 0
    with Trace() as trace:
        outcome = trainer.step(largest, given)
    assert outcome.bad is None
    assert Elsewhere.reads == READS[recipe.gradients.rule]
    assert not waits
    assert all(p.device == META for p in trainer.net.parameters())
    assert all(t.device == META for s in trainer.optimizer.state.values() for t in s.values() if t.ndim)
    assert len(trace.work) <= LAUNCHES[name]
    assert len(trace.work) > 0.9 * LAUNCHES[name], "fewer are better: tell the table"


def test_gradients_travel_from_there(waits):
    """In half the bytes; a process waits for them, not for the device."""
    sent = dict[str, int]()
    for word in ("float32", "bfloat16"):
        words = [f"gradients.travel={word}"] if word != "float32" else []
        own = resolve("nasvit-laptop", ["loss.teachers=[]", "watch.conflicts=0", "train.sync_norm=false", *words])
        trainer = trainer_of(own, 10, 2)
        trainer.step(0, on(META, _batch(trainer, 10)))
        sent[word] = sum(trainer.world.sent)  # type: ignore[attr-defined]
    assert own.gradients.rule == "project"
    assert sent["float32"] > 4 * 1.2 * sum(p.numel() for p in trainer.parameters)  # the largest network's apart
    assert sent["bfloat16"] == pytest.approx(sent["float32"] / 2, rel=1e-4)
    assert not waits


def moved(net: nn.Module, device: torch.device) -> nn.Module:
    """What ``to`` does, which tensors without numbers do not allow."""
    for module in net.modules():
        for name, p in module._parameters.items():
            module._parameters[name] = None if p is None else nn.Parameter(p.to(device))
        for name, b in module._buffers.items():
            module._buffers[name] = None if b is None else b.to(device)
    return net


@pytest.mark.parametrize("name", PAPER)
def test_a_forward_pass_on_cuda(name):
    """The largest network and a batch of all that a step trains."""
    recipe = resolve(name, ["loss.teachers=[]", "train.ema=null", "train.amp=off"])
    space = space_of(recipe)
    with rehearsing(True), FakeTensorMode():
        trainer = Trainer(moved(_network(recipe, space, 1000), CUDA), recipe, 100, 100, Nowhere())
        given = on(CUDA, _batch(trainer, 1000))
        turns = trainer.sampler.turns(3)[-1:] if recipe.sampling.rule != "multi" else trainer.sampler.turns(3)
        for turn in turns:
            made = trainer._forward(turn, given.x)
            assert made.logits.device.type == "cuda"
            assert made.logits.shape == (recipe.train.batch_size, 1000)
            assert trainer._loss(made, trainer._taught(given), None).device.type == "cuda"


@contextmanager
def autocast(device: torch.device, name: str) -> Iterator[None]:
    """What torch refuses where there is no such device."""
    torch.set_autocast_dtype(device.type, getattr(torch, name))
    torch.set_autocast_enabled(device.type, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, False)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("name", ["vitas-deit-laptop", "vit-resnas-laptop"])
def test_half_precision_and_a_teacher_on_cuda(name, monkeypatch):
    recipe = resolve(name, ["loss.teachers=[resnet10t]", "train.ema=null", "train.amp=bfloat16"])
    with rehearsing(True), FakeTensorMode():
        teachers = [moved(t, CUDA) for t in untrained_teachers(recipe.loss.teachers, 10, recipe.loss.teacher_size)]
        net = moved(_network(recipe, space_of(recipe), 10), CUDA)
        trainer = Trainer(net, recipe, 100, 100, Nowhere(device=CUDA), teachers)
        part = trainer._taught(on(CUDA, _batch(trainer, 10)))
        with autocast(CUDA, "bfloat16"):
            made = trainer._forward(trainer.sampler.turns(3)[-1], part.batch.x)
            loss = trainer._loss(made, part, None)
        assert made.logits.dtype == torch.bfloat16
        assert (part.batch.target.device.type, loss.device.type, loss.dtype) == ("cuda", "cuda", torch.float32)


def states(optimizer: torch.optim.Optimizer) -> list[dict[str, tuple[torch.device, torch.dtype]]]:
    return [{k: (t.device, t.dtype) for k, t in state.items()} for state in optimizer.state.values()]


@pytest.mark.parametrize("words", [{"fused": True}, {"capturable": True}, {}])
def test_a_restored_optimiser_lies_where_a_fresh_one_does(words):
    """Fused kernels find the count of steps beside the weights."""
    with FakeTensorMode():
        net = nn.Linear(4, 2, device=CUDA)
        optimizer = torch.optim.AdamW(net.parameters(), **words)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        fresh, state = states(optimizer), State(net, optimizer, Guard(10.0), None)
        saved = state.checkpoint(1)
        read = replace(saved, tensors={k: t.cpu() for k, t in saved.tensors.items()})  # of a file
        optimizer.state.clear()
        state.restore(read)
        assert states(optimizer) == fresh
        optimizer.step()


def evaluator_of(name: str, pictures: int = 512) -> Evaluator:
    """On some pictures, in two batches."""
    recipe = resolve(name)
    space = space_of(recipe)
    net = supernet(space, 1000, recipe.sharing).to(META).eval()
    half = pictures // 2
    x, labels = torch.empty(half, 3, space.img_size, space.img_size, device=META), torch.zeros(half, device=META)
    given = lambda: iter([(x, labels.long())] * 2)  # noqa: E731
    return Evaluator(net, given, [x[:64]] * 2 if needs_recalibration(net) else (), pictures=pictures)


@pytest.mark.parametrize("name", PAPER)
def test_candidates_are_evaluated_and_recalibrated_there(name, waits):
    """A group of candidates waits once; a race once more for each look at who is left; batch norms never."""
    judge = evaluator_of(name)
    archs = judge.net.space.sample(2, seed=0)
    assert judge(archs) == [0.0, 0.0]
    assert waits == {"tolist": 1}
    if name in RACED or THOROUGH:
        waits.clear()
        judge.scores(archs, Race([0.0, 0.0]))
        assert waits == {"tolist": 1, "cpu": 512 // 32}
    if needs_recalibration(judge.net):
        waits.clear()
        recalibrate(judge.net.extract(archs[0]), judge.calibration)
        assert not waits


@pytest.mark.parametrize("name", SEARCHED)
def test_a_round_of_a_search_there(name, waits):
    judge = evaluator_of(name)
    space = judge.net.space
    problem = Problem.of(space, ("accuracy", "macs"))
    search = method(problem, "nsga2", population=4, generations=2)
    genes = search.ask()
    scores = judge(space.decode(genes))
    search.tell(genes, np.stack([scores, cost(space, genes, 1000).macs], 1))
    assert len(search.ask())
    assert waits == {"tolist": 1}


def test_few_pictures_first_there(waits):
    """The panel waits once; each group of candidates once for each part of the pictures."""
    judge = evaluator_of("vitas-deit", 64)
    space = judge.net.space
    found = judge.right(space.sample(2, seed=0))
    assert (found.dtype, found.shape, waits) == (torch.float64, (2, 64), {"cpu": 1})
    waits.clear()
    images = np.zeros((2048, 4, 4, 3), dtype=np.uint8)
    side = EvalTransform(16, 1.0, "bilinear")
    part = Pictures(Arrays(images), np.arange(2048) % 2, "ab", memory=3e-6 * 300 * 16**2)
    given = list[Pictures]()

    def evaluator(some: Pictures) -> Evaluator:
        given.append(some)
        return evaluator_of("vitas-deit", len(some))

    pictures = SimpleNamespace(search=part, transform=side)
    trained = SimpleNamespace(pictures=pictures, evaluator=evaluator, net=judge.net, space=space, recipe=resolve("s3"))
    world, options = Elsewhere(device=META), split_options({"few": 128})[0]
    race = FewFirst.of(trained, options, Scorer(judge, None, world), world, None)  # type: ignore[arg-type]
    assert [len(some) for some in given] == np.diff([0, *race.ends]).tolist()
    assert sum(len(some) for some in given if some.fits(side)) <= 300  # they share the memory
    archs = space.sample(2, seed=1)
    steps = race.scores(archs, [{}] * 2, 0, lambda guess: np.zeros(2), estimates=False)
    assert sum(steps) == 2
    assert waits["tolist"] == len(race.ends)
    assert set(waits) == {"tolist"}
