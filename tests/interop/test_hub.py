"""Published weights where there is no network."""

from __future__ import annotations

import socket
import time

import pytest
from huggingface_hub import constants

import superformer as sf
from superformer.interop import hub
from superformer.recipes.settings import Start
from superformer.train.pretrained import from_timm_settings
from superformer.transfer.networks import backbone


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """A machine that finds no host, and has fetched nothing."""

    def nobody(*args: object, **words: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_no_network_is_told_at_once(alone, caplog) -> None:
    start = time.monotonic()
    with pytest.raises(
        sf.SuperformerError, match=r"weights of vit_tiny_patch16_224 could not .* give a file of weights"
    ):
        from_timm_settings(Start(timm="vit_tiny_patch16_224"))
    with pytest.raises(sf.SuperformerError, match=r"weights of resnet18 could not .* \(--checkpoint FILE"):
        backbone("resnet18", pretrained=True)
    assert time.monotonic() - start < 30  # the Hub's own client tries for a minute
    assert "Retry" not in caplog.text
    assert constants.HF_HUB_OFFLINE is False


def test_a_proxy_finds_the_hub(alone, monkeypatch) -> None:
    assert not hub.reachable("https://example.org")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert hub.reachable("https://example.org")


def test_a_slow_search_for_the_address_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(hub, "SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: time.sleep(0.5))
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    assert not hub.reachable("https://example.org")
