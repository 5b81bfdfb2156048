"""Pictures a second, the time to the first batch and memory, beside timm's own loader: the same files, transforms and
workers, each in a process of its own; many small JPEGs in folders and in tar shards.

python benchmarks/loading.py [--pictures 2000] [--workers 2] [--rounds 3] [--folder DIR]

``first``: seconds until the first batch, ``first_processor`` those in which the main process computed; ``began``: "new"
where nothing was known of the files, "kept" with the index. ``a_core``: pictures a second of processor time, of the
process and its workers, after the first batch: what a busy machine changes least. ``mib``: the memory of the process
and its workers (shared pages once), after a tenth of the batches and after nine."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import report
from PIL import Image

KINDS, CLASSES, SHARD = 300, 100, 1000
"""Different JPEGs, classes, and pictures of a shard."""


def jpegs() -> list[bytes]:
    """Pictures of 128 x 128 and about 5 KB."""
    rng, out = np.random.default_rng(0), []
    for _ in range(KINDS):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((128, 128))
        noisy = np.asarray(coarse) + rng.normal(0, 10, (128, 128, 3))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=85)
        out.append(file.getvalue())
    return out


def make(folder: Path, n: int) -> None:
    """The same pictures as ``folder/files/train`` and ``folder/tars/train``, with a few to test on."""
    kinds = jpegs()
    for part, count in (("train", n), ("val", CLASSES)):
        for c in range(CLASSES):
            (folder / "files" / part / f"c{c:03d}").mkdir(parents=True)
        (folder / "tars" / part).mkdir(parents=True)
        for k in range(0, count, SHARD):
            with open(folder / "tars" / part / f"{k // SHARD:05d}.tar", "wb") as shard:
                for i in range(k, min(k + SHARD, count)):
                    name, data = f"c{i % CLASSES:03d}/{i:07d}.jpg", kinds[i % KINDS]
                    (folder / "files" / part / name).write_bytes(data)
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    shard.write(info.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE))
                shard.write(bytes(2 * tarfile.BLOCKSIZE))


def ours(root: Path, args: argparse.Namespace) -> Iterator[Any]:
    from superformer.data import load, train_batches
    from superformer.recipes.settings import Data, Mix

    data = load(str(root), Data(augment="timm", memory=0, search=0, workers=args.workers), args.size)
    assert data.fingerprint
    with train_batches(
        data.train, data.settings, Mix(smoothing=0), args.size, seed=0, epoch=0, batch_size=args.batch
    ) as batches:
        yield from batches


def timms(root: Path, args: argparse.Namespace) -> Iterator[Any]:
    from timm.data import ImageDataset, create_loader
    from timm.data.readers.reader_image_in_tar import ReaderImageInTar

    train = str(root / "train")
    dataset = ImageDataset(train, reader=ReaderImageInTar(train) if root.name == "tars" else None)
    yield from create_loader(
        dataset, (3, args.size, args.size), args.batch, is_training=True, color_jitter=None, auto_augment=None,
        interpolation="bicubic", num_workers=args.workers, device=torch.device("cpu"), persistent_workers=False,
    )  # type: ignore[arg-type]  # timm takes None for none  # fmt: skip


def mib() -> float:
    """Of this process and its workers; what they share is counted once."""
    own = f"/proc/{os.getpid()}"
    workers = [f"/proc/{pid}" for t in os.listdir(f"{own}/task") for pid in
               Path(f"{own}/task/{t}/children").read_text().split()]  # fmt: skip
    total = 0
    for process in (own, *workers):
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(process, "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def one(loader: str, root: Path, args: argparse.Namespace) -> None:
    """An epoch, measured in this process."""
    import timm.data  # noqa: F401  # importing is no part of it

    import superformer.data  # noqa: F401

    torch.set_num_threads(1)
    steps, memory = min(args.pictures // args.batch, args.batches), []
    before, begin = processor(), time.perf_counter()
    batches = {"superformer": ours, "timm": timms}[loader](root, args)
    next(batches)
    first, started = time.perf_counter() - begin, processor() - before
    for step in range(1, steps):
        next(batches)
        if step in (steps // 10, steps * 9 // 10):  # later, workers end
            memory.append(mib())
    seconds = time.perf_counter() - begin - first
    batches.close()
    del batches
    figures = {"first": first, "first_processor": started, "per_second": (steps - 1) * args.batch / seconds}
    print(json.dumps({**figures, "processor": processor() - before - started, "mib": memory}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = {"pictures": 100_000, "workers": 2, "size": 112, "batch": 64, "batches": 10**9, "rounds": 3}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path, help="where the pictures are, or are written to; a temporary one else")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], Path(args.one[1]), args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "tars").exists():
            make(folder, args.pictures)
        environment = {**os.environ, "XDG_CACHE_HOME": temporary}
        for form in ("files", "tars"):
            found: dict[str, list[dict[str, Any]]] = {"timm": [], "new": [], "kept": []}
            for _ in range(args.rounds):
                for began, all_of_it in found.items():
                    if began == "new":
                        for index in (folder / form).rglob(".superformer-*"):
                            index.unlink()
                    loader = "timm" if began == "timm" else "superformer"
                    words = [f"--{k}={getattr(args, k)}" for k in ("pictures", "workers", "size", "batch", "batches")]
                    command = [sys.executable, __file__, *words, "--one", loader, str(folder / form)]
                    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                    all_of_it.append(json.loads(done.stdout.splitlines()[-1]))
            tell(form, found, args)


def tell(form: str, found: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    timms = found["timm"]
    pictures = min(args.pictures // args.batch, args.batches) * args.batch
    for began, rounds in found.items():
        middle = {k: statistics.median(r[k] for r in rounds) for k in ("first", "first_processor", "per_second")}
        ratios = {
            f"{k}_to_timm": statistics.median(own[k] / other[k] for own, other in zip(rounds, timms, strict=True))
            for k in ("first", "first_processor", "per_second")
        }
        faster = statistics.median(t["processor"] / r["processor"] for t, r in zip(timms, rounds, strict=True))
        report(
            "loading", form=form, loader="timm" if began == "timm" else "superformer", began=began,
            pictures=args.pictures, workers=args.workers, **middle,
            a_core=pictures / statistics.median(r["processor"] for r in rounds), mib=rounds[-1]["mib"],
            **({} if began == "timm" else {**ratios, "a_core_to_timm": faster}),
        )  # fmt: skip


if __name__ == "__main__":
    main()
