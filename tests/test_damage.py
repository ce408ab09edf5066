"""Damaged, swapped and hostile files, full and read-only disks: named errors, no silent change, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import damage
import damage_disks
import numpy as np
import pytest
import torch
from damage import ESCAPE, Workshop, command
from damage_kinds import KINDS, train
from safetensors.torch import load_file, save_file

import stablessm as ssm
from stablessm import ArgumentError, _tensors, record

QUICK = ("layer", "model", "gated models", "sum", "curves", "token cache", "benchmark record", "checkpoint in shards")
SLOWER = ("training", "interrupted training", "replicas", "forecast", "begun experiment", "sweep")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the damage is done by POSIX calls")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("damage"), KINDS)


@pytest.mark.parametrize(("kind", "members"), [*((kind, 12) for kind in QUICK), *((kind, 3) for kind in SLOWER)])
def test_damage_is_named_or_does_not_matter(workshop: Workshop, kind: str, members: int) -> None:
    found = [workshop.member(kind, number, seed=1) for number in range(members)]
    assert [member for member in found if member.outcome not in damage.GOOD] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage_is_named_or_does_not_matter(workshop: Workshop, kind: str) -> None:
    found = [workshop.member(kind, number, seed=2) for number in range(40)]
    assert [member for member in found if member.outcome not in damage.GOOD] == []


@pytest.mark.parametrize("kind", ["interrupted training", "replicas", "begun experiment"])
def test_links_out_of_a_folder_are_neither_read_nor_written(workshop: Workshop, kind: str) -> None:
    """Each JSON file in turn is a link; what a resumed run writes must not contain its target, or change it."""
    reader = sorted(KINDS[kind].readers)[0]
    expected, whole = workshop.expected(kind, reader), workshop.whole(kind)
    files = {p.relative_to(whole) for part in KINDS[kind].parts for p in whole.glob(part)}
    for file in sorted(file for file in files if file.suffix in (".json", ".jsonl")):
        folder = workshop.damaged(kind, file, "link")
        target = (folder / file).readlink()
        before = target.read_text(encoding="utf-8")
        assert workshop.outcome(kind, reader, folder, folder / file, expected)[0] in damage.GOOD, file
        written = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in written if damage.SECRET.encode() in path.read_bytes()], file
        assert target.read_text(encoding="utf-8") == before


# weights


def flip(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["layer", "model"])
def test_a_bit_of_the_weights_counts(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    folder = shutil.copytree(workshop.whole(kind), tmp_path / "model")
    flip(folder / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"model\.safetensors: expected .* its checksum\. Restore it"):
        ssm.load(folder)


@pytest.mark.parametrize("harm", [flip, Path.unlink])
def test_damaged_weights_of_a_run_are_never_scored(
    workshop: Workshop, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    before = (folder / "record.json").read_bytes()
    harm(folder / "model" / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"model\.safetensors: expected .* --last-good, .* Restore it"):
        ssm.load(folder / "model")
    for again in (
        lambda: command("eval", folder),
        lambda: command("predict", folder),
        lambda: train(workshop.root / "training-0", folder),
    ):
        with pytest.raises(damage.RefusedError, match="--last-good"):
            again()
    assert (folder / "record.json").read_bytes() == before
    train(workshop.root / "training-0", folder, 0, "--last-good")
    assert json.loads(command("eval", folder, "--json"))["loss"] == pytest.approx(
        record.read_json(folder / "record.json")["results"]["scores"]["test"]["loss"], rel=1e-6
    )


@pytest.mark.parametrize("kind", ["training", "forecast", "language"])
def test_weights_of_another_run_are_never_scored(workshop: Workshop, kind: str) -> None:
    never = ("report", "extend")  # they show the scores of the record, and train until better weights replace these
    readers = [name for name in KINDS[kind].readers if name not in never]
    for reader in readers:
        folder = workshop.damaged(kind, Path("model") / "model.safetensors", "swap folder")
        weights = folder / "model" / "model.safetensors"
        outcome, text = workshop.outcome(kind, reader, folder, weights, None)
        assert (outcome, "weights of another model" in text) == ("refused", True), (reader, text)
    if kind == "training":
        train(workshop.whole(kind), folder, 0, "--last-good")
        assert ssm.load(folder / "model").state_dict().keys()


def test_a_run_that_is_being_extended_may_have_other_weights_than_its_record(
    workshop: Workshop, tmp_path: Path
) -> None:
    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    settings = record.read_json(folder / "training.json")
    record.write_json(folder / "training.json", settings | {"steps": 8})
    for path in (workshop.whole("training", 1) / "model").iterdir():
        shutil.copyfile(path, folder / "model" / path.name)
    assert command("eval", folder, "--json")


@pytest.mark.parametrize("kind", ["training", "interrupted training"])
def test_damaged_metrics_are_reported_and_block_nothing(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    from stablessm.report.runs import collect

    folder = shutil.copytree(workshop.whole(kind), tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"loss": 0.', '"loss": 1.', 1), encoding="utf-8")
    if kind == "training":
        assert "metrics.jsonl: expected the file that was written" in str(collect([folder]).problems[0].reason)
    with damage.quiet() as said:
        train(workshop.whole(kind), folder)
    assert f"{path}: metrics.jsonl is damaged" in said.getvalue()
    with damage.quiet() as said:
        train(workshop.whole(kind), folder)
    assert collect([folder]).problems == ()


@pytest.mark.parametrize("key", ["step", "loss"])
def test_a_number_that_no_float_can_hold_is_damage(workshop: Workshop, tmp_path: Path, key: str) -> None:
    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    path = folder / "metrics.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines()
    row = json.dumps(json.loads(first) | {key: 10**400})
    path.write_text("\n".join([row, *others, ""]), encoding="utf-8")
    with damage.quiet() as said:
        assert "finished" in command("status", "--out", folder)
    assert f"{path}: 1 damaged lines are left out" in said.getvalue().replace("\n", "")
    assert np.isnan(record.number(10**400))


def test_tensors_of_any_layout_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor([1 + 2j]), "c": torch.zeros(0)}
    tensors["d"] = tensors["a"]
    seal = _tensors.save(tmp_path / "x.safetensors", _tensors.packed(tensors), "text")
    text, found, again = _tensors.load(tmp_path / "x.safetensors")
    assert (text, again, _tensors.header(tmp_path / "x.safetensors")[1]) == ("text", seal, seal)
    assert _tensors.header(tmp_path / "x.safetensors")[0] == {name: tuple(t.shape) for name, t in tensors.items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_run_that_is_killed_while_it_saves_a_model_keeps_one(tmp_path: Path) -> None:
    """Whichever write is the last, the folder holds the old model or the new one."""
    one, two = ssm.LRU(1, 2, 1), ssm.LRU(1, 2, 1)
    for writes in range(4):
        folder = tmp_path / str(writes)
        ssm.save(one, folder)
        left = [writes]

        def replace(source: object, target: object, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            os.rename(source, target)  # type: ignore[arg-type]

        with mock.patch.object(os, "replace", replace):
            try:
                ssm.save(two, folder)
            except KeyboardInterrupt:
                assert writes < 3
        expected = one if writes < 2 else two
        assert torch.equal(ssm.load(folder).B, expected.B)


def test_a_model_loads_while_another_process_saves(tmp_path: Path) -> None:
    """Whenever the other process saves: the loaded model is the old one or the new one."""
    models = [ssm.LRU(1, 2, 1) for _ in range(3)]
    ssm.save(models[0], tmp_path)
    left, header = models[1:], _tensors.header

    def saving(*arguments: object) -> object:  # after the config has been read
        if left:
            ssm.save(left.pop(), tmp_path)
        return header(*arguments)  # type: ignore[arg-type]

    with mock.patch.object(_tensors, "header", saving):
        assert torch.equal(ssm.load(tmp_path).B, models[1].B)
    assert not left


def test_files_of_earlier_versions_load_without_a_word(workshop: Workshop, tmp_path: Path) -> None:
    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    weights = folder / "model" / "model.safetensors"
    save_file(load_file(weights), weights)
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        for key in ("checksum", "weights", "files"):
            content.pop(key, None)
        path.write_text(json.dumps(content), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ssm.load(folder / "model")
    assert command("eval", folder, "--json") == command("eval", workshop.whole("training"), "--json")
    from stablessm.report.runs import collect

    assert collect([folder]).problems == ()


def test_weights_that_are_not_finite_are_reported(tmp_path: Path) -> None:
    layer = ssm.RealSSM(1, 3, 1)
    torch.nn.init.constant_(layer.w, torch.nan)
    ssm.save(layer, tmp_path)
    with pytest.warns(UserWarning, match=r"model\.safetensors: NaN or infinite values in w;"):
        ssm.load(tmp_path)


def test_outputs_that_are_not_numbers_have_no_score() -> None:
    task = ssm.tasks.get("arrays", inputs=torch.randn(40, 3, 1), targets=torch.zeros(40, dtype=torch.int64))
    model = ssm.SequenceClassifier(2, d_input=1, d_model=4, n_layers=1, d_state=2)
    assert ssm.training.evaluate(model, task)["accuracy"] >= 0
    torch.nn.init.constant_(next(model.parameters()), torch.nan)
    scores = ssm.training.evaluate(model, task)
    assert np.isnan([scores["loss"], scores["accuracy"]]).all()


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *((kind, option) for kind in ("layer", "dense") for option in ("d_state", "d_input")),
        *(("model", option) for option in ("d_state", "n_layers", "mlp", "size")),
    ],
)
@pytest.mark.parametrize("size", [10**6, 10**12, 10**30])
def test_absurd_sizes_are_refused_before_memory_is_taken(
    workshop: Workshop, tmp_path: Path, kind: str, option: str, size: int
) -> None:
    import resource  # not on Windows

    folder = tmp_path / "model"
    if kind == "dense":
        ssm.save(ssm.ContinuousRNN(1, 3, 2, recurrence="dense", map="neg_exp"), folder)
    else:
        shutil.copytree(workshop.whole(kind), folder)
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    content["options"][option] = size
    del content["checksum"]
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArgumentError, match=r"config\.json: expected"):
        ssm.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


# disks


@pytest.mark.parametrize("fault", damage_disks.FAULTS)
@pytest.mark.parametrize("name", ["train", "run"])
def test_a_disk_that_fails_is_a_named_error_and_the_same_command_resumes(tmp_path: Path, name: str, fault: str) -> None:
    member = damage_disks.member(tmp_path, name, fault, 0, seed=1)
    assert member.outcome in damage.GOOD, member


@pytest.mark.slow
@pytest.mark.parametrize("fault", damage_disks.FAULTS)
@pytest.mark.parametrize("name", damage_disks.COMMANDS)
def test_disks_fail_at_any_time(tmp_path: Path, name: str, fault: str) -> None:
    found = [damage_disks.member(tmp_path, name, fault, number, seed=2) for number in range(5)]
    assert [member for member in found if member.outcome not in damage.GOOD] == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_database_that_cannot_be_written_is_named(workshop: Workshop, tmp_path: Path, begun: bool) -> None:
    folder = tmp_path / "run"
    if begun:
        shutil.copytree(workshop.whole("search"), folder)
    with (
        damage_disks.small_files(tmp_path, mock.Mock(choice=lambda sizes: 0)),
        pytest.raises(damage.RefusedError, match=r"(?s)free some space or choose a folder.*search\.db"),
    ):
        KINDS["search"].readers["resume"](folder)


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with (
        pytest.raises(PermissionError, match=r"choose a folder that can be written to: '.*a\.json'"),
        mock.patch.object(os, "replace", side_effect=PermissionError(errno.EACCES, "denied", str(tmp_path / "x"))),
    ):
        record.write_json(tmp_path / "a.json", {})
    with pytest.raises(FileNotFoundError, match=r"directory: '/nowhere'"), record.atomic(tmp_path / "a.json"):
        Path("/nowhere").read_bytes()
    assert os.listdir(tmp_path) == []


def test_files_reach_the_disk_before_they_get_their_name(tmp_path: Path) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))[:3])
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        done.append("renamed")
        rename(source, target)

    if not sys.platform.startswith("linux"):
        pytest.skip("names of open files are in /proc")
    with mock.patch.object(os, "fsync", fsync), mock.patch.object(os, "replace", replace):
        record.write_json(tmp_path / "a.json", {})
    assert done == [".a-", "renamed", tmp_path.name[:3]]


# folders of others


@pytest.mark.parametrize("name", ["record.json", "metrics.jsonl"])
def test_a_report_follows_no_links_out_of_its_folders(workshop: Workshop, tmp_path: Path, name: str) -> None:
    from stablessm.report.runs import collect

    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    secret = tmp_path / "secret"
    shutil.move(folder / name, secret)
    (folder / name).symlink_to(secret)
    found = collect([folder])
    assert "a symbolic link to" in str(found.problems)
    assert all(file.name != name for run in found.runs for file in run.files)


@pytest.mark.parametrize("name", ["model", "checkpoints", "metrics.jsonl"])
def test_a_training_follows_no_links_out_of_its_folder(workshop: Workshop, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(workshop.whole("training"), tmp_path / "run")
    shutil.move(folder / name, tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(damage.RefusedError, match="symbolic link"):
        train(workshop.whole("training"), folder)


def test_texts_of_records_are_no_commands_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stablessm.cli import tables
    from stablessm.cli.run import show_claims

    claim = dict.fromkeys(("statement", "paper", "ours", "verdict"), ESCAPE)
    facts = {"id": ESCAPE, "source": ESCAPE, "size": "smoke", "wall_time_s": 1.0, "claims": [claim]}
    record.write_json(tmp_path / "record.json", facts)
    show_claims(tmp_path, cached=False)
    tables.show(("value", "text"), [(np.float64(0.5), ESCAPE)], title=ESCAPE)
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "\\x1b[2J" in shown
    assert "\x1b" not in str(ArgumentError(ESCAPE, ESCAPE, ESCAPE))
