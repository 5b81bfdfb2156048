"""W4: ViTAS's supernet, a training step (batch 8) of each of 8 architectures, ordinal and bilateral; W4b the same with
patches of 16.

python benchmarks/vitas.py
"""

from __future__ import annotations

import json

from common import WORKLOADS, beside, peak_mib, pictures, report, soft_loss, soft_targets

import superformer as sf
from superformer.space.arch import Arch
from superformer.spaces import vitas


def workload(patch: int | None = None) -> list[Arch]:
    archs = []
    for entry in json.loads((WORKLOADS / "archs_vitas.json").read_text()):
        blocks = [(b["heads"], b["attn_dim"], b["mlp_hidden"]) for b in entry["blocks"] if b]
        at = tuple(k for k, b in enumerate(entry["blocks"]) if b)
        archs.append(vitas.vit_network(entry["embed_dim"], blocks, patch or entry["patch"]).placed((at,)))
    return archs


def main() -> None:
    net = sf.supernet("vitas-v1", sharing="bilateral").train()
    x, y = pictures(8), soft_targets(8)
    released = {"W4": (4.33, 9.18), "W4b": (11.1, 21.4)}
    for name, archs in (("W4", workload()), ("W4b", workload(16))):
        for sides, official in zip((("left",), ("left", "right")), released[name], strict=True):

            def work(archs: list[Arch] = archs, sides: tuple[str, ...] = sides) -> None:
                for arch in archs:
                    net.zero_grad()
                    soft_loss(sum(net(x, arch, side=side) for side in sides), y).backward()

            work()
            memory = peak_mib()
            rule = "bilateral" if len(sides) == 2 else "ordinal"
            report(
                f"{name} vitas-v1 {rule}, 8 archs",
                **beside(work, repeats=4),
                peak_mib=memory,
                released={"ratio": official},
            )


if __name__ == "__main__":
    main()
