"""The short programs run as they are, on the models of the repository."""

import json
import os
import re
import sys

import pytest

from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.export import export_saved_model
from tests.models.builders import task
from tests.processes import run_program

pytestmark = pytest.mark.slow  # eager: those of few steps, as tracing these takes longer


def run_in_one_process(*commands, **options):
    """Runs programs of Python, each with its arguments, one after the other; returns what they printed.

    Most of a short program's time is the start of its process.
    """
    commands = [[str(word) for word in command] for command in commands]
    program = "import runpy, sys\nfor sys.argv in {}:\n    runpy.run_path(sys.argv[0], run_name='__main__')"
    return run_program(sys.executable, "-c", program.format(commands), **options).stdout


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
    """Texts are arguments, or else lines of standard input, of which the third run finds none left."""
    export_saved_model(task("classifier", preprocessor={}), tmp_path / "served")
    command = [examples / "serve.py", tmp_path / "served"]
    out = run_in_one_process([*command, "天地"], command, command, input="玄黄\n\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["text"] for answer in answers] == ["天地", "玄黄", ""]
    for answer in answers:
        probabilities = answer["probabilities"]
        assert sum(probabilities) == pytest.approx(1, abs=2e-6)
        assert answer["label"] == probabilities.index(max(probabilities))
        assert not answer["keras_imported"]


@pytest.mark.eager
def test_finetune_pairs(run, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("label\ta\tb\n1\t好\t很好\n0\t好\t差\n", encoding="utf-8")
    out = run("finetune_pairs", "--train", path, "--columns", "a", "b", "--epochs", 1)
    assert "of 2 pairs" in out


@pytest.mark.eager
def test_translate(run, tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = [f"number {word}\tZahl {word}\n" for word in ("one", "two", "three", "four")]
    path.write_text("".join(lines), encoding="utf-8")
    arguments = ("--output", tmp_path / "model", "--vocabulary-size", 40, "--hidden-dim", 16)
    assert "number one → " in run("translate", path, *arguments, "--steps", 2)
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_layers_learn_on_every_backend(examples, repository, backend):
    """RotaryEmbedding in attention of one's own, and a GPT and an encoder of EncoderBlocks."""
    pytest.importorskip(backend)
    out = run_in_one_process(
        [examples / "own_attention.py"],
        [examples / "train_from_scratch.py", repository / "README.md", "--epochs", 2],
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    found = dict(re.findall("(with|without) rotary positions: ([0-9]+)% right", out))
    assert int(found["with"]) > 90 and int(found["without"]) < 40
    losses = [float(loss) for loss in re.findall(" loss: ([0-9.e+-]+)", out)]
    assert len(losses) == 4
    assert losses[1] < losses[0] < 5.6 and losses[3] < losses[2]  # ln(256) = 5.5
