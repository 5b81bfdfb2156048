"""What happens to pictures on their way into a network: random numbers, the evaluation transform, random variations.

`shift` moves, mirrors and erases whole batches of uint8 squares at once: for small pictures, where timm's transforms
would cost more than the network. `timm` runs timm's transforms on one whole picture at a time.

Random numbers have no state: every draw comes from a generator made from the run's seed, what it is for, and where in
the run it is. So a run can go on at any step, and neither worker processes nor ranks change what is drawn."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import get_worker_info

from superformer.data.stores import Ints
from superformer.errors import SuperformerError, nearest
from superformer.recipes.settings import Data

INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "random")
AREA = (0.02, 1 / 3)
ASPECT = 0.3
"""Of erased boxes: share of the picture, and the flattest box (the tallest is 1 / ASPECT); timm's values."""


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """The generator of one purpose at one place, such as ``generator(seed, "order", epoch)``."""
    return np.random.Generator(np.random.PCG64(_seed_sequence(seed, purpose, where)))


def _seed_sequence(seed: int, purpose: str, where: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed % 2**64, zlib.crc32(purpose.encode()), *where])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's, numpy's and torch's own generators with this seed for a while; what they were before comes back, but
    for a loader's worker process, where nobody else draws.

    timm's and torchvision's transforms draw from them. Devices' generators are left alone."""
    if get_worker_info() is not None:
        _seed(seed)
        yield
        return
    python, legacy, torch_ = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    _seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.default_generator.set_state(torch_)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


@dataclass(frozen=True)
class EvalTransform:
    """timm's evaluation transform, on whole batches of uint8: the square of a picture that a network looks at.

    Pictures larger than the input are resized until the shorter side is input / crop, and the centre is kept. Others
    (8 x 8 digits, CIFAR) are resized to the input and lose no border: the crop share is not for them."""

    size: int
    crop: float = 0.875
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        given = self.interpolation
        if given not in INTERPOLATIONS:
            raise SuperformerError(f"interpolation {given!r} is not known: {nearest(given, INTERPOLATIONS)}")
        if self.size < 1:
            raise SuperformerError(f"an input of {self.size} pixels was asked for; give 1 or more")

    def __call__(self, pictures: Tensor) -> Tensor:
        """uint8 pictures of one size, (n, height, width, 3), as (n, 3, size, size)."""
        height, width = pictures.shape[1:3]
        short, long = min(height, width), max(height, width)
        scaled = self.size if short <= self.size else math.floor(self.size / self.crop)
        other = int(scaled * long / short)
        to = (scaled, other) if height <= width else (other, scaled)
        x = _resize(pictures.permute(0, 3, 1, 2), to, self.interpolation)  # (n, 3, rows, columns)
        top, left = round((x.shape[2] - self.size) / 2), round((x.shape[3] - self.size) / 2)
        return x[:, :, top : top + self.size, left : left + self.size].contiguous()


def _resize(x: Tensor, size: tuple[int, int], interpolation: str) -> Tensor:
    """uint8 pictures (n, 3, height, width) at another size, antialiased; ``random``, timm's word, is bilinear."""
    if tuple(x.shape[2:]) == size:
        return x
    if interpolation == "nearest":
        return F.interpolate(x, size=size, mode="nearest-exact")
    mode = "bilinear" if interpolation == "random" else interpolation
    return F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=False)


def shrink(picture: Tensor, short: int) -> Tensor:
    """One uint8 picture (height, width, 3), its shorter side made at most ``short``."""
    height, width = picture.shape[:2]
    if min(height, width) <= short:
        return picture
    scale = short / min(height, width)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    return _resize(picture[None].permute(0, 3, 1, 2), size, "bilinear")[0].permute(1, 2, 0).contiguous()


def check_normalisation(settings: Data) -> None:
    """Means and deviations fit RGB."""
    for name, values in (("mean", settings.mean), ("std", settings.std)):
        if len(values) not in (1, 3):
            raise SuperformerError(f"data.{name} has {len(values)} values; pictures are RGB: give 3, or 1 for all")


def normalise(x: Tensor, settings: Data) -> Tensor:
    """uint8 (n, 3, height, width) as float32 with the mean subtracted and divided by the deviation."""
    mean, std = (torch.tensor(v).mul(255).view(1, -1, 1, 1) for v in (settings.mean, settings.std))
    return x.to(torch.float32, memory_format=torch.contiguous_format).sub_(mean).div_(std)


@dataclass(frozen=True)
class RankShare:
    """The part of each global batch that one rank computes: pictures rank, rank + world, ..."""

    rank: int = 0
    world: int = 1

    @property
    def rows(self) -> slice:
        return slice(self.rank, None, self.world)


def shift_batch(squares: Tensor, settings: Data, rng: np.random.Generator, batch: int, share: RankShare) -> Tensor:
    """A rank's uint8 squares (n, 3, size, size), moved (black comes in), mirrored, normalised and erased. Everything is
    drawn for the global ``batch``, of which the rank uses its share: ranks together compute what one process would."""
    size = squares.shape[-1]
    most = round(settings.shift * size)
    dy, dx = rng.integers(0, 2 * most + 1, (2, batch))
    mirrored = np.flatnonzero((rng.random(batch) < settings.mirror)[share.rows])
    x = _moved(squares, dy[share.rows], dx[share.rows], most) if most else squares.clone()
    flipped = x.index_select(0, torch.from_numpy(mirrored)).flip(-1)
    x.numpy()[mirrored] = flipped.numpy()  # torch's index_copy is many times slower
    x = normalise(x, settings)
    if settings.erase:
        _erase(x, settings.erase, rng, batch, share)
    return x


def _moved(squares: Tensor, dy: Ints, dx: Ints, most: int) -> Tensor:
    """From each square with a black border of ``most`` pixels, the window of the same size that begins at (dy, dx).

    A row of a window counts as one item of numpy, so that whole rows are copied."""
    n, channels, size = squares.shape[:3]
    padded = np.zeros((n, channels, size + 2 * most, size + 2 * most), dtype=np.uint8)
    padded[:, :, most : most + size, most : most + size] = squares.numpy()
    picture, channel, row, pixel = padded.strides
    starts = 2 * most + 1
    shape, strides = (n, channels, starts, size, starts), (picture, channel, row, row, pixel)
    rows: npt.NDArray[np.void] = np.ndarray(shape, np.dtype((np.void, size)), padded, strides=strides)
    windows = rows[np.arange(n), :, dy, :, dx]  # (n, channels, rows), an item a row
    return torch.from_numpy(windows.view(np.uint8).reshape(squares.shape))


def _erase(x: Tensor, probability: float, rng: np.random.Generator, batch: int, share: RankShare) -> None:
    """Random erasing (Zhong et al.), in place: a box of noise. timm's boxes, but one that does not fit is cut."""
    size = x.shape[-1]
    hit = np.flatnonzero(rng.random(batch) < probability)
    area = rng.uniform(*AREA, len(hit)) * size**2
    aspect = np.exp(rng.uniform(math.log(ASPECT), -math.log(ASPECT), len(hit)))
    # (2, boxes): heights and widths, then where they start
    sides = np.sqrt([area * aspect, area / aspect]).round().astype(np.int64).clip(1, max(size - 1, 1))
    start = (rng.random((2, len(hit))) * (size - sides + 1)).astype(np.int64)
    pixels = 3 * sides.prod(0)
    noise = rng.standard_normal(int(pixels.sum()), dtype=np.float32)
    mine = hit % share.world == share.rank
    begin, end, along = start[:, mine, None], (start + sides)[:, mine, None], np.arange(size)
    rows, columns = (along >= begin) & (along < end)  # each (boxes, size)
    inside = torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :])  # (boxes, 1, size, size)
    which = torch.from_numpy(hit[mine] // share.world)
    erased = x.index_select(0, which).masked_scatter_(inside, torch.from_numpy(noise[np.repeat(mine, pixels)]))
    x.numpy()[which.numpy()] = erased.numpy()


class TimmTransform:
    """timm's training transforms, a picture at a time: resized crop, mirror, auto-augment or colour jitter, erasing.

    Pictures that are not erased stay uint8 until `finished`, whole batches of them: a quarter of the bytes between
    processes, and timm's numbers to the last bit."""

    def __init__(self, settings: Data, img_size: int):
        from timm.data.auto_augment import posterize
        from timm.data.transforms_factory import create_transform

        mean, std = (values * 3 if len(values) == 1 else values for values in (settings.mean, settings.std))
        try:
            made: Any = create_transform(
                img_size, is_training=True, scale=settings.scale, ratio=settings.ratio, hflip=settings.mirror,
                color_jitter=settings.color_jitter,  # type: ignore[arg-type]  # timm takes None for none
                auto_augment=settings.randaugment, interpolation=settings.interpolation, mean=mean, std=std,
                re_prob=settings.erase, re_mode="pixel", use_prefetcher=not settings.erase,
            )  # fmt: skip
        except (AssertionError, KeyError, ValueError, IndexError) as problem:
            randaugment = f"{settings.randaugment!r} (such as rand-m9-mstd0.5-inc1)"
            raise SuperformerError(
                f"timm does not take these transforms ({type(problem).__name__}: {problem}): data.randaugment is "
                f"{randaugment}, data.interpolation {settings.interpolation!r}"
            ) from problem
        for step in made.transforms:
            for group in (getattr(step, "ops", []), *getattr(step, "policy", [])):
                for op in group:
                    if getattr(op, "aug_fn", None) is posterize:
                        op.aug_fn = _posterize
        self._transform: Callable[[Image.Image], Tensor] = made
        self._mean, self._std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def finished(self, x: Tensor) -> Tensor:
        """A batch of pictures, normalised."""
        if x.dtype != torch.uint8:
            return x
        scaled = x.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return scaled.sub_(self._mean).div_(self._std)

    def __call__(self, picture: Image.Image, seed: int, epoch: int, index: int, repeat: int) -> Tensor:
        """A varied picture (3, size, size): the same for the same numbers, whoever computes it."""
        with seeded(int(_seed_sequence(seed, "augment", (epoch, index, repeat)).generate_state(1)[0])):
            return self._transform(picture)


def _posterize(picture: Image.Image, bits: int, **_: Any) -> Image.Image:
    """timm's posterize, which newer versions of Pillow refuse at its strongest setting: to keep no bit."""
    if bits >= 8:
        return picture
    return ImageOps.posterize(picture, bits) if bits > 0 else Image.new(picture.mode, picture.size)
