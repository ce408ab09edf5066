"""Without a network, a name that is no folder fails within seconds; downloaded models are still found."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2Model

from stablessm import ArgumentError, _hub
from stablessm.cli import model_source
from stablessm.tasks import sources

PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def silent(*_: object) -> None:
    time.sleep(5)
    raise TimeoutError


@pytest.fixture(params=["no such host", "refused", "silent", "offline"])
def network(request, monkeypatch):
    """An address that does not answer, in one of several ways."""
    if request.param == "no such host":
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    elif request.param == "refused":
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    elif request.param == "silent":
        monkeypatch.setattr(_hub, "_LONGEST", 0.2)
        monkeypatch.setattr(socket, "create_connection", silent)
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", ["gru-typo", "nobody/gru-typo"])
def test_an_unknown_name_fails_soon_and_says_why(name, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = time.process_time(), time.monotonic()
    with pytest.raises(ArgumentError, match=r"MODEL: .*no such folder.*not downloaded before, and ") as caught:
        model_source.load_model(name)
    with pytest.raises(ArgumentError, match="--words: "):
        model_source.load_tokenizer(name, "--words")
    waited = time.monotonic() - begun[1] - (time.process_time() - begun[0])
    assert waited < 8, caught.value


def test_a_similar_folder_is_suggested(network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-gru").mkdir()
    with pytest.raises(ArgumentError, match="did you mean my-gru"):
        model_source.load_model("my-gro")


def test_a_downloaded_model_is_found(network, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = tmp_path / "models--someone--small" / "snapshots" / "0123456789012345678901234567890123456789"
    (refs := tmp_path / "models--someone--small" / "refs").mkdir(parents=True)
    (refs / "main").write_text(commit.name, encoding="utf-8")
    model = GPT2Model(GPT2Config(vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=1))
    model.save_pretrained(commit)
    found, _ = model_source.load_model("someone/small")
    assert torch.equal(found.wte.weight, model.wte.weight)
    assert not constants.HF_HUB_OFFLINE  # for the next call, which may find a network


def test_a_proxy_or_an_answer_is_not_refused(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=server.accept, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert _hub.unreachable() == ""
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    assert "hub.invalid cannot be reached" in _hub.unreachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    assert _hub.unreachable() == ""


@pytest.mark.parametrize(("endpoint", "port"), [("http://hub", 80), ("https://hub", 443), ("http://hub:8080", 8080)])
def test_the_hub_is_asked_at_its_port(endpoint, port, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    asked = []
    monkeypatch.setattr(_hub, "_connect", lambda host, port, said: asked.append((host, port)))
    _hub.unreachable()
    assert asked == [("hub", port)]


def test_a_file_of_a_data_set_fails_soon(network):
    begun = time.process_time(), time.monotonic()
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: .*cannot be loaded \("):
        sources.file_from_hub("someone/data", "file.csv", "file.csv")
    assert time.monotonic() - begun[1] - (time.process_time() - begun[0]) < 5
