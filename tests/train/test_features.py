"""Final tokens beside a teacher's: what is compared, that it teaches, at which size pictures are cut; what is
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer import data
from superformer.errors import SuperformerError
from superformer.recipes import resolve
from superformer.runs.processes import World
from superformer.runs.storage import load_network, load_supernet, save_network
from superformer.train.features import Final, difference, feature_loss
from superformer.train.loop import train
from superformer.train.preparation import build_trainer

BLOCK = {"heads": 2, "attn": sf.times(8, of="heads"), "mlp": 32}
WIDE = {"patch_size": 2, "width": (16, 24, 32), "resolution": (8, 16)}
SPACE = sf.Space("small", "vit", (sf.Stage(BLOCK, depth=(1, 2)),), WIDE, 16)
DIGITS = [str(k) for k in range(10)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    net = sf.supernet(SPACE, 10, seed=1).extract(SPACE.largest()).eval()
    save_network(net, folder, DIGITS, (0.5,) * 3, (0.5,) * 3)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    """A recipe that learns nothing but the teacher's tokens and classes."""
    tree: dict[str, Any] = {"name": "taught", "space": json.loads(SPACE.to_json())}
    tree["data"] = {"mean": [0.5] * 3, "std": [0.5] * 3, "augment": "none", "mirror": 0.0, "search": 0.2}
    tree["loss"] = {"teachers": [str(teacher)], "features": 1.0}
    tree["sampling"] = {"rule": "multi", "networks": 2}
    tree["optimizer"] = {"lr": 2e-3, "warmup_epochs": 0}
    tree["train"] = {"epochs": 3, "batch_size": 32}
    path = tmp_path_factory.mktemp("recipe") / "taught.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@given(
    channels=st.tuples(st.integers(1, 6), st.integers(1, 6)), grids=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    first=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_both_have_is_compared(channels, grids, first, seed):
    """Nothing, of a network and itself; else the mean square over the channels and the grid that both have."""
    generator = torch.Generator().manual_seed(seed)

    def final(c: int, g: int) -> Final:
        return Final(*(torch.randn(s, generator=generator) for s in ((2, int(first), c), (2, c, g, g))))

    own, other = (final(c, g) for c, g in zip(channels, grids, strict=True))
    assert difference(own, own) == 0
    found = difference(own, other)
    assert torch.isfinite(found)
    assert found > 0
    c = min(channels)
    assert found == difference(Final(own.first[..., :c], own.map[:, :c]), other)
    if grids[0] == grids[1]:
        parts = [(own.map[:, :c], other.map[:, :c])] + [(own.first[..., :c], other.first[..., :c])] * first
        wanted = torch.stack([(a - b).square().mean() / b.var().clamp(min=1e-6) for a, b in parts]).mean()
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "name", ["vitas_858m", "twins_svt_s", "resnet50_plain", "s3_tiny", "nasvit_smallest", "vit_resnas_tiny"]
)
def test_of_every_family(name):
    """The map is the last one of the feature pyramid; tokens that come first are apart."""
    net = sf.model(name, 7).eval()
    x = torch.randn(1, 3, net.space.img_size, net.space.img_size)
    with torch.inference_mode():
        ((tokens, at),) = net.passes(x)
        final = Final.of(net, tokens, at)
        torch.testing.assert_close(net.classify(tokens, at), net(x))
    stage = len(net.stages) - 1
    assert final.first.shape[1] == net.prefix_tokens(stage)
    assert tuple(final.map.shape[-2:]) == tuple(net.stage_grid(stage, at.grid))
    assert feature_loss(net, [(tokens, at)], [final]) == 0


def test_the_tokens_come_nearer_to_the_teachers(written, teacher, tmp_path):
    """Of all sizes and widths, in a few epochs; more so than with the teacher's classes alone."""

    def apart(*words: str) -> float:
        run = train(str(written), "digits", tmp_path / "-".join(["run", *words]), *words)
        net, own = load_supernet(run.supernet_file).eval(), load_network(teacher).net.eval()
        pictures = data.load("digits", run.recipe().data, 16).search
        x = next(iter(data.eval_batches(pictures, run.recipe().data, 16, 64)))[0]
        with torch.inference_mode():
            ((tokens, at),) = own.passes(x)
            goal = Final.of(own, tokens, at)
            found = [feature_loss(net, net.passes(x, arch), [goal]) for arch in net.space.sample(4, seed=0)]
        return float(torch.stack(found).mean())

    assert apart() < 0.8 * apart("loss.features=0")


def test_pictures_are_cut_for_the_larger_one(written):
    """A network of small pictures, whose teacher sees them whole."""
    small = SPACE.narrow(resolution=(8,))
    for how, cut in (("larger", 16), ("own", 8)):
        own = resolve(str(written), (f"loss.teacher_size={how}", "img_size=8"))
        trainer = build_trainer(own, small, DIGITS, 1, 1, World())
        assert (trainer.img_size, trainer.cut_size) == (8, cut)
        seen: list[int] = []
        both = trainer.teachers[0].both
        trainer.teachers[0].both = lambda x: seen.append(x.shape[-1]) or both(x)  # noqa: B023
        x = torch.randn(4, 3, cut, cut)
        taught = trainer._taught(data.Batch(x, torch.eye(10)[:4], torch.arange(4)))
        assert seen == [cut]
        assert taught.batch.x.shape[-1] == 8
        assert taught.finals[0].map.shape[-1] == 8  # tokens: the teacher's own size is 16


def test_what_is_refused(written, tmp_path):
    for words, told in {
        ("loss.teachers=[]",): "loss.teachers must be folders",
        ("sharing=bilateral",): "bilateral sharing has no first ones",
    }.items():
        with pytest.raises(SuperformerError, match=told):
            train(str(written), "digits", tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()
