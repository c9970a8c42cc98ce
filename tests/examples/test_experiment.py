"""What the experiments share: finished runs are kept and not repeated; tables and pictures are made of them."""

import importlib
import json
import lzma

import pytest


@pytest.fixture
def shared():
    return importlib.import_module("experiment")


@pytest.fixture
def results(shared, tmp_path):
    return shared.Results(tmp_path / "results" / "losses.jsonl")


def test_a_finished_run_is_kept_and_not_repeated(shared, results):
    calls = []

    def compute():
        calls.append(1)
        return {"loss": [3.0, 2.0], "accuracy": 0.5}

    record = results.run("a-0", {"seed": 0, "sizes": (1, 2)}, compute)
    assert record["result"] == {"loss": [3.0, 2.0], "accuracy": 0.5}
    assert record["settings"] == {"seed": 0, "sizes": [1, 2]}
    assert set(record["versions"]) == set(shared.PACKAGES) and record["seconds"] >= 0

    assert results.run("a-0", {"seed": 0, "sizes": (1, 2)}, compute) == record
    assert len(calls) == 1
    with pytest.raises(SystemExit, match=r"a-0 with other settings \(seed was 0, is 1\)"):
        results.run("a-0", {"seed": 1, "sizes": (1, 2)}, compute)
    results.run("a-1", {"seed": 1, "sizes": (1, 2)}, compute)
    assert [record["name"] for record in results.all()] == ["a-0", "a-1"]
    assert [json.loads(line)["name"] for line in results.path.read_text().splitlines()] == [
        "a-0",
        "a-1",
    ]
    assert list(results.grouped("seed")) == [0, 1]
    assert list(results.grouped("seed", "seed")) == [(0, 0), (1, 1)]


def test_a_run_belongs_to_one_model(results, tmp_path):
    """A model that was trained again under the same name is another model."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "vocab.txt").write_text("a\n", encoding="utf-8")
    (model / "checkpoint").write_text("a path, which does not count", encoding="utf-8")
    first = results.run("one", {}, lambda: {"value": 1}, model=model)
    (model / "checkpoint").write_text("another path", encoding="utf-8")
    assert results.run("one", {}, lambda: {"value": 2}, model=model) == first
    (model / "vocab.txt").write_text("b\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="one with other model"):
        results.run("one", {}, lambda: {"value": 2}, model=model)


def test_a_run_that_fails_leaves_nothing(results):
    with pytest.raises(ZeroDivisionError):
        results.run("a", {}, lambda: 1 / 0)
    assert not results.path.exists()
    with pytest.raises(SystemExit, match="There is no run in .*losses.jsonl"):
        results.grouped("seed")


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


def test_pictures_and_reports_are_written(shared, results):
    results.run("a", {"seed": 0}, lambda: {"x": 1})
    # the second run is shorter
    curves = {"one": [([1, 2, 3], [3.0, 2.0, 1.0]), ([1, 2], [4.0, 3.0])]}
    panel = {"title": "t", "x": "step", "y": "loss", "curves": curves}
    shared.draw(results.picture("a"), [panel, {**panel, "log_x": True, "top": 5}])
    assert results.picture("a").read_bytes().startswith(b"\x89PNG")
    results.write_report("Title", "text " * 30, "| table |" + " " * 100 + "|")
    report = results.path.with_suffix(".md").read_text(encoding="utf-8")
    start = f"# Title\n\n{'text ' * 19}text\n{'text ' * 9}text\n\n| table |{' ' * 100}|\n\n1 runs, 0 minutes in all; "
    assert report.startswith(start)
    names = {"losses.jsonl", "losses_a.png", "losses.md"}
    assert {path.name for path in results.path.parent.iterdir()} == names


@pytest.mark.parametrize(
    "name",
    ["char_performer", "compare_positions", "finetune_glue", "finetune_long"]
    + ["length_extrapolation", "translate_wmt14"],
)
def test_kept_results_give_the_kept_report(call, repository, tmp_path, name):
    """Every figure of the repository's reports comes from the kept runs."""
    kept = repository / "experiments" / "results" / f"{name}.jsonl"
    (tmp_path / kept.name).write_bytes(kept.read_bytes())
    call(name, "--report", "--results", tmp_path / kept.name)
    assert (tmp_path / f"{name}.md").read_text("utf-8") == kept.with_suffix(".md").read_text(
        "utf-8"
    )


def test_kept_runs_have_the_settings_of_today(repository):
    """Otherwise the command would not find them again."""
    program = importlib.import_module("compare_positions")
    settings = program.kept_settings(
        program.load_settings(repository / "experiments" / "positions.toml", "data", "output")
    )
    kept = repository / "experiments" / "results" / "compare_positions.jsonl"
    for line in kept.read_text(encoding="utf-8").splitlines():
        common = json.loads(line)["settings"]["common"]
        texts = {key: common.pop(key) for key in ("corpus", "vocabulary")}
        assert json.loads(json.dumps(settings)) == common and all(texts.values())
