"""The command line: what it prints and writes, and that mistakes give one message and status 2."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import RoFormerBackbone
from roformer_tf.__main__ import COMMANDS, main, make_parser
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.cli import shared
from roformer_tf.models import fill_mask
from tests.cli.conftest import TEXTS, run
from tests.models import builders
from tests.processes import run_program

TEXT = "天地[MASK]黄宇[MASK]"


@pytest.fixture(scope="module")
def masked_lm():
    return builders.task("masked_lm", {})


@pytest.fixture(scope="module")
def classifier():
    return builders.task("classifier", {}, num_classes=2)


@pytest.fixture(scope="module")
def folders(masked_lm, classifier, tmp_path_factory):
    """The same models in every form that the commands accept."""
    top = tmp_path_factory.mktemp("models")
    save_checkpoint(masked_lm, top / "original")
    masked_lm.save_to_preset(str(top / "preset"))
    masked_lm.save(str(top / "masked_lm.keras"))
    classifier.save_to_preset(str(top / "classifier"))
    classifier.save(str(top / "classifier.keras"))
    classifier.backbone.save_to_preset(str(top / "backbone"))
    return top


def served(folder, texts):
    """Returns the answer of a SavedModel, as NumPy."""
    function = tf.saved_model.load(str(folder)).signatures["serving_default"]
    return {name: value.numpy() for name, value in function(texts=tf.constant(texts)).items()}


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


def test_texts_stand_anywhere():
    arguments = "fill-mask folder --top-k 2 a --json b -- -5".split()
    args = make_parser().parse_args(["--debug", *arguments])
    assert (args.debug, args.model, args.top_k, args.json) == (True, "folder", 2, True)
    assert args.texts == ["a", "b", "-5"]


def test_bytes_that_are_no_text(error_of, monkeypatch, tmp_path):
    lines = io.TextIOWrapper(io.BytesIO("天[MASK]\n\n坏".encode() + b"\xff\n"), "utf-8")
    monkeypatch.setattr("sys.stdin", lines)
    assert "text in utf-8 on standard input" in (message := error_of("fill-mask", tmp_path))
    assert "line 3, '坏\\udcff" in message


@pytest.mark.eager
def test_a_model_that_was_trained_for_something_else(folders, error_of, tmp_path):
    message = error_of("generate", folders / "original", "天")
    assert "has learned to fill [MASK] and not to continue texts. Use `fill-mask`" in message
    gpt = save_checkpoint(builders.task("causal_lm", {}), tmp_path / "model")
    assert "not to fill [MASK]. Use `generate`" in error_of("fill-mask", gpt, TEXT)
    assert "Received: --dtype half" in error_of("fill-mask", gpt, TEXT, "--dtype", "half")


@pytest.mark.eager
def test_a_trained_keras_file_warns_of_nothing(tmp_path, recwarn):
    trained = builders.task("classifier", {}, num_classes=2)
    trained.optimizer.build(trained.trainable_variables)
    trained.save(tmp_path / "trained.keras")
    assert run("classify", tmp_path / "trained.keras", "天地", "--json") == 0
    assert not [str(warning.message) for warning in recwarn if "optimizer" in str(warning.message)]


@pytest.mark.eager
@pytest.mark.parametrize("name", ["original", "preset", "masked_lm.keras"])
def test_fill_mask(folders, masked_lm, printed_json, name):
    expected = fill_mask(masked_lm, [TEXT], top_k=3)[0]
    assert run("fill-mask", folders / name, TEXT, "--top-k", 3, "--json") == 0
    (answer,) = printed_json()
    assert answer["text"] == TEXT
    for mask, best in zip(answer["masks"], expected, strict=True):
        assert [x["token"] for x in mask] == [token for token, _ in best]
        # float32, and a checkpoint's columns are summed in the same order
        probabilities = [probability for _, probability in best]
        np.testing.assert_allclose([x["probability"] for x in mask], probabilities, rtol=1e-4)


@pytest.mark.eager
def test_fill_mask_prints_a_table(folders, masked_lm, capsys):
    assert run("fill-mask", folders / "preset", TEXT, "玄[MASK]", "--top-k", 2) == 0
    printed = capsys.readouterr().out
    for token, probability in fill_mask(masked_lm, "玄[MASK]", top_k=2)[0]:
        assert f"{probability:6.1%}  {token}" in printed
    assert TEXT in printed and "mask 2" in printed


def test_a_few_texts_need_no_graph(folders, calls_of, printed_json):
    """A few texts run without graphs, many with them, and a program keeps what it had."""
    calls = calls_of(RoFormerBackbone, "compute_outputs", lambda *_, **__: tf.executing_eagerly())
    answers = []
    for texts, eager in ([TEXT], True), ([TEXT] * (shared.FEW + 1), False):
        assert run("fill-mask", folders / "preset", *texts, "--json") == 0
        answers.append(printed_json()[0]["masks"])
        assert calls[-1] == eager, "the calls before built the model"
        assert not tf.config.functions_run_eagerly()
    few, many = ([[x["probability"] for x in mask] for mask in masks] for masks in answers)
    np.testing.assert_allclose(few, many, rtol=1e-5)  # float32: sums in another order


def test_export_classifier(folders, classifier, tmp_path, capsys):
    expected = classifier.predict(TEXTS, verbose=0)
    folder = tmp_path / "served"
    assert run("export", folders / "classifier.keras", folder, "--labels", "差评,好评") == 0
    printed = capsys.readouterr().out
    assert "serving_default" in printed and "label: string (?)" in printed
    answer = served(folder, TEXTS)
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-4, atol=1e-5)
    labels = [["差评", "好评"][i] for i in expected.argmax(-1)]
    assert [label.decode() for label in answer["label"]] == labels


@pytest.mark.slow
def test_export_onnx(folders, classifier, tmp_path, capsys):
    for package in ("tf2onnx", "onnxruntime"):
        pytest.importorskip(package)
    folder = tmp_path / "onnx"
    assert run("export", folders / "classifier.keras", folder, "--format", "onnx") == 0
    assert f"python {folder}/client.py" in capsys.readouterr().out
    lines = run_program(sys.executable, folder / "client.py", *TEXTS).stdout.splitlines()
    expected = classifier.predict(TEXTS, verbose=0).argmax(-1)
    assert [json.loads(line)["class_id"] for line in lines] == expected.tolist()


@pytest.mark.slow
def test_export_original_folder(folders, masked_lm, tmp_path, capsys):
    """Exports the task it was trained as by default, and its backbone with `--task`."""
    folder = tmp_path / "masked_lm"
    assert run("export", folders / "original", folder, "--top-k", 2) == 0
    assert "RoFormerMaskedLM" in capsys.readouterr().out
    tokens = served(folder, [TEXT])["tokens"][0]
    expected = fill_mask(masked_lm, TEXT, top_k=2)
    assert [[t.decode() for t in mask] for mask in tokens] == [[t for t, _ in x] for x in expected]

    folder = tmp_path / "backbone"
    arguments = ["--task", "backbone", "--embedding", "cls", "--normalize"]
    arguments += ["--dtype", "mixed_bfloat16", "--sequence-length", 4]
    assert run("export", folders / "original", folder, *arguments) == 0
    answer = served(folder, ["天地玄黄宇宙洪荒"])
    assert answer["sequence_output"].shape == (1, 4, 16)
    assert answer["embedding"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(answer["embedding"]), 1, rtol=1e-6)


@pytest.mark.slow
def test_export_backbone_of_a_classifier(folders, classifier, tmp_path):
    folder = tmp_path / "backbone"
    assert run("export", folders / "classifier", folder, "--task", "backbone") == 0
    expected = classifier.backbone.predict(classifier.preprocessor(TEXTS), verbose=0)
    answer = served(folder, TEXTS)
    np.testing.assert_allclose(answer["sequence_output"], expected, rtol=1e-4, atol=1e-5)


def test_export_refuses(folders, tmp_path, error_of):
    out = tmp_path / "out"
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.keras").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "config.json").write_text("{")
    classifier, original = folders / "classifier", folders / "original"
    cases = [
        (["no/such/folder", out], "No checkpoint at no/such/folder: the folder no/such does not"),
        ([tmp_path / "notes.txt", out], "is not a .keras or .zip file"),
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
        ([classifier, out, "--quantize", "int8"], "pass `--format onnx` too"),
        ([original, tmp_path, "--format", "onnx", "--overwrite"], "Only an exported ONNX"),
        ([original, out, "--sequence-length", 0], "Received: --sequence-length=0"),
        ([original, tmp_path / "notes.txt" / "out"], "notes.txt is a file"),
    ]
    for arguments, message in cases:
        assert message in error_of("export", *arguments), arguments
        assert not out.exists()


@pytest.mark.parametrize(
    "folder, arguments, message",
    [
        ("preset", ["天地"], "Expected [MASK] in every text. Received: '天地'"),
        ("preset", [TEXT, "--top-k", 0], "`top_k` must be"),
        ("classifier", [TEXT], "not a masked_lm"),
    ],
)
def test_fill_mask_refuses(folders, error_of, folder, arguments, message):
    assert message in error_of("fill-mask", folders / folder, *arguments)


@pytest.mark.parametrize(
    "command", ["classify", "fill-mask", "generate", "similar", "embed", "translate"]
)
def test_no_text_and_no_model(error_of, monkeypatch, tmp_path, command):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n \n"))
    assert "Expected at least one text" in error_of(command, tmp_path)
    assert "No checkpoint in" in error_of(command, tmp_path, TEXT)
    message = error_of(command, tmp_path / "nothing", TEXT)
    assert "No checkpoint at" in message and "save_to_preset" in message


@pytest.mark.eager
def test_inspect_and_convert(folders, tmp_path, capsys, error_of):
    assert run("inspect", folders / "original", "--json") == 0
    assert json.loads(capsys.readouterr().out)["family"] == "roformer"
    assert "No checkpoint in" in error_of("inspect", tmp_path)
    pytest.importorskip("safetensors")
    assert run("convert", folders / "original", tmp_path / "hf") == 0
    assert "huggingface layout" in capsys.readouterr().out
    assert run("fill-mask", tmp_path / "hf", TEXT, "--json") == 0


@pytest.mark.slow
def test_as_a_program(tmp_path, repository):
    """A failure prints only its message on standard error."""
    command = [sys.executable, "-m", "roformer_tf", "fill-mask", str(tmp_path), TEXT]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert f"error: No checkpoint in {tmp_path}." in done.stderr


def test_only_debug_shows_a_traceback(tmp_path, monkeypatch, error_of):
    from roformer_tf.cli import inspect

    def fail(args):
        return {}["key"]

    monkeypatch.setattr(inspect, "run", fail)
    message = error_of("inspect", tmp_path)
    assert "KeyError: 'key'" in message and "--debug" in message
    with pytest.raises(KeyError):
        run("--debug", "inspect", tmp_path)


def test_ctrl_c_is_silent(tmp_path, monkeypatch, capsys):
    from roformer_tf.cli import inspect

    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "run", interrupt)
    assert run("inspect", tmp_path) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_reader_that_ends_is_no_error(repository):
    """As `| head` does."""
    folder = repository / "checkpoints" / "chinese_roformer_tiny"
    with subprocess.Popen(
        [sys.executable, "-m", "roformer_tf", "inspect", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1  # of rich, which prints the tables; 141 elsewhere
