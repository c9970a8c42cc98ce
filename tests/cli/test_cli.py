"""The command line: what it prints, what it writes, and that mistakes give one message and exit status 2."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.__main__ import COMMANDS, main
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.models import fill_mask
from tests.cli.commands import run
from tests.layers.harness import randomize

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气很好差的是不我们"]
SIZES = {
    "vocabulary_size": len(VOCABULARY),
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}
TEXT = "今天[MASK]气很[MASK]"


@pytest.fixture(scope="module")
def tokenizer():
    return roformer_tf.RoFormerTokenizer(VOCABULARY, word_level=False)


@pytest.fixture(scope="module")
def masked_lm(tokenizer):
    backbone = roformer_tf.RoFormerBackbone(**SIZES)
    task = roformer_tf.RoFormerMaskedLM(
        backbone, roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    )
    randomize(task)
    return task


@pytest.fixture(scope="module")
def classifier(tokenizer):
    task = roformer_tf.RoFormerTextClassifier(
        roformer_tf.RoFormerBackbone(**SIZES),
        num_classes=2,
        preprocessor=roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer),
    )
    randomize(task)
    return task


@pytest.fixture(scope="module")
def folders(masked_lm, classifier, tokenizer, tmp_path_factory):
    """The same models in every form that the commands take."""
    top = tmp_path_factory.mktemp("models")
    save_checkpoint(masked_lm, top / "original")
    (top / "original" / "vocab.txt").write_text("".join(f"{t}\n" for t in VOCABULARY), "utf-8")
    masked_lm.save_to_preset(str(top / "preset"))
    masked_lm.save(str(top / "masked_lm.keras"))
    classifier.save_to_preset(str(top / "classifier"))
    classifier.save(str(top / "classifier.keras"))
    classifier.backbone.save_to_preset(str(top / "backbone"))
    return top


def error_of(capsys, *arguments):
    """The message of a command that must fail."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1, "one line, no traceback"
    return captured.err


def signature(folder, **texts):
    function = tf.saved_model.load(str(folder)).signatures["serving_default"]
    return {
        k: v.numpy() for k, v in function(**{k: tf.constant(v) for k, v in texts.items()}).items()
    }


def test_help(capsys):
    for arguments in ([], *([command] for command in COMMANDS)):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--help"])
        assert stop.value.code == 0
        printed = capsys.readouterr().out
        assert printed.startswith("usage: python -m roformer_tf")
        assert arguments or all(command in printed for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [[], ["no-such-command"], ["export", "only-one"], ["fill-mask", "a", "--top-k", "x"]],
)
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["original", "preset", "masked_lm.keras"])
def test_fill_mask(folders, masked_lm, printed_json, name):
    expected = fill_mask(masked_lm, [TEXT], top_k=3)[0]
    assert run("fill-mask", folders / name, TEXT, "--top-k", 3, "--json") == 0
    (answer,) = printed_json()
    assert answer["text"] == TEXT
    found = [[(x["token"], x["probability"]) for x in mask] for mask in answer["masks"]]
    assert [[t for t, _ in mask] for mask in found] == [[t for t, _ in mask] for mask in expected]
    np.testing.assert_allclose(
        [[p for _, p in mask] for mask in found],
        [[p for _, p in mask] for mask in expected],
        rtol=1e-4,  # float32, and a checkpoint's columns are summed in the same order
    )


def test_fill_mask_prints_a_table(folders, masked_lm, capsys):
    assert run("fill-mask", folders / "preset", TEXT, "我[MASK]", "--top-k", 2) == 0
    printed = capsys.readouterr().out
    for token, probability in fill_mask(masked_lm, "我[MASK]", top_k=2)[0]:
        assert f"{probability:6.1%}  {token}" in printed
    assert TEXT in printed and "mask 2" in printed


def test_export_classifier(folders, classifier, tmp_path, capsys):
    texts = ["今天气很好", "差"]
    expected = classifier.predict(texts, verbose=0)
    folder = tmp_path / "served"
    assert run("export", folders / "classifier.keras", folder, "--labels", "差评,好评") == 0
    printed = capsys.readouterr().out
    assert "serving_default" in printed and "label: string (?)" in printed
    answer = signature(folder, texts=texts)
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-4, atol=1e-5)
    labels = [["差评", "好评"][i] for i in expected.argmax(-1)]
    assert [label.decode() for label in answer["label"]] == labels


def test_export_original_folder(folders, masked_lm, tmp_path, capsys):
    """What it was trained as by default; its backbone when asked for."""
    folder = tmp_path / "masked_lm"
    assert run("export", folders / "original", folder, "--top-k", 2) == 0
    assert "RoFormerMaskedLM" in capsys.readouterr().out
    tokens = signature(folder, texts=[TEXT])["tokens"][0]
    expected = fill_mask(masked_lm, TEXT, top_k=2)
    assert [[t.decode() for t in mask] for mask in tokens] == [[t for t, _ in x] for x in expected]

    folder = tmp_path / "backbone"
    arguments = ["--task", "backbone", "--embedding", "cls", "--normalize"]
    arguments += ["--dtype", "mixed_bfloat16", "--sequence-length", 4]
    assert run("export", folders / "original", folder, *arguments) == 0
    answer = signature(folder, texts=["今天气很好差的是不"])
    assert answer["sequence_output"].shape == (1, 4, 16)
    assert answer["embedding"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(answer["embedding"]), 1, rtol=1e-6)


def test_export_backbone_of_a_classifier(folders, classifier, tmp_path):
    folder = tmp_path / "backbone"
    assert run("export", folders / "classifier", folder, "--task", "backbone") == 0
    inputs = classifier.preprocessor(["今天"])
    expected = classifier.backbone.predict(inputs, verbose=0)
    answer = signature(folder, texts=["今天"])
    np.testing.assert_allclose(answer["sequence_output"], expected, rtol=1e-4, atol=1e-5)


def test_export_refuses(folders, tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.keras").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "config.json").write_text("{")
    classifier, original = folders / "classifier", folders / "original"
    cases = [
        (
            ["no/such/folder", out],
            "No checkpoint at no/such/folder: the folder no/such does not exist. Expected an original",
        ),
        ([tmp_path / "notes.txt", out], "is not a .keras file"),
        ([tmp_path / "broken.keras", out], "broken.keras"),
        ([tmp_path / "empty", out], "No checkpoint in"),
        ([tmp_path / "corrupt", out], "Expecting property name"),
        ([original, out, "--task", "classifier"], "Train one"),
        ([classifier, out, "--task", "masked_lm"], "holds a RoFormerTextClassifier"),
        ([classifier, out, "--labels", "a,b,c"], "must name 2 classes"),
        ([folders / "classifier.keras", out, "--dtype", "float16"], "cannot change a .keras file"),
        ([folders / "backbone", out], "has no preprocessor"),
        ([classifier, tmp_path / "empty" / ".."], "already exists"),
        ([classifier, tmp_path, "--overwrite"], "Only a SavedModel"),
    ]
    for arguments, message in cases:
        assert message in error_of(capsys, "export", *arguments), arguments
        assert not out.exists()


def test_fill_mask_of_standard_input(folders, printed_json, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\n\n"))
    assert run("fill-mask", folders / "preset", "--json") == 0
    (answer,) = printed_json()
    assert answer["text"] == TEXT


def test_fill_mask_refuses(folders, capsys):
    assert "Expected [MASK] in every text. Received: '今天'" in error_of(
        capsys, "fill-mask", folders / "preset", "今天"
    )
    assert "`top_k` must be" in error_of(
        capsys, "fill-mask", folders / "preset", TEXT, "--top-k", 0
    )
    message = error_of(capsys, "fill-mask", folders / "classifier", TEXT)
    assert "not a masked_lm" in message


def test_inspect_and_convert(folders, tmp_path, capsys):
    assert run("inspect", folders / "original", "--json") == 0
    assert json.loads(capsys.readouterr().out)["family"] == "roformer"
    assert "No checkpoint in" in error_of(capsys, "inspect", tmp_path)
    pytest.importorskip("safetensors")
    assert run("convert", folders / "original", tmp_path / "hf") == 0
    assert "huggingface layout" in capsys.readouterr().out
    # and a folder in that layout is exported like any other
    assert run("fill-mask", tmp_path / "hf", TEXT, "--json") == 0


def test_as_a_program(folders, tmp_path, repository):
    """Started as a person does; nothing but the message on standard error when it fails."""
    command = [sys.executable, "-m", "roformer_tf", "fill-mask", str(tmp_path), TEXT]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert f"error: No checkpoint in {tmp_path}." in done.stderr
