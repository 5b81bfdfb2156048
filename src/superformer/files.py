"""Files are written whole or not at all: under a temporary name, flushed to the disk, then renamed. What is written
with a checksum is read with it: a JSON object has it as a member, a line of JSON a short one, a text as its last line.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any

from safetensors import SafetensorError

from superformer.errors import StoppedError, SuperformerError

PARTIAL, CONFIG = ".partial", "config.json"
"""What unfinished files end in, and by which a folder with a network is known."""
CHECKSUM, LAST_LINE, SHORT = "checksum", "# checksum: ", 8
"""The member of an object, how the last line of a text begins, and the digits that a line has."""


class DamagedError(SuperformerError):
    """A file that is not as it was written; the message names it and says what to do."""


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


# --- what is read ---


@contextmanager
def readable(path: Path, how: str) -> Iterator[None]:
    """Turn what keeps a file from being read into errors that name it. ``how``: what to do if it is damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing: {how}") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        what = "a folder lies where a file should be" if path.is_dir() else "a file lies where its folder should be"
        raise DamagedError(f"{path} cannot be read ({what}): {how}") from error
    except OSError as error:
        raise StoppedError(f"{path} cannot be read: {error.strerror or error}") from error


def read(path: Path, how: str) -> str:
    """The text of a file."""
    with readable(path, how):
        data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} is damaged (it is not text in UTF-8): {how}") from error


@contextmanager
def understood(path: Path, how: str) -> Iterator[None]:
    """What fails in making something of a file's content, of whatever kind, is an error that names the file."""
    try:
        yield
    except (DamagedError, StoppedError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        why = (str(error) or type(error).__name__).strip().splitlines()[0][:300]
        raise DamagedError(f"{path} makes no sense ({why}): {how}") from error


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def checksum(content: Mapping[str, Any]) -> str:
    """Of a JSON object, whatever the order of its members and the spaces between them."""
    return digest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def write_object(path: Path, content: Mapping[str, Any], allow_nan: bool = True) -> None:
    """Write a JSON object with its checksum."""
    plain = json.loads(json.dumps(dict(content), allow_nan=allow_nan))  # as it will be read
    write(path, json.dumps({**plain, CHECKSUM: checksum(plain)}, indent=1) + "\n")


def read_object(path: Path, how: str, form: object = None, *, sealed: bool = False) -> dict[str, Any]:
    """A JSON object without its checksum, which must be right, and of a form (`has_form`). ``sealed``: it must have a
    checksum; so must one that says of which format it is."""
    found = _parsed(read(path, how), f"{path}", how)
    given = found.pop(CHECKSUM, None)
    if given is None and (sealed or "format" in found):
        raise DamagedError(f"{path} is damaged (its checksum is gone): {how}")
    if given is not None and given != checksum(found):
        raise DamagedError(f"{path} is not as it was written (its checksum differs): {how}")
    if form is not None and not has_form(found, form):
        raise DamagedError(f"{path} does not hold what superformer writes there: {how}")
    return found


def _parsed(text: str, what: str, how: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{what} is damaged ({error or type(error).__name__}): {how}") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{what} is damaged (it is no JSON object): {how}")
    return found


def has_form(value: object, form: object) -> bool:
    """Whether a value of JSON has a form: a kind (``int | None``), a list of one form, or members that it must have."""
    if isinstance(form, dict):
        return isinstance(value, dict) and all(k in value and has_form(value[k], own) for k, own in form.items())
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(v, form[0]) for v in value)
    assert isinstance(form, type | UnionType)
    return isinstance(value, form) and not isinstance(value, bool)


def line(content: Mapping[str, Any]) -> str:
    """A JSON object as a line with its checksum."""
    plain = json.loads(json.dumps(dict(content)))
    return json.dumps({**plain, CHECKSUM: checksum(plain)[:SHORT]}) + "\n"


def read_lines(
    path: Path, how: str, form: object = None, *, sealed: bool = False, damaged: list[int] | None = None
) -> list[dict[str, Any]]:
    """The JSON objects of a file of `line`, if there is one. What is after the last end of a line was cut off, and is
    left out; a line that is damaged is an error, or left out and its number added to ``damaged``."""
    out = []
    for number, text in enumerate(read(path, how).split("\n")[:-1] if path.exists() else (), 1):
        what = f"line {number} of {path}"
        try:
            found = _parsed(text, what, how)
            given = found.pop(CHECKSUM, None)
            right = given == checksum(found)[:SHORT] if given is not None else not sealed
            if not right or (form is not None and not has_form(found, form)):
                raise DamagedError(f"{what} is not as it was written: {how}")
            out.append(found)
        except DamagedError:
            if damaged is None:
                raise
            damaged.append(number)
    return out


def seal(text: str) -> str:
    """A text with its checksum in a last line, a comment."""
    return f"{text}{LAST_LINE}{digest(text.encode())}\n"


def unseal(text: str, path: Path, how: str, *, sealed: bool = False) -> str:
    """The text without the last line of `seal`, which must be right; without ``sealed`` it need not be there."""
    body, mark, given = text.rpartition(LAST_LINE)
    if not mark and sealed:
        raise DamagedError(f"{path} is damaged (the checksum in its last line is gone): {how}")
    if mark and given != digest(body.encode()) + "\n":
        raise DamagedError(f"{path} is not as it was written (its checksum differs): {how}")
    return body if mark else text


@functools.cache
def catalogue(kind: str) -> Mapping[str, Any]:
    """The published ``spaces`` or ``models`` by name, told without torch from what ``docs/catalogue.py`` wrote."""
    text = (resources.files("superformer") / "spaces" / "catalogue.json").read_text("utf-8")
    return dict(json.loads(text)[kind])
