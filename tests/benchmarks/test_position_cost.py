"""The measurement of position schemes runs, and its table says what was measured."""

import pytest

from benchmarks import position_cost, records

pytestmark = pytest.mark.tensorflow("measures TensorFlow")


def test_runs(tmp_path, capsys):
    output = tmp_path / "cost.jsonl"
    position_cost.main(["--quick", "--rounds", "2", "--output", str(output)])
    record = records.read(output)
    assert "--quick --rounds 2" in record["command"]
    names = {"none", "relative", "sinusoidal_relative", "transformer_xl", "t5", "tupe", "deberta"}
    assert {result["position_scheme"] for result in record["results"]} == names | {"rotary"}
    for result in record["results"]:
        assert len(result["seconds"]) == 2 and min(result["seconds"]) > 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith('| `"') for line in lines) == 8
    assert any(line.startswith('| `"none"` |') and line.endswith("| 1.00 |") for line in lines)
