"""Files are written whole or not at all: under a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from superformer.errors import StoppedError, SuperformerError

PARTIAL, CONFIG = ".partial", "config.json"
"""What unfinished files end in, and by which a folder with a network is known."""


def write(path: Path, content: str | bytes) -> None:
    """Write a small file."""
    data = content.encode() if isinstance(content, str) else content
    write_by(path, lambda partial: partial.write_bytes(data))


def write_by(path: Path, writer: Callable[[Path], object]) -> None:
    """Let ``writer`` write a file under a temporary name, then give it its own."""
    partial = path.with_name(path.name + PARTIAL)
    with disk_errors(path):
        try:
            writer(partial)
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)  # flushed, too: the new name is on the disk
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it lies in, unless it is there."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into errors that say what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = re.search(r"os error (\d+)", str(error))  # safetensors tells the system's errors as text
        code = int(number[1]) if number else getattr(error, "errno", None)
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            how = "free some space and run the same command again, it goes on from the last checkpoint"
            raise StoppedError(f"the disk is full: {path} could not be written. Nothing is lost: {how}") from error
        if code in (errno.EROFS, errno.EACCES, errno.EPERM):
            what = f"{path} cannot be written (no permission, or a read-only disk)"
            raise SuperformerError(f"{what}: choose another folder, or change its permissions") from error
        raise StoppedError(f"{path} could not be written: {error}") from error


@functools.cache
def catalogue(kind: str) -> Mapping[str, Any]:
    """The published ``spaces`` or ``models`` by name, told without torch from what ``docs/catalogue.py`` wrote."""
    text = (resources.files("superformer") / "spaces" / "catalogue.json").read_text("utf-8")
    return dict(json.loads(text)[kind])
