from __future__ import annotations

import json

import numpy as np
import pytest

from stablessm.experiments.compare import differences, main


def run_folder(path, values, ours="1.0", verdict="reproduced"):
    path.mkdir()
    np.savez(path / "stage.npz", values=np.array(values), count=np.array(3))
    claim = {"statement": "it holds", "ours": ours, "verdict": verdict}
    (path / "record.json").write_text(json.dumps({"claims": [claim]}), encoding="utf-8")
    return path


def test_differences_are_found_and_small_ones_can_be_allowed(tmp_path, capsys):
    a = run_folder(tmp_path / "a", [1.0, np.nan, np.inf])
    assert differences(a, run_folder(tmp_path / "b", [1.0, np.nan, np.inf])) == []
    c = run_folder(tmp_path / "c", [1.0 + 1e-9, np.nan, np.inf], ours="1.1")
    assert [line.split(":")[0] for line in differences(a, c)] == ["stage.npz", "claim 'it holds'"]
    assert differences(a, c, rtol=1e-8) == []
    assert differences(a, run_folder(tmp_path / "d", [1.0, 2.0, np.inf], verdict="partly"), rtol=1e-3)
    with pytest.raises(SystemExit) as ended:
        main([str(a), str(c)])
    assert ended.value.code == 1
    assert "relative difference 1e-09" in capsys.readouterr().out
