"""Networks stored in folders, and outside teachers."""

from __future__ import annotations

import json
import os

import pytest
import timm
import torch
from helpers.training import SPACE

import superformer as sf
from superformer.interop import hub
from superformer.runs import storage as stored
from superformer.train import losses as teachers


@pytest.fixture
def net() -> torch.nn.Module:
    return sf.supernet(SPACE, 3, seed=4).extract(SPACE.sample(1, 7)[0]).eval()


def test_there_and_back(net, tmp_path):
    stored.save_network(net, tmp_path / "a" / "b", ("x", "y", "z"), (0.5,) * 3, (0.25,) * 3)
    found = stored.load_network(tmp_path / "a" / "b")
    assert (found.classes, found.mean, found.std) == (("x", "y", "z"), (0.5,) * 3, (0.25,) * 3)
    assert found.net.space.smallest() == net.space.smallest()
    assert not found.net.training
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(found.net(x), net(x))
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["config.json", "model.safetensors"]


def test_a_patch_head_is_left_out(tmp_path):
    arch = sf.space("vit-resnas-tiny").smallest()
    stored.save_network(sf.model(arch, 4, patch_head=True), tmp_path)
    assert "patch_head.weight" not in stored.load_network(tmp_path).net.state_dict()


def test_mistakes_in_folders(net, tmp_path):
    with pytest.raises(sf.SuperformerError, match=r"supernet of .* architectures: store net\.extract"):
        stored.save_network(sf.supernet(SPACE, 3), tmp_path)
    with pytest.raises(sf.SuperformerError, match="2 names were given for the 3 classes"):
        stored.save_network(net, tmp_path, ("a", "b"))
    with pytest.raises(sf.SuperformerError, match="no complete network"):
        stored.load_network(tmp_path / "nowhere")
    stored.save_network(net, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["checksum"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_classes": 4}))
    with pytest.raises(sf.SuperformerError, match=r"config.json makes no sense.*delete"):
        stored.load_network(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "clases": []}))
    with pytest.raises(sf.SuperformerError, match="did you mean 'classes'"):
        stored.load_network(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(sf.SuperformerError, match=r"model.safetensors is damaged.*delete"):
        stored.load_network(tmp_path)


def test_an_interrupted_write_leaves_no_configuration(net, tmp_path, monkeypatch):
    stored.save_network(net, tmp_path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="disk is full"):
        stored.save_network(net, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_folder_teaches(net, tmp_path):
    """Pictures arrive normalised for the student; the teacher sees what it was trained on."""
    stored.save_network(net, tmp_path, ("x", "y", "z"), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    (teacher,) = teachers.load_teachers([str(tmp_path)], 3, classes=("x", "y", "z"))
    pixels = torch.rand(2, 3, 32, 32)

    def normal(mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
        return (pixels - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)

    out = teacher(normal(*stored.IMAGENET))
    with torch.no_grad():
        torch.testing.assert_close(out, net(normal((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))))
    assert not out.requires_grad
    assert not teacher.train().net.training
    assert not any(p.requires_grad for p in teacher.parameters())
    with pytest.raises(sf.SuperformerError, match="knows 3 classes, the data have 10"):
        teachers.load_teachers([str(tmp_path)], 10)
    with pytest.raises(sf.SuperformerError, match="another order: 'x' where the data have 'y'"):
        teachers.load_teachers([str(tmp_path)], 3, classes=("y", "x", "z"))
    with pytest.raises(sf.SuperformerError, match="3 channels cannot see pictures of 1"):
        teachers.load_teachers([str(tmp_path)], 3, mean=(0.5,), std=(0.5,))


def test_timm_teaches(monkeypatch):
    create = timm.create_model
    asked = []

    def offline(name: str, pretrained: bool) -> torch.nn.Module:
        asked.append((name, pretrained))
        return create(name)

    monkeypatch.setattr(timm, "create_model", offline)
    small, fixed = teachers.load_teachers(["resnet10t", "deit_tiny_patch16_224"], 1000)
    assert asked == [("resnet10t", True), ("deit_tiny_patch16_224", True)]
    x = torch.randn(1, 3, 64, 64)
    assert small(x).shape == fixed(x).shape == (1, 1000)  # the second resizes to 224
    assert (small.same, fixed.same) == (True, True)
    assert not teachers.load_teachers(["vit_tiny_patch16_224"], 1000)[0].same  # it was trained with other means


def test_teachers_see_pictures_of_the_size_they_were_made_for(net, tmp_path, monkeypatch):
    """Of timm as its configuration says, of folders as their networks were trained; or the student's, if asked."""
    create, seen = timm.create_model, []

    def offline(name: str, pretrained: bool) -> torch.nn.Module:
        made = create(name)
        made.register_forward_pre_hook(lambda module, given: seen.append(tuple(given[0].shape[-2:])))
        return made

    monkeypatch.setattr(timm, "create_model", offline)
    x = torch.randn(1, 3, 64, 64)
    for own_size in (True, False):
        (teacher,) = teachers.load_teachers(["resnet10t"], 1000, own_size=own_size)
        teacher(x)
    cfg = timm.get_pretrained_cfg("resnet10t")
    assert seen == [tuple(cfg.input_size[1:]), (64, 64)]
    stored.save_network(net, tmp_path, ("x", "y", "z"))
    (folder,) = teachers.load_teachers([str(tmp_path)], 3)
    small = torch.nn.functional.interpolate(x, (32, 32), mode="bicubic", antialias=True)
    with torch.no_grad():
        torch.testing.assert_close(folder(x), net(small))


def test_teachers_that_cannot_be_had(monkeypatch):
    with pytest.raises(sf.SuperformerError, match="did you mean 'resnet50'"):
        teachers.load_teachers(["resnet5O"], 1000)
    with pytest.raises(sf.SuperformerError, match="knows 1000 classes, the data have 10"):
        teachers.load_teachers(["resnet18"], 10)
    with pytest.raises(sf.SuperformerError, match="has no published weights"):
        teachers.load_teachers(["vitas_1g"], 1000)
    with pytest.raises(sf.SuperformerError, match="no complete network"):
        teachers.load_teachers(["runs/none/subnet"], 10)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(timm, "create_model", unreachable)
    for there, why in (
        (True, r"\(ConnectionError: no route\)"),
        (False, "they are not on this machine, and .* cannot be"),
    ):
        monkeypatch.setattr(hub, "reachable", lambda address, there=there: there)
        with pytest.raises(
            sf.SuperformerError, match=f"the weights of the teacher resnet18 could not be loaded .*{why}"
        ):
            teachers.load_teachers(["resnet18"], 1000)
