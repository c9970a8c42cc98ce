"""`python -m roformer_tf translate`."""

import io

import pytest

from roformer_tf.models import translate
from roformer_tf.samplers import BeamSearchSampler
from tests.cli.conftest import run
from tests.models.seq_2_seq import translator

TEXTS = ["a dog ran", "a cat"]


@pytest.mark.slow  # beam searches are traced
def test_translate(tmp_path, capsys, monkeypatch, printed_json):
    task = translator(num_layers=1)
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    task.compile(sampler=BeamSearchSampler(2, 1.5))
    expected = translate(task, TEXTS, max_length=9)

    options = ["--num-beams", 2, "--length-penalty", 1.5, "--max-length", 9]
    assert run("translate", tmp_path / "preset", *TEXTS, *options, "--json") == 0
    answers = printed_json()
    assert answers == [{"text": x, "translation": y} for x, y in zip(TEXTS, expected, strict=True)]

    # a line for each line, blank ones too
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXTS[0]}\n\n{TEXTS[1]}\n"))
    assert run("translate", tmp_path / "model.keras", *options) == 0
    assert capsys.readouterr().out.split("\n") == [expected[0], "", expected[1], ""]
