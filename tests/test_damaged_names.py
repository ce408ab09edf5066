"""Damage inside the names of entries: keys of JSON files and of the metadata of weights, and the format of a config."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import pytest
from damage import Workshop
from damage_kinds import KINDS
from hypothesis import given
from hypothesis import strategies as st

import stablessm as ssm
from stablessm import ArgumentError, record

HARMS: dict[str, Callable[[bytearray, int, random.Random], bytes]] = {
    "flip": lambda content, at, rng: bytes([*content[:at], content[at] ^ 1 << rng.randrange(8), *content[at + 1 :]]),
    "upper": lambda content, at, rng: (
        bytes(content[:at]) + bytes(content[at : at + 1]).upper() + bytes(content[at + 1 :])
    ),
    "two": lambda content, at, rng: bytes(content[:at]) + b"zq" + bytes(content[at + 2 :]),
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("names"), KINDS)


def inside(content: bytes, name: bytes, rng: random.Random) -> int:
    """Return a random place inside a name; "two" needs two characters."""
    return content.index(b'"' + name) + 1 + rng.randrange(len(name) - 1)


CASES = [
    *(("layer", "config.json", name) for name in (b"checksum", b"format", b"stablessm layer", b"weights")),
    ("layer", "model.safetensors", b"sealed"),
    *(("Hugging Face folder", "checksums.json", name) for name in (b"checksum", b"config.json", b"model.safetensors")),
    ("sum", "sum.safetensors", b"sealed"),
]


@pytest.mark.parametrize(("kind", "file", "name"), CASES)
@pytest.mark.parametrize("harm", HARMS)
def test_damage_inside_a_name_is_named(workshop: Workshop, kind: str, file: str, name: bytes, harm: str) -> None:
    rng, whole = random.Random(f"{kind}{file}{name!r}{harm}"), workshop.whole(kind)
    reader = sorted(KINDS[kind].readers)[0]
    expected = workshop.expected(kind, reader)
    path = next(whole.rglob(file), None) or next(whole.rglob("*.safetensors"))
    folder = shutil.copytree(whole, workshop.root / f"copy of {kind}", dirs_exist_ok=True)
    for _ in range(6):
        copy, content = folder / path.relative_to(whole), path.read_bytes()
        copy.write_bytes(HARMS[harm](bytearray(content), inside(content, name, rng), rng))
        if copy.read_bytes() == content:
            continue
        outcome, said = workshop.outcome(kind, reader, folder, copy, expected)
        assert outcome == "refused", (copy.read_bytes()[:200], said)
        assert path.name in said.replace("\n", ""), said
    shutil.rmtree(folder)


@given(seed=st.integers(0, 10**9))
def test_a_damaged_config_of_a_layer_is_named(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("l")
    ssm.save(ssm.LRU(1, 2, 1), folder)
    config = folder / "config.json"
    content = config.read_bytes()
    at = rng.randrange(len(content) - 2)
    harms = [b"", content[:at], rng.randbytes(50), b"{}", b"[]", HARMS["flip"](bytearray(content), at, rng)]
    config.write_bytes(rng.choice(harms))
    with pytest.raises(ArgumentError, match=r"config\.json"):
        ssm.load(folder)


@given(names=st.dictionaries(st.text(max_size=9), st.sampled_from(["a" * 64, "x", 3])))
def test_files_without_a_checksum_are_read(names: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("w") / "w.json"
    names.pop("checksum", None)
    record.write_json(path, names, indent=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert record.read_json(path) == names


def test_a_list_of_checksums_must_fit_its_folder(workshop: Workshop, tmp_path: Path) -> None:
    from stablessm.models.hf_model import StableSSMForCausalLM

    whole = next(workshop.whole("Hugging Face folder").rglob("checksums.json")).parent
    digests = record.read_json(whole / "checksums.json")
    for change in ({"c0nfig.json": digests["config.json"]}, {"config.json": None}, {"model.safetensors": None}):
        folder = shutil.copytree(whole, tmp_path / "hf", dirs_exist_ok=True)
        changed = {name: digest for name, digest in {**digests, **change}.items() if digest is not None}
        record.write_json(folder / "checksums.json", changed, indent=None)
        with damage.quiet(), pytest.raises(ArgumentError, match=r"checksums\.json: expected a list of the files that"):
            StableSSMForCausalLM.from_pretrained(folder)
