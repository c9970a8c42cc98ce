"""The translation example on made-up pairs: curves, a checkpoint that loads, BLEU with its signature."""

import importlib
import json
import lzma

import numpy as np
import pytest

import roformer_tf

pytestmark = pytest.mark.slow  # a model is trained, and searches
NUMBERS = "one two three four five six seven eight nine ten".split()
ZAHLEN = "eins zwei drei vier fünf sechs sieben acht neun zehn".split()
SMALL = (
    *("vocabulary_size=80", "num_layers=1", "num_heads=2", "hidden_dim=16", "intermediate_dim=32"),
    *("max_tokens=128", "max_length=24", "steps=4", "checkpoints=2", "averaged=2", "num_beams=2"),
)


@pytest.fixture
def data(tmp_path, rng):
    folder = tmp_path / "data" / "numbers"
    folder.mkdir(parents=True)
    for part, count in (("train", 40), ("valid", 4), ("test_new", 3)):
        lines = ["en\tde"]
        for _ in range(count):
            row = rng.integers(10, size=rng.integers(3, 7))
            lines.append("\t".join(" ".join(words[i] for i in row) for words in (NUMBERS, ZAHLEN)))
        with lzma.open(folder / f"{part}.tsv.xz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return folder.parent


def test_runs_and_reports(run, data, tmp_path):
    results = tmp_path / "translate.jsonl"
    options = ["--data", data, "--corpora", "numbers", "--seeds", 0, "--schemes", "rotary"]
    options += ["--results", results, "--output", tmp_path / "output", "--set", *SMALL]
    printed = run("translate_wmt14", *options)
    assert "BLEU" in printed and "tok:13a" in printed
    record = json.loads(results.read_text("utf-8"))
    result = record["result"]
    assert result["training"]["step"] == [2, 4] and len(result["held_out"]["loss"]) == 2
    assert 0 <= result["bleu"] <= 100 and "version:" in result["signature"]
    folder = tmp_path / "output" / record["name"]
    model = roformer_tf.RoFormerSeq2SeqLM.from_preset(folder)
    assert model.backbone.position_scheme_name == "rotary"
    assert model.count_params() == result["weights"]
    lines = (folder / "test.translations.txt").read_text("utf-8").splitlines()
    assert len(lines) == 3 and lines[0] == result["samples"][0][2]
    assert result["held_out_loss"] < np.log(80) + 3  # of 80 subwords, by an untrained model
    report = (tmp_path / "translate.md").read_text("utf-8")
    assert "27.5" in report and result["signature"] in report
    assert (tmp_path / "translate_numbers.png").stat().st_size > 1000


def test_score_is_that_of_sacrebleu():
    example = importlib.import_module("translate_wmt14")
    assert (
        example.score(["Zwei Hunde laufen im Schnee."], ["Zwei Hunde laufen im Schnee."])[0] == 100
    )
