"""The package and its surroundings: the import path, lazy names, optional packages, telemetry, the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import stablessm
from stablessm import _current_folder, _lazy, _optional, _provenance, _telemetry

HOME = str(Path(stablessm.__file__).parents[1])


@pytest.mark.parametrize(
    ("first", "safe", "at_home", "left"),
    [
        ("", False, False, True), ("cwd", False, False, True), ("", True, False, False), ("cwd", True, False, False),
        ("other", False, False, False), ("cwd", False, True, False), (None, False, False, False),
    ],
)  # fmt: skip
def test_the_current_folder_leaves_the_path(first, safe, at_home, left, tmp_path, monkeypatch):
    monkeypatch.chdir(HOME if at_home else tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = [] if first is None else [{"cwd": os.getcwd()}.get(first, first), "second"]
    monkeypatch.setattr(sys, "path", list(before))
    monkeypatch.setattr(_current_folder, "sys", SimpleNamespace(path=sys.path, flags=SimpleNamespace(safe_path=safe)))
    _current_folder.leave()
    assert sys.path == (before[1:] if left else before)
    assert os.environ["PYTHONSAFEPATH"] == "1"
    monkeypatch.delenv("PYTHONSAFEPATH")


def test_the_current_folder_is_put_on_the_path_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["a"])
    _current_folder.use()
    _current_folder.use()
    assert sys.path == [os.getcwd(), "a"]


def test_lazy_names_are_modules_and_what_homes_have(tmp_path, monkeypatch):
    package = tmp_path / "lazy_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "home.py").write_text("offered = 1\nhidden = 2\n", encoding="utf-8")
    (package / "second.py").write_text("offered = 3\nlater = 4\n", encoding="utf-8")
    (package / "other.py").write_text("", encoding="utf-8")
    (package / "listed.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name, names, homes = package.name, ("offered", "later", "listed", "nowhere"), ("home", "second")
    for module in ("home", "listed"):
        assert _lazy.public(name, module, names, homes) is sys.modules[f"{name}.{module}"]
    assert _lazy.public(name, "offered", names, homes) == 1
    assert _lazy.public(name, "later", names, homes) == 4
    assert vars(sys.modules[name])["later"] == 4
    for missing in ("hidden", "other", "nowhere"):
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute '{missing}'"):
            _lazy.public(name, missing, names, homes)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)


def raised(code: str, name: str) -> BaseException:
    """The error of code that runs as (a function of) the module of that name."""
    namespace = {"__name__": name}
    try:
        exec(compile(code, "<module>", "exec"), namespace)
        namespace["function"]()
    except Exception as error:
        return error
    raise AssertionError


def test_a_failed_import_names_the_outermost_package_whose_body_ran():
    broken = "raise OSError('no .so')"
    assert _optional.import_failure(raised(broken, "scipy.linalg")).startswith("scipy cannot be imported (OSError: no")
    assert _optional.import_failure(raised(broken, "stablessm.layers")) is None
    assert _optional.import_failure(raised(broken, "__main__")) is None
    assert _optional.import_failure(raised(broken, "unknown_package")) is None
    assert _optional.import_failure(raised("def function():\n    raise OSError('no')", "scipy.linalg")) is None
    inner = "exec(compile(\"raise OSError('no')\", '<module>', 'exec'), {'__name__': 'numpy'})"
    assert _optional.import_failure(raised(inner, "scipy")).startswith("scipy ")
    assert _optional.import_failure(raised(inner, "stablessm")).startswith("numpy ")


def test_a_package_that_misses_another_is_not_called_missing():
    own, others = ModuleNotFoundError("no", name="scipy"), ModuleNotFoundError("no", name="other")
    assert _optional._reason("scipy", own).startswith("scipy is not installed (pip install")
    assert _optional._reason("scipy", ModuleNotFoundError("no")).startswith("scipy is not installed")
    assert _optional._reason("scipy", others).startswith("scipy cannot be imported (ModuleNotFoundError: no)")
    said = _optional._reason("scipy", OSError("a \n" * 1000))
    assert said.index("…") - said.index("OSError") == _optional._LONGEST - 1
    exact = "b" * (_optional._LONGEST - len("OSError: "))
    assert "…" not in _optional._reason("scipy", OSError(exact))


def test_the_answer_to_rays_question_is_read_from_the_home_or_the_named_file(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.delenv("RAY_USAGE_STATS_CONFIG_PATH", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    off = {"RAY_USAGE_STATS_ENABLED": "0"}
    assert _telemetry.ray() == off
    (tmp_path / ".ray").mkdir()
    answer = tmp_path / ".ray" / "config.json"
    answer.write_text(json.dumps({"usage_stats": True}), encoding="utf-8")
    assert _telemetry.ray() == {}
    monkeypatch.setenv("RAY_USAGE_STATS_CONFIG_PATH", str(tmp_path / "none.json"))
    assert _telemetry.ray() == off
    monkeypatch.delenv("RAY_USAGE_STATS_CONFIG_PATH")
    for damaged in ("{", "3", "{}"):
        answer.write_text(damaged, encoding="utf-8")
        assert _telemetry.ray() == off


class NoFile:
    def __init__(self, path: object) -> None:
        pass

    def read_text(self, **_: object) -> str:
        raise OSError


@pytest.mark.parametrize(
    ("system", "processor", "expected"),
    [("Darwin", "arm", "the brand"), ("Windows", "Intel64", "Intel64"), ("FreeBSD", "", "amd64")],
)
def test_the_name_of_the_processor(system, processor, expected, monkeypatch):
    monkeypatch.setattr(_provenance, "Path", NoFile)
    answers = {"system": system, "processor": processor, "machine": "amd64"}
    monkeypatch.setattr(
        _provenance, "platform", SimpleNamespace(**{name: lambda text=text: text for name, text in answers.items()})
    )
    asked = []
    monkeypatch.setattr(_provenance, "_run", lambda *command: asked.append(command) or "the brand")
    assert _provenance.cpu_model() == expected
    assert asked == ([("sysctl", "-n", "machdep.cpu.brand_string")] if system == "Darwin" else [])


def test_a_processor_that_linux_names(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Good: Processor \nmodel name\t: second\n"
    monkeypatch.setattr(_provenance, "Path", lambda path: SimpleNamespace(read_text=lambda **_: text))
    assert _provenance.cpu_model() == "Good: Processor"


def test_the_machine_is_that_of_the_process(monkeypatch):
    facts = _provenance.hardware()
    assert facts["machine"] == platform.machine()
    assert facts["cores"] == os.cpu_count()
    assert facts["threads"] == sys.modules["torch"].get_num_threads()
    monkeypatch.delitem(sys.modules, "torch")
    assert _provenance.hardware() | {"cpu": ""} == facts | {"threads": None, "gpu": None, "cpu": ""}


def test_the_commit_that_the_environment_names_counts(monkeypatch):
    monkeypatch.setenv("STABLESSM_COMMIT", "abc")
    assert _provenance.commit() == "abc"
    monkeypatch.delenv("STABLESSM_COMMIT")
    monkeypatch.setattr(_provenance, "BUILD", "no such file")
    for changes, expected in (("", "f00"), (" M a", "f00+")):
        answers = {"rev-parse": "f00", "status": changes}
        monkeypatch.setattr(_provenance, "_git", lambda folder, verb, *_, said=answers: said.get(verb))
        assert _provenance.commit() == expected


def test_the_hubs_libraries_and_no_others_are_imported_without_telemetry(monkeypatch):
    for name in _telemetry._HUB:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_optional, "importlib", SimpleNamespace(import_module=lambda package: package))
    assert _optional._imported("scipy") == "scipy"
    assert not any(name in os.environ for name in _telemetry._HUB)
    assert _optional._imported("transformers") == "transformers"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY")


@pytest.mark.skipif(os.name == "nt", reason="descriptors are closed by a POSIX shell")
@pytest.mark.parametrize(
    ("surroundings", "code", "expected"),
    [
        ("list >&-", 0, ""),
        ("list 2>&-", 0, "verdicts"),
        ("list >&- 2>&- <&-", 0, ""),
        ("list >/dev/full", 1, "No space left on device"),
        ("list | head -c 1", 0, "I"),
        ("train --help", 0, "progress"),
    ],
)
def test_a_command_ends_well_with_any_streams(surroundings, code, expected, tmp_path):
    if "full" in surroundings and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    run = f"{sys.executable} -P -c 'from stablessm.__main__ import main; main()' {surroundings}"
    environment = os.environ | {"PYTHONPATH": HOME, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(run, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code
    assert expected in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.skipif(os.name == "nt", reason="Windows does not delete the current folder")
def test_a_deleted_current_folder_is_named(tmp_path):
    run = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} -c 'from stablessm.__main__ import main; main()' list"
    environment = os.environ | {"PYTHONPATH": HOME}
    done = subprocess.run(run, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the current folder was deleted; change to another folder\n")
