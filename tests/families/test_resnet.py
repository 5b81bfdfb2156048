"""ResNet: the same network as timm's, its size, its features, and the statistics of its batch norms."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.interop.timm_weights import from_timm
from superformer.spaces import arch


def noisy(model: nn.Module) -> nn.Module:
    """Every norm away from its neutral start."""
    generator = torch.Generator().manual_seed(0)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            for tensor in (m.running_mean, m.bias.data):
                tensor.normal_(0, 0.1, generator=generator)
            for tensor in (m.running_var, m.weight.data):
                tensor.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def small():
    """A small supernet and pictures for it."""
    stages = [
        sf.Stage(
            {"mid1": (4, 6), "mid2": (4, 5)},
            depth=(1, 2),
            choices={"width": (8, 12), "entry1": (4, 6), "entry2": (5, 6)},
        )
        for _ in range(2)
    ]
    space = sf.Space("small", "resnet", tuple(stages), {"stem": (4, 6)}, img_size=32)
    return space, torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("name", "size"), [("resnet50", (64, 97)), ("wide_resnet50_2", (32, 32))])
def test_the_same_as_timm(name, size):
    torch.manual_seed(0)
    theirs = noisy(timm.create_model(name, num_classes=10)).double()
    ours = from_timm(theirs)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    assert not ours.training


def test_the_same_step_as_timm():
    theirs = noisy(timm.create_model("resnet26", num_classes=3)).double().train()
    ours = from_timm(theirs)
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for model in (theirs, ours):
        model(x).square().sum().backward()
    torch.testing.assert_close(ours.stem.conv.weight.grad, theirs.conv1.weight.grad)
    torch.testing.assert_close(ours.head.weight.grad, theirs.fc.weight.grad)
    last, same = ours.stages[3].blocks[0].conv3.norm, theirs.layer4[1].bn3
    torch.testing.assert_close((last.running_mean, last.running_var), (same.running_mean, same.running_var))


@pytest.mark.parametrize(
    "name", ["resnet18", "resnext50_32x4d", "seresnet50", "resnet50d", "resnetaa50", "resnet50_gn"]
)
def test_other_resnets_of_timm_are_refused(name):
    with torch.device("meta"):
        other = timm.create_model(name)
    with pytest.raises(sf.SuperformerError, match="only plain bottleneck ResNets"):
        from_timm(other)


def test_its_size():
    plain, space = arch("resnet50_plain"), sf.space("vitas-resnet50")
    assert space.largest() == plain
    assert space.size == 10**37
    cost = sf.cost(space, plain)
    assert cost.params[0] == 25_557_032
    assert cost.macs[0] == 4_089_184_256
    model = timm.create_model("resnet50_plain").to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, 224, 224, device="meta"))
    assert counter.get_total_flops() == 2 * cost.macs[0]


def test_features():
    model = timm.create_model("resnet50_plain", features_only=True).eval()
    with torch.no_grad():
        maps = model(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [(1, 256 * 2**i, 16 // 2**i, 24 // 2**i) for i in range(4)]
    assert model.feature_info.reduction() == [4, 8, 16, 32]
    assert model.feature_info.channels() == [256, 512, 1024, 2048]


def test_stochastic_depth_is_timms():
    ours, theirs = sf.model("resnet50_plain", drop_path=0.2), timm.create_model("resnet50", drop_path_rate=0.2)
    rates = [b.drop_path.drop_prob if b.drop_path else 0.0 for i in range(1, 5) for b in getattr(theirs, f"layer{i}")]
    assert [c.drop_path for s in ours.stages for c in (s.enter, *s.blocks)] == pytest.approx(rates)


def norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}


@pytest.mark.parametrize("rule", ["ordinal", "cyclic"])
def test_recalibrated_statistics_are_means_over_the_batches(small, rule):
    space, x = small
    net = sf.supernet(space, 5, rule).double().train()
    for archs in (space.sample(4, seed=0), space.sample(2, seed=1)):
        net(x, archs)
    model = net.extract(space.sample(1, seed=2)[0])
    batches = [x[:8], x[8:14] * 2, x[10:]]
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in norms(model)}
    for name in norms(model):

        def see(m, inputs, out, name=name):
            flat = m.conv(*inputs).flatten(0, 2)  # what its norm is given
            seen[name].append((flat.mean(0), flat.var(0)))

        model.get_submodule(name.removesuffix(".norm")).register_forward_hook(see)
    assert sf.recalibrate(model, iter(batches)) is model
    assert not any(m.training for m in model.modules())
    for name, m in norms(model).items():
        means, variances = zip(*seen[name], strict=True)
        assert len(means) == len(batches)
        torch.testing.assert_close(m.running_mean, torch.stack(means).mean(0))
        torch.testing.assert_close(m.running_var, torch.stack(variances).mean(0))
        assert m.momentum == 0.1


def test_recalibration_without_pictures_changes_nothing(small):
    space, x = small
    model = sf.supernet(space, 5).double().extract(space.largest())
    model(x)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(sf.SuperformerError, match="at least one batch"):
        sf.recalibrate(model, [])
    for k, v in model.state_dict().items():
        torch.testing.assert_close(v, before[k], rtol=0, atol=0)


def test_each_part_of_a_mixed_batch_is_normalised_by_itself(small):
    space, x = small
    net = sf.supernet(space, 5, "cyclic").double().train()
    archs = space.sample(2, seed=3)
    alone = torch.cat([net(part, arch) for part, arch in zip(x.chunk(2), archs, strict=True)])
    torch.testing.assert_close(net(x, archs), alone)
