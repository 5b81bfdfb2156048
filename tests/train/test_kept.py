"""What teachers say of views that come again is computed once, and is what they would say."""

import shutil

import numpy as np
import pytest
import torch

import superformer as sf
from superformer import data
from superformer.errors import SuperformerError
from superformer.recipes import resolve, space_of
from superformer.runs.processes import World
from superformer.runs.storage import load_supernet, save_network
from superformer.train.loop import train
from superformer.train.losses import Teacher
from superformer.train.preparation import build_trainer, epoch_batches

WORDS = (
    "data.augment=timm", "data.views=2", "data.workers=0", "train.batch_size=8", "train.epochs=3", "train.threads=1",
    "watch.every=100", "mix.smoothing=0", "loss.features=1", "data.search=0.2", "sharing=ordinal",
)  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Small pictures, and words that let a network teach what it says of them."""
    folder, draw = tmp_path_factory.mktemp("kept"), np.random.default_rng(0)
    images = draw.integers(0, 255, (50, 8, 8, 3), np.uint8)
    np.savez(folder / "some.npz", images=images, labels=np.arange(50) % 2)
    recipe = resolve("vitas-deit-laptop", WORDS)
    net = sf.supernet(space_of(recipe), 2, seed=5)
    teacher = net.extract(net.space.largest())
    save_network(teacher, folder / "teacher", classes=("0", "1"), mean=recipe.data.mean, std=recipe.data.std)
    return str(folder / "some.npz"), (*WORDS, f"loss.teachers=[{folder / 'teacher'}]")


def test_what_is_kept_is_what_the_teacher_says(given, tmp_path):
    spec, words = given
    recipe = resolve("vitas-deit-laptop", [*words, f"loss.keep={tmp_path}"])
    pictures = data.load(spec, recipe.data, 8)
    trainer = build_trainer(recipe, space_of(recipe), pictures.classes, 15, 5, World())
    assert trainer.kept is not None
    seen = []
    for epoch in range(3):
        for batch in epoch_batches(trainer, pictures, epoch, 0):
            said = trainer.kept.say(batch)
            logits, final = trainer.teachers[0].both(batch.x)
            torch.testing.assert_close(said[0][0], logits, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(said[1][0].map, final.map, atol=2e-3, rtol=2e-3)
            seen += [(batch.view, int(i), x) for i, x in zip(batch.index, batch.x, strict=True)]
    views = {(view, i): x for view, i, x in seen}
    assert {view for view, _ in views} == {0, 1}
    assert all(torch.equal(views[view, i], x) for view, i, x in seen)  # the same pixels when a view comes again
    assert any(not torch.equal(x, views[1, i]) for (view, i), x in views.items() if view == 0 and (1, i) in views)


def test_a_teacher_sees_each_view_once_for_all_trainings(given, tmp_path, monkeypatch):
    spec, words = given
    asked, both = [], Teacher.both

    def counted(self, x):
        asked.append(len(x))
        return both(self, x)

    monkeypatch.setattr(Teacher, "both", counted)
    words = [*words, f"loss.keep={tmp_path / 'taught'}"]
    first = train("vitas-deit-laptop", spec, tmp_path / "first", *words)
    assert sum(n for n in asked if n > 8) == 2 * 32  # not 3 epochs of them
    asked.clear()
    again = train("vitas-deit-laptop", spec, tmp_path / "again", *words)
    assert not any(n > 8 for n in asked)  # found in the folder
    shutil.rmtree(tmp_path / "taught")
    damaged = train("vitas-deit-laptop", spec, tmp_path / "gone", *words)
    nets = [load_supernet(run.supernet_file).state_dict() for run in (first, again, damaged)]
    for other in nets[1:]:
        assert all(torch.equal(value, other[name]) for name, value in nets[0].items())


def test_what_is_kept_has_a_limit(given, tmp_path):
    spec, words = given
    recipe = resolve("vitas-deit-laptop", [*words, f"loss.keep={tmp_path}", "data.memory=1e-4"])
    classes = data.load(spec, recipe.data, 8).classes
    assert build_trainer(recipe, space_of(recipe), classes, 15, 5, World()).kept is None


@pytest.mark.parametrize(
    ("word", "told"),
    [("data.views=0", "data.views"), ("mix.mixup=0.8", "mixed pictures"), ("data.repeats=2", "repeats=1")],
)
def test_what_cannot_be_kept_is_refused(given, tmp_path, word, told):
    spec, words = given
    with pytest.raises(SuperformerError, match=told):
        train("vitas-deit-laptop", spec, tmp_path / "run", *words, f"loss.keep={tmp_path}", word)
    assert not (tmp_path / "run").exists()
