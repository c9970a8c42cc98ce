"""The measurement of position schemes runs, and its table says what was measured."""

import json

import keras
import pytest

from benchmarks import position_cost

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="measures TensorFlow"
)


def test_runs(tmp_path, capsys):
    output = tmp_path / "cost.json"
    position_cost.main(["--quick", "--rounds", "2", "--output", str(output)])
    record = json.loads(output.read_text())
    assert "--quick --rounds 2" in record["command"]
    names = {"none", "relative", "sinusoidal_relative", "transformer_xl", "t5", "tupe", "deberta"}
    assert set(record["seconds"]) == names | {"rotary"}
    assert all(len(times) == 2 and min(times) > 0 for times in record["seconds"].values())
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith('| `"') for line in lines) == 8
    assert any(line.startswith('| `"none"` |') and line.endswith("| 1.00 |") for line in lines)
