"""The short programs run as they are, on the models of the repository."""

import json
import os
import subprocess
import sys

import pytest

from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.export import export_saved_model
from tests.models.builders import task
from tests.processes import run_program

pytestmark = pytest.mark.slow


def test_load_a_checkpoint(run, tmp_path):
    out = run("load_a_checkpoint", "--output", tmp_path / "saved")
    assert "family roformer, 3,624,832 weights, complete: True" in out and out.count("%") == 6
    assert inspect_checkpoint(tmp_path / "saved").complete


def test_generate(run):
    lines = run("generate", "房间很", "--max-length", 12).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["top-p", "beam search"]
    assert all(line.split(": ")[1].startswith("房间很") for line in lines)


def test_similar_sentences(run):
    lines = run("similar_sentences", "I prefer coffee.", "Seriously?").splitlines()
    assert lines[0] == "1.000 I prefer coffee." and lines[1].endswith(" Seriously?")
    assert "Like 'I prefer coffee.':" in lines and len(lines) >= 5


def test_serve_a_classifier_without_labels(examples, tmp_path):
    export_saved_model(task("classifier", preprocessor={}), tmp_path / "served")
    command = [sys.executable, examples / "serve.py", tmp_path / "served"]
    answer = json.loads(run_program(*command, "天地").stdout)
    probabilities = answer["probabilities"]
    assert answer["label"] == probabilities.index(max(probabilities))
    assert not run_program(*command, input="").stdout


def test_finetune_pairs(run, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("label\ta\tb\n1\t好\t很好\n0\t好\t差\n", encoding="utf-8")
    out = run("finetune_pairs", "--train", path, "--columns", "a", "b", "--epochs", 1)
    assert "of 2 pairs" in out


def test_translate(run, tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = [f"number {word}\tZahl {word}\n" for word in ("one", "two", "three", "four")]
    path.write_text("".join(lines), encoding="utf-8")
    arguments = ("--output", tmp_path / "model", "--vocabulary-size", 40, "--hidden-dim", 16)
    assert "number one → " in run("translate", path, *arguments, "--steps", 2)
    assert (tmp_path / "model" / "config.json").exists()


@pytest.fixture(params=["tensorflow", "jax", "torch"])
def run_on(request, examples):
    """Runs a program on a backend; returns what it printed."""
    pytest.importorskip(request.param)

    def run_program(name, *arguments):
        command = [sys.executable, examples / f"{name}.py", *map(str, arguments)]
        environment = {**os.environ, "KERAS_BACKEND": request.param}
        return subprocess.check_output(command, env=environment, text=True)

    return run_program


def test_own_attention(run_on):
    found = dict(line.split(": ") for line in run_on("own_attention").splitlines())
    assert int(found["with rotary positions"].split("%")[0]) > 90
    assert int(found["without rotary positions"].split("%")[0]) < 40


def test_train_from_scratch(run_on, repository):
    out = run_on("train_from_scratch", repository / "README.md", "--epochs", 2)
    losses = [float(line.split("loss: ")[1]) for line in out.splitlines() if "loss: " in line]
    assert len(losses) == 4
    assert losses[1] < losses[0] < 5.6 and losses[3] < losses[2]  # ln(256) = 5.5
