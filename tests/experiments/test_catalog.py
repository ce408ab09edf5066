"""Every experiment at its smoke size: it runs, says what it found and draws it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import get_args

import pytest
import smoke_numbers

from stablessm import ArgumentError, record
from stablessm.experiments import catalog
from stablessm.experiments.frame import described
from stablessm.experiments.frame.base import Size, execute
from stablessm.experiments.listing import judged_size
from stablessm.report.figure import Figure

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("id", catalog.IDS)
def test_smoke(id, tmp_path, monkeypatch):
    monkeypatch.delenv("STABLESSM_DATA", raising=False)  # the pinned numbers are those without data sets
    drawn = []  # without the layout, which takes longer than to run
    monkeypatch.setattr(Figure, "save_pictures", lambda figure, _: drawn.append(figure.draw()))
    experiment = catalog.get(id)
    folder, cached = execute(experiment, "smoke", tmp_path, progress=False)
    assert not cached
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert record["id"] == experiment.id == id
    assert record["claims"]
    for claim in record["claims"]:
        assert claim["verdict"] == ""  # too small to judge
        assert all(claim[key].strip() for key in ("statement", "paper", "ours", "why"))
    assert 0 < len(record["figures"]) == len(drawn)
    for name in record["figures"]:
        assert Figure.load(folder / f"{name}.json").panels
    assert record["arrays"]
    pinned = json.loads(smoke_numbers.PATH.read_text(encoding="utf-8"))[id]
    assert not smoke_numbers.differences(smoke_numbers.numbers(folder), pinned), "meant? python tests/smoke_numbers.py"


@pytest.mark.parametrize("id", catalog.IDS)
def test_the_committed_record_has_the_present_settings(id):
    (path,) = (ROOT / "results" / id).rglob("record.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["id"], content["size"]) == (id, path.parent.name)
    assert content["size"] != "smoke"
    assert content["config"] == json.loads(json.dumps(record.plain(asdict(catalog.get(id).configs[content["size"]]))))


@pytest.mark.slow
@pytest.mark.parametrize("id", catalog.IDS)
def test_the_same_run_again_gives_the_same_bits(id, tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "save_pictures", lambda *_: None)
    runs = [execute(catalog.get(id), "smoke", tmp_path / name, progress=False)[0] for name in ("a", "b")]
    timed = ("record.json", "stages.json")
    first, second = ({path.name: path.read_bytes() for path in run.glob("*.json*")} for run in runs)
    assert first.keys() == second.keys()
    assert [name for name in first if name not in timed and first[name] != second[name]] == []


@pytest.mark.parametrize("id", catalog.IDS)
def test_description(id):
    experiment = catalog.get(id)
    text = experiment.readme.read_text(encoding="utf-8")
    assert text.startswith(f"# {id}:")
    assert "**Question.**" in text
    assert "**Claim**" in text
    assert set(experiment.configs) == set(experiment.minutes)
    assert {"smoke", judged_size(experiment.configs)} <= set(experiment.configs) <= set(get_args(Size))
    assert 0 < experiment.minutes["smoke"] <= 0.25
    assert experiment.minutes["smoke"] < experiment.minutes[judged_size(experiment.configs)]
    for config in experiment.configs.values():
        assert is_dataclass(config)
        assert type(config).__dataclass_params__.frozen
        assert fields(config)


@pytest.mark.parametrize("end", ["", "\n", "\n\n**Limits.** One seed.\n"])
def test_a_description_may_end_with_the_claim(end, tmp_path):
    text = "# own-study: A title\n\n**Question.** Which?\n\n**Claim** (beyond the papers). The\nfirst."
    (tmp_path / "README.md").write_text(text + end, encoding="utf-8")
    found = described(str(tmp_path / "experiment.py"), print, print, print, smoke=1, minutes=(0.1,))
    assert (found.id, found.source, found.claim) == ("own-study", "beyond the papers", "The first.")


def test_experiments_that_a_sweep_can_split_have_jobs():
    split = {id for id in catalog.IDS if catalog.get(id).jobs is not None}
    figures = ("fig1", "fig4", "fig5", "fig6", "rates", "table2", "table3", "table4", "table5", "table6")
    others = {"ext-approximation", "ext-gated", "ext-language", "ext-nonlinear", "ia-epochs", "ia-families"}
    assert split == others | {f"st-{name}" for name in figures}


def test_unknown_ids_are_refused():
    with pytest.raises(ArgumentError, match=r"ID: expected an id that stablessm list shows.*did you mean"):
        catalog.get("ia-fig99")


def test_an_experiment_of_another_package_is_found_by_entry_point(tmp_path, monkeypatch):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", encoding="utf-8")
    place = "stablessm.experiments.demo.experiment"
    text = f"[{catalog.GROUP}]\nmy-study = {place}:EXPERIMENT\nbad = {place}:run\nworse = {place}:NOTHING\n"
    (folder / "entry_points.txt").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert catalog.get("my-study").id == "demo"
    assert catalog.ids() == [*catalog.IDS, "bad", "my-study", "worse"]
    with pytest.raises(ArgumentError, match=r"of an Experiment, got 'bad = .*a function"):
        catalog.get("bad")
    with pytest.raises(ArgumentError, match=r"both of which exist, got 'worse = .*NOTHING"):
        catalog.get("worse")
