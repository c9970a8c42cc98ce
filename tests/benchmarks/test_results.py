"""The committed tables say what the committed results give, and files of results are read as they were written."""

import keras
import pytest

from benchmarks import (
    attention_cost,
    everyday,
    generation,
    onnx_runtime,
    position_cost,
    pretraining_memory,
    records,
    report,
    starting,
    training_calls,
)

RESULTS = records.RESULTS
README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")


def test_every_line_is_an_object():
    files = sorted(RESULTS.glob("*.jsonl"))
    assert len(files) > 8 and not list(RESULTS.glob("*.json"))
    for path in files:
        record = records.read(path)
        assert len(record["results"]) > 5 and all(type(row) is dict for row in record["results"])
        for row in record["results"]:
            assert {**record, **row}["command"].startswith("python -m "), path


def test_tables_of_the_readme():
    tables = report.tables(records.read_parts(RESULTS / "libraries.jsonl"))
    assert len(tables) == 11
    for name, lines in tables.items():
        assert "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"]) in README, name


@pytest.mark.tensorflow("pretraining is TensorFlow")
def test_table_of_the_input():
    from benchmarks import pretraining_input

    record = records.read(RESULTS / "pretraining_input.jsonl")
    assert "\n".join(["", *pretraining_input.table(record), ""]) in README


@pytest.mark.parametrize(
    "name, module",
    [
        ("attention_cost", attention_cost),
        ("attention_cost_causal", attention_cost),
        ("generation", generation),
        ("generation_avx512", generation),
        ("position_cost", position_cost),
        ("pretraining_memory", pretraining_memory),
    ],
)
def test_report(name, module, tmp_path, monkeypatch):
    if module is pretraining_memory and keras.backend.backend() != "tensorflow":
        pytest.skip("pretraining is TensorFlow")
    monkeypatch.setattr(attention_cost, "draw", lambda record, path: None)
    path = RESULTS / f"{name}.jsonl"
    module.write(records.read(path), tmp_path / path.name)
    for ending in (".jsonl", ".md"):
        written = (tmp_path / path.name).with_suffix(ending).read_bytes()
        assert written == path.with_suffix(ending).read_bytes()


@pytest.mark.parametrize("module", [everyday, onnx_runtime, starting, training_calls])
def test_table_beside_the_results(module):
    files = sorted(RESULTS.glob(f"{module.__name__.split('.')[-1]}*.jsonl"))
    assert files
    for path in files:
        table = "\n".join(module.table(records.read(path)))
        assert path.with_suffix(".md").read_text(encoding="utf-8").endswith(f"\n{table}\n"), path


def test_parts_are_read_as_they_were_written(tmp_path):
    record = {
        "sizes": {"width": 8},
        "runs": {"step": {"seed": 0}, "load": {"seed": 1, "minutes": None}},
        "results": {"step": {"4 x 8": [0.1]}, "load": {}},
    }
    records.write_parts(tmp_path / "runs.jsonl", record)
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 3
    assert records.read_parts(tmp_path / "runs.jsonl") == record
