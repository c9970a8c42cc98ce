"""Classifiers and regression: the SavedModel in a bare process against the Keras model."""

import logging
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import RoFormerTextClassifier, RoFormerTextClassifierPreprocessor
from roformer_tf.export import export_onnx, export_saved_model
from tests.export.conftest import assert_close, encoded
from tests.export.server import BLOCKED
from tests.layers.harness import quantized
from tests.models.builders import V2
from tests.oracles.numpy_roformer import softmax

LABELS = ["差 评", "一般", "好评"]


@pytest.mark.slow
def test_hundred_real_texts_with_jiebas_dictionary(build, large_tokenizer, ask, texts, tmp_path):
    """A moved SavedModel gives the numbers of the Keras model, without Keras or this package.

    Its labels are looked up in their file, and its vocabulary can be read.
    """
    task = build(
        RoFormerTextClassifier,
        tokenizer=large_tokenizer,
        backbone={"num_layers": 2},
        preprocessing={"sequence_length": 64},
        num_classes=3,
    )
    # random logits lie close together: with their means at zero no class can win every text
    middle = task.predict(texts, batch_size=16, verbose=0).mean(axis=0)
    task.logits_dense.bias.assign_sub(middle)
    exported = export_saved_model(task, tmp_path / "exported", labels=LABELS)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(exported, moved)
    shutil.rmtree(exported)

    answer = ask(moved, texts=encoded(texts))
    expected = task.predict(texts, batch_size=16, verbose=0)
    assert len(set(expected.argmax(-1))) > 1, "the texts must not all be of one class"
    assert_close(answer["logits"], expected)
    assert_close(answer["probabilities"], softmax(expected))
    assert answer["class_id"].tolist() == expected.argmax(-1).tolist()
    assert [x.decode() for x in answer["label"]] == [LABELS[i] for i in expected.argmax(-1)]
    assert set(answer) == {"logits", "probabilities", "class_id", "label"}

    pairs = texts[:50], texts[50:]
    answer = ask(moved, "pairs", first=encoded(pairs[0]), second=encoded(pairs[1]))
    assert_close(answer["logits"], task.predict(pairs, verbose=0))

    inputs = {name: value.numpy() for name, value in task.preprocessor(pairs).items()}
    answer = ask(moved, "token_ids", **inputs)
    assert_close(answer["logits"], task.predict(pairs, verbose=0))

    assets = moved / "assets"
    tokens = (assets / "vocabulary.txt").read_text("utf-8").splitlines()
    assert tokens == large_tokenizer.get_vocabulary()
    assert (assets / "labels.txt").read_text("utf-8").splitlines() == LABELS
    edited = moved.rename(moved.with_name("edited"))
    (edited / "assets" / "labels.txt").write_text("bad\nfair\ngood\n")
    labels = ask(edited, texts=encoded(texts))["label"]
    assert labels.tolist() == [[b"bad", b"fair", b"good"][i] for i in expected.argmax(-1)]

    # neither Keras nor this package was imported
    assert not {name.split(".")[0] for name in ask.modules()} & set(BLOCKED)


@pytest.mark.parametrize(
    "options, labels, backbone, preprocessing",
    [
        ({"num_classes": 1}, None, V2, {"truncate_from": "left"}),
        (
            {"num_classes": 1, "activation": "sigmoid", "pooling": "pooler"},
            *(["no", "yes"], {"pooler": "tanh"}, {}),
        ),
        (
            {"num_classes": 3, "activation": "softmax", "pooling": "mean"},
            *(LABELS, {"num_segments": 0, "embedding_dim": 8, "dtype": "mixed_bfloat16"}),
            {"padding": "max_length"},
        ),
    ],
)
@pytest.mark.slow
def test_outputs_and_backbones(
    build, ask, texts, tmp_path, options, labels, backbone, preprocessing
):
    task = build(RoFormerTextClassifier, backbone, preprocessing, **options)
    folder = export_saved_model(task, tmp_path / "served", labels=labels)
    answer = ask(folder, texts=encoded(texts))
    expected = np.float32(task.predict(texts, verbose=0))
    floats = [value for name, value in answer.items() if name not in ("class_id", "label")]
    assert {value.dtype for value in floats} == {np.dtype("float32")}
    if labels is None:
        assert set(answer) == {"scores"}
        assert_close(answer["scores"], expected)
        return
    # bfloat16 has 8 bits, and where they are rounded differs between two compilations
    tolerance = 2e-2 if "dtype" in backbone else 1e-5
    assert_close(answer["probabilities"], expected, tolerance)
    if options["activation"] == "softmax":
        assert_close(softmax(answer["logits"]), answer["probabilities"])
        best = answer["probabilities"].argmax(-1)
    else:
        assert_close(1 / (1 + np.exp(-answer["logits"])), expected)
        best = (expected[:, 0] > 0.5).astype(int)
    assert answer["class_id"].tolist() == best.tolist()
    assert [x.decode() for x in answer["label"]] == [labels[i] for i in best]


@pytest.mark.parametrize("export", [export_saved_model, export_onnx])
def test_the_model_is_the_same_in_other_threads(build, tmp_path, monkeypatch, caplog, export):
    """Its graph, first traced in the midst of an export, and what is logged there."""
    if export is export_onnx:
        pytest.importorskip("onnx")
        pytest.importorskip("tf2onnx")
    task = build(RoFormerTextClassifier, num_classes=3, activation="softmax")
    traced, started, meanwhile = task.complete_inputs, [], []

    def predict():
        meanwhile.append(task.predict(["好"], verbose=0))
        logging.getLogger("tensorflow").warning("meanwhile")

    def complete_inputs(inputs):
        if not started:
            started.append(threading.Thread(target=predict))
            started[0].start()
            started[0].join()
        return traced(inputs)

    monkeypatch.setattr(task, "complete_inputs", complete_inputs)
    export(task, tmp_path / "exported")
    expected = task(task.preprocessor(["好"]))
    assert_close(meanwhile[0], expected)
    assert_close(task.predict(["好"], verbose=0), expected)
    assert [record.message for record in caplog.records] == ["meanwhile"]


def test_odd_texts(build, ask, tmp_path):
    task = build(RoFormerTextClassifier, num_classes=3)
    folder = export_saved_model(task, tmp_path / "served", labels=LABELS)
    odd = [
        b"",
        b" \n",
        b"\xff\xfe",
        b"\xe5\xa4",
        *encoded(["很\0好", "好" * 10_000, "[MASK][CLS]"]),
    ]
    expected = task.predict(odd, verbose=0)
    assert_close(ask(folder, texts=odd)["logits"], expected)
    # empty, blank and undecodable texts are all [CLS] [SEP]
    np.testing.assert_array_equal(expected[0], expected[1])
    np.testing.assert_array_equal(expected[0], expected[2])
    assert_close(ask(folder, texts=odd[-1:])["logits"], expected[-1:])

    none = ask(folder, texts=[])
    assert none["logits"].shape == none["probabilities"].shape == (0, 3)
    assert none["class_id"].shape == (0,)
    assert ask(folder, "pairs", first=[], second=[])["logits"].shape == (0, 3)
    with pytest.raises(RuntimeError, match="must have the same number of texts"):
        ask(folder, "pairs", first=[b"a", b"b"], second=[b"a"])
    with pytest.raises(RuntimeError, match="InvalidArgument"):
        ask(folder, "token_ids", token_ids=[[99999]], segment_ids=[[0]], padding_mask=[[1]])
    for wrong, message in (
        ({"padding_mask": [[1]]}, "`padding_mask` must have the shape of `token_ids`"),
        ({"padding_mask": [[1, 7]]}, "`padding_mask` must be 1, or 0 for padding"),
        ({"token_ids": [[2, -1]]}, "`token_ids` must not be negative"),
    ):
        ids = {"token_ids": [[2, 3]], "segment_ids": [[0, 0]], "padding_mask": [[1, 1]], **wrong}
        with pytest.raises(RuntimeError, match=message):
            ask(folder, "token_ids", **ids)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`:UserWarning")
@pytest.mark.slow
def test_int8(build, ask, texts, tmp_path):
    task = build(RoFormerTextClassifier, num_classes=2)
    exact = task.predict(texts, verbose=0)
    quantized(task)
    folder = export_saved_model(task, tmp_path / "served")
    logits = ask(folder, texts=encoded(texts))["logits"]
    # activations are quantized too: a value on the edge between two integers may go either way
    assert_close(logits, task.predict(texts, verbose=0), tolerance=1e-2)
    assert np.abs(logits - exact).max() > 1e-4, "it must be the quantized model"


@pytest.mark.slow
def test_trained_with_lora_and_a_subclass_of_the_preprocessor(
    build, ask, texts, tmp_path, tokenizer
):
    """Neither optimizer nor metrics are saved, and texts are changed as the subclass does."""

    class Replacing(RoFormerTextClassifierPreprocessor):
        def call(self, x, y=None, sample_weight=None):
            x = tf.nest.map_structure(lambda text: tf.strings.regex_replace(text, "x", "很"), x)
            return super().call(x, y, sample_weight)

    task = build(RoFormerTextClassifier, num_classes=2)
    task.backbone.enable_lora(2)
    task.fit(["很好", "很差"], [1, 0], verbose=0)
    for weight in task.trainable_variables:
        weight.assign(weight + 0.1)
    preprocessor = Replacing(tokenizer, sequence_length=32)
    folder = export_saved_model(task, tmp_path / "served", preprocessor=preprocessor)
    given = ["x好", *texts]
    expected = task.predict([text.replace("x", "很") for text in given], verbose=0)
    assert_close(ask(folder, texts=encoded(given))["logits"], expected)

    names = [name for name, _ in tf.train.list_variables(str(folder / "variables" / "variables"))]
    weights = [name for name in names if name.startswith("weights/")]
    assert len(weights) == len(task.weights)
    # the others: the table of the tries, which is not a variable, and TensorFlow's description
    assert all("CHECKPOINTABLE" in name for name in set(names) - set(weights))
