"""Published weights that timm fetches. Where the Hub cannot be reached, what was fetched before is used at once, and
what was not is one clear line: its own client asks for a minute, and tells of every try."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from textwrap import shorten
from urllib.parse import urlsplit

from huggingface_hub import constants

from superformer.errors import SuperformerError

SECONDS = 3.0
"""That the Hub's address may take to be found."""


def reachable(address: str) -> bool:
    """Whether a host has an address here. Behind a proxy nobody knows."""
    parts = urlsplit(address)
    if parts.scheme in urllib.request.getproxies():
        return True
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(socket.getaddrinfo, parts.hostname, parts.port or 443).result(SECONDS)
    except (OSError, TimeoutError):
        return False
    finally:
        pool.shutdown(wait=False)
    return True


@contextmanager
def fetching(what: str, instead: str) -> Iterator[None]:
    """While timm fetches weights. ``instead``: what to do if that fails."""
    before, there = constants.HF_HUB_OFFLINE, reachable(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = before or not there
    try:
        yield
    except SuperformerError:
        raise
    except Exception as error:  # what a download may raise is the affair of several libraries
        why = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        if constants.HF_HUB_OFFLINE and isinstance(error, OSError):
            why = f"they are not on this machine, and {urlsplit(constants.ENDPOINT).hostname} cannot be reached"
        raise SuperformerError(f"{what} could not be loaded ({why}): {instead}") from error
    finally:
        constants.HF_HUB_OFFLINE = before
