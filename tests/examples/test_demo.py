import json
import os
import sys

import pytest

from tests.processes import run_program


@pytest.mark.slow
def test_demo_runs_where_there_is_no_terminal(examples, tmp_path):
    """In a process of its own, as `make demo` starts it; it starts a second one that must not import Keras."""
    process = run_program(
        *(sys.executable, examples / "demo.py", "--train-examples", "16", "--test-examples", "16"),
        *("--epochs", "1", "--output", tmp_path),
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1"},
    )
    for line in ("Fill masks", "Fine-tune, random weights", "Summary", "seconds: all"):
        assert line in process.stdout
    assert "\x1b[" not in process.stdout
    difference = process.stdout.split("largest difference")[1].split("\n")[0].strip(" │")
    assert float(difference) < 1e-5  # float32 probabilities, printed to six places

    command = [sys.executable, examples / "serve.py", tmp_path / "saved_model"]
    answers = run_program(*command, input="房间很干净\n\n")
    answers = [json.loads(line) for line in answers.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == ["房间很干净", ""]
    for answer in answers:
        assert sum(answer["probabilities"]) == pytest.approx(1, abs=2e-6)
        assert answer["label"] in ("negative", "positive") and not answer["keras_imported"]
