"""Folders of `export_onnx` answer in a process that has ONNX Runtime only, with the numbers of Keras."""

import json
import os
import sys

import keras
import numpy as np
import pytest

from roformer_tf import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
)
from roformer_tf.export import export_onnx
from roformer_tf.models import fill_mask
from tests.export.conftest import assert_close
from tests.oracles.numpy_roformer import softmax
from tests.processes import run_program

for package in ("onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(package)

LABELS = ["差 评", "一般", "好评"]
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import client
outputs = client.run(json.loads(sys.argv[2]))
blocked = {"tensorflow", "keras", "roformer_tf", "tokenizers", "jieba"} & set(sys.modules)
assert not blocked, blocked
print(json.dumps({name: list(value) for name, value in outputs.items()}, default=lambda x: x.tolist()))
"""


def ask(folder, texts):
    done = run_program(sys.executable, "-I", "-c", ASK, folder, json.dumps(texts))
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def classifier(build):
    return build(RoFormerTextClassifier, backbone={"num_layers": 2}, num_classes=3)


@pytest.fixture(scope="module")
def exported(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "exported"
    before = classifier.predict(["好"], verbose=0)
    export_onnx(classifier, folder, labels=LABELS)
    # the layers are what they were
    np.testing.assert_array_equal(classifier.predict(["好"], verbose=0), before)
    return folder


def test_classifier(classifier, exported, texts):
    answer = ask(exported, texts)
    expected = classifier.predict(texts, verbose=0)
    assert_close(answer["logits"], expected)
    assert_close(answer["probabilities"], softmax(expected))
    assert answer["label"] == [LABELS[i] for i in expected.argmax(-1)]
    pairs = list(zip(texts[:5], texts[5:10], strict=True))
    assert_close(
        ask(exported, pairs)["logits"], classifier.predict((texts[:5], texts[5:10]), verbose=0)
    )


def test_what_is_no_text_is_named(exported):
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import client
for texts in ("房间", [], [b"a"], [None], [("a", "b", "c")]):
    try:
        client.run(texts)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""
    done = run_program(sys.executable, "-c", program, exported)
    a_list = "ValueError Expected a list of at least one text. Received: "
    a_string = "TypeError Expected a string, or a pair of strings. Received: "
    expected = [a_list + "'房间'", a_list + "[]"]
    expected += [a_string + wrong for wrong in ("b'a'", "None", "('a', 'b', 'c')")]
    assert done.stdout.splitlines() == expected


def test_command(exported, classifier):
    with pytest.raises(AssertionError, match=r"usage: python .*client\.py TEXT"):
        run_program(sys.executable, exported / "client.py")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = sys.executable, exported / "client.py", "很 好", "差"
    done = run_program(*command, env=ascii_only)
    expected = classifier.predict(["很 好", "差"], verbose=0).argmax(-1)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == ["很 好", "差"]
    assert [answer["label"] for answer in answers] == [LABELS[i] for i in expected]


@pytest.mark.slow
def test_masked_lm(build, tmp_path):
    task = build(RoFormerMaskedLM)
    lines = ["今天[MASK]气很[MASK]", "好", "[MASK]"]
    folder = export_onnx(task, tmp_path / "onnx", top_k=3)
    expected = [
        [[token for token, _ in mask] for mask in masks]
        for masks in fill_mask(task, lines, top_k=3)
    ]
    assert ask(folder, lines)["tokens"] == expected
    with pytest.raises(AssertionError, match="1 masks, of which 0 do"):
        ask(folder, ["好" * task.preprocessor.sequence_length + "[MASK]"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"norm": "rms_norm", "position_scheme": "learned"}])
def test_backbone(options, build, tokenizer, texts, tmp_path):
    backbone = build(RoFormerBackbone, backbone=options)
    folder = export_onnx(backbone, tmp_path / "onnx", preprocessor=tokenizer, embedding="cls")
    preprocessor = RoFormerTextClassifier.preprocessor_cls(tokenizer)
    expected = backbone.predict(preprocessor(texts[:8]), verbose=0)[:, 0]
    assert_close(ask(folder, texts[:8])["embedding"], expected)


@pytest.mark.slow
def test_sim_with_its_weights_in_a_file_beside_the_model(build, texts, tmp_path, monkeypatch):
    """As those of a model of over 2 GB are."""
    task = build(RoFormerSim, backbone={"pooler": "linear", "masking": "unilm"})
    monkeypatch.setattr(sys.modules[export_onnx.__module__], "_MAX_BYTES", 0)
    folder = export_onnx(task, tmp_path / "onnx")
    sizes = [(folder / name).stat().st_size for name in ("model.onnx.data", "model.onnx")]
    assert sizes[0] > 3 * task.backbone.count_params() and sizes[1] < 100_000
    assert_close(ask(folder, texts[:8])["embedding"], task.embed(texts[:8]))


def test_int8(classifier, exported, texts, tmp_path):
    folder = export_onnx(classifier, tmp_path / "int8", quantize="int8")
    found, expected = (np.array(ask(f, texts)["probabilities"]) for f in (folder, exported))
    # 7 bits for weights, 8 for activations: about 1 % of each product
    error = np.abs(found - expected).max()
    assert 0 < error < 0.05


def test_refusals(build, classifier, exported, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="generates text"):
        export_onnx(build(RoFormerCausalLM, backbone={"masking": "causal"}), tmp_path / "a")
    with pytest.raises(ValueError, match="in float32"):
        half = build(RoFormerTextClassifier, backbone={"dtype": "mixed_bfloat16"}, num_classes=2)
        export_onnx(half, tmp_path / "a")
    pieces = {"tokenizer": classifier.preprocessor.tokenizer, "sequence_length": 16}
    own = type("OwnPreprocessor", (RoFormerTextClassifier.preprocessor_cls,), {})(**pieces)
    with pytest.raises(ValueError, match="a class of your own.*Received: a OwnPreprocessor"):
        export_onnx(classifier, tmp_path / "a", preprocessor=own)
    for scheme in ("learned", "tupe"):
        short = build(RoFormerBackbone, {"position_scheme": scheme, "max_sequence_length": 8})
        with pytest.raises(ValueError, match="learned positions for 8 tokens only.*=16"):
            preprocessor = RoFormerTextClassifier.preprocessor_cls(**pieces)
            export_onnx(short, tmp_path / "a", preprocessor=preprocessor)
    with pytest.raises(ValueError, match="`quantize` must be"):
        export_onnx(classifier, tmp_path / "a", quantize="int4")
    with pytest.raises(FileExistsError, match="already exists"):
        export_onnx(classifier, exported)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(FileExistsError, match="an exported ONNX model"):
        export_onnx(classifier, tmp_path / "other", overwrite=True)
    assert export_onnx(classifier, exported, labels=LABELS, overwrite=True) == exported
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="roformer-tf\\[export\\]"):
        export_onnx(classifier, tmp_path / "a")
    if keras.backend.backend() == "tensorflow":
        assert not (tmp_path / "a").exists()
