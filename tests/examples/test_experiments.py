"""What the experiments share: finished runs are kept and not run again; tables and pictures are made of them."""

import importlib
import json
import lzma

import pytest


@pytest.fixture
def shared(examples):
    return importlib.import_module("experiments")


def test_a_finished_run_is_kept_and_not_run_again(shared, tmp_path, capsys):
    results = shared.Results(tmp_path / "results")
    calls = []

    def compute():
        calls.append(1)
        return {"loss": [3.0, 2.0], "accuracy": 0.5}

    record = results.run("a-0", {"seed": 0, "sizes": (1, 2)}, compute)
    assert record["result"] == {"loss": [3.0, 2.0], "accuracy": 0.5}
    assert record["settings"] == {"seed": 0, "sizes": [1, 2]}
    assert set(record["versions"]) == set(shared.PACKAGES) and record["seconds"] >= 0
    # a list of numbers is on one line
    assert '"loss": [ 3.0, 2.0 ]' in (tmp_path / "results" / "a-0.json").read_text()

    assert results.run("a-0", {"seed": 0, "sizes": (1, 2)}, compute) == record
    assert len(calls) == 1
    with pytest.raises(SystemExit, match=r"other settings \(seed was 0, is 1\)"):
        results.run("a-0", {"seed": 1, "sizes": (1, 2)}, compute)
    results.run("a-1", {"seed": 1, "sizes": (1, 2)}, compute)
    assert [record["name"] for record in results.all()] == ["a-0", "a-1"]
    assert list(results.grouped("seed")) == [0, 1]
    assert list(results.grouped("seed", "seed")) == [(0, 0), (1, 1)]


def test_a_run_is_of_one_model(shared, tmp_path):
    """Models of one name that were trained anew are not taken for each other."""
    model, results = tmp_path / "model", shared.Results(tmp_path / "results")
    model.mkdir()
    (model / "vocab.txt").write_text("a\n", encoding="utf-8")
    (model / "checkpoint").write_text("a path, which says nothing", encoding="utf-8")
    first = results.run("one", {}, lambda: {"value": 1}, model=model)
    (model / "checkpoint").write_text("another path", encoding="utf-8")
    assert results.run("one", {}, lambda: {"value": 2}, model=model) == first
    (model / "vocab.txt").write_text("b\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="of a run with another model"):
        results.run("one", {}, lambda: {"value": 2}, model=model)


def test_a_run_that_fails_leaves_nothing(shared, tmp_path):
    results = shared.Results(tmp_path)
    with pytest.raises(ZeroDivisionError):
        results.run("a", {}, lambda: 1 / 0)
    assert not list(tmp_path.iterdir())


def test_settings_are_changed_by_name(shared):
    defaults = {"steps": 10, "rate": 0.1, "dtype": "float32", "limit": None}
    assert shared.with_values(defaults, []) == defaults
    changed = shared.with_values(defaults, ["steps=3", "dtype=mixed_bfloat16", "limit=5"])
    assert changed == {"steps": 3, "rate": 0.1, "dtype": "mixed_bfloat16", "limit": 5}
    for wrong in ("stepz=3", "steps", "steps="):
        with pytest.raises(SystemExit, match="KEY=VALUE, with one of steps, rate"):
            shared.with_values(defaults, [wrong])


def test_tables_are_read_with_their_quotes(shared, tmp_path):
    with lzma.open(tmp_path / "a.tsv.xz", "wt", encoding="utf-8") as file:
        file.write('label\tsentence\n1\t"a b\n0\tc" d\n')
    rows = shared.read_table(tmp_path / "a.tsv.xz")
    assert rows == [{"label": "1", "sentence": '"a b'}, {"label": "0", "sentence": 'c" d'}]
    with pytest.raises(SystemExit, match="There is no .*b.tsv.xz: --data must name"):
        shared.read_table(tmp_path / "b.tsv.xz")


def test_mean_and_spread(shared):
    assert shared.mean_and_spread([1.0, 2.0, 3.0], "{:.1f}") == "2.0 ± 1.0 (3)"
    assert shared.mean_and_spread([1.0, 3.0], "{:+.1f}") == "+2.0 ± 1.4 (2)"
    assert shared.mean_and_spread([2.0]) == "2.000"
    assert shared.mean_and_spread([]) == "–"
    assert shared.markdown_table(("a", "b"), [(1, "x")]) == "| a | b |\n| --- | --- |\n| 1 | x |"


def test_pictures_and_reports_are_written(shared, tmp_path, capsys):
    results = shared.Results(tmp_path)
    results.run("a", {"seed": 0}, lambda: {"x": 1})
    # the second run was shorter
    curves = {"one": [([1, 2, 3], [3.0, 2.0, 1.0]), ([1, 2], [4.0, 3.0])]}
    panel = {"title": "t", "x": "step", "y": "loss", "curves": curves}
    shared.draw(tmp_path / "a.png", [panel, {**panel, "log_x": True, "top": 5}])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    results.write_report("Title", "text", "| table |")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Title\n\ntext\n\n| table |\n\n1 runs, 0 minutes in all; ")
    assert json.loads((tmp_path / "a.json").read_text())["name"] == "a"
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.png", "report.md"}
