"""LiteRT and ONNX files give the numbers of Keras, for batches of any size and texts of any length."""

import functools

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.portable import portable_operations
from tests.layers.harness import numpy
from tests.models import builders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports with TensorFlow"),
    # of tf2onnx and of TensorFlow's converter
    pytest.mark.filterwarnings("ignore"),
]
# other kernels for the same sums of 32 numbers
NOISE = 2e-5
one_layer = functools.partial(builders.backbone, num_layers=1)
MODELS = {
    "v1": lambda: builders.backbone("v1"),
    "gpt": lambda: builders.backbone("gpt"),
    "sim": lambda: builders.backbone("sim"),
    "v2": lambda: builders.backbone("v2_factorised"),
    "bert": lambda: builders.backbone("v1_pooler", position_scheme="learned"),
    "classifier": lambda: roformer_tf.RoFormerTextClassifier(one_layer("v1"), 3),
    "masked_lm": lambda: roformer_tf.RoFormerMaskedLM(one_layer("v1")),
    "sim_classifier": lambda: roformer_tf.RoFormerSimClassifier(one_layer("sim")),
}


def run_litert(path, inputs):
    from ai_edge_litert.interpreter import Interpreter

    return list(Interpreter(str(path)).get_signature_runner("serving_default")(**inputs).values())


def run_onnx(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    assert {part.name for part in session.get_inputs()} == set(inputs)
    return session.run(None, inputs)


FORMATS = {
    "litert": ("tflite", run_litert, ["ai_edge_litert"]),
    "onnx": ("onnx", run_onnx, ["tf2onnx", "onnxruntime"]),
}


def given(rng, model, batch, length):
    x = builders.inputs(rng, batch, length)
    if "mask_positions" in model.input:
        x["mask_positions"] = rng.integers(0, length, size=(batch, 2)).astype("int32")
    if len(model.input["token_ids"].shape) == 3:
        x = {name: np.stack([value, value[::-1]], axis=1) for name, value in x.items()}
    return x


def check(model, path, run, rng):
    for batch, length in ((1, 4), (3, 9)):
        x = given(rng, model, batch, length)
        outputs, expected = run(path, x), keras.tree.flatten(model(x))
        assert len(outputs) == len(expected)
        for want in map(numpy, expected):
            same = [o for o in outputs if o.shape == want.shape]
            assert min(np.abs(o - want).max() for o in same) < NOISE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_gives_the_numbers_of_keras(name, format, rng, tmp_path):
    ending, run, packages = FORMATS[format]
    for package in packages:
        pytest.importorskip(package)
    model = MODELS[name]()
    model.export(tmp_path / f"model.{ending}", format=format, verbose=False)
    check(model, tmp_path / f"model.{ending}", run, rng)


def test_a_model_of_ones_own(rng, tmp_path):
    pytest.importorskip("ai_edge_litert")
    backbone = builders.backbone("v1")
    model = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output[:, 0]))
    with portable_operations():
        model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    check(model, tmp_path / "model.tflite", run_litert, rng)


def test_a_task_with_a_tokenizer_to_litert(rng, tmp_path):
    """The tokenizer's tables, which LiteRT lacks, stay out of the file."""
    pytest.importorskip("ai_edge_litert")
    model = builders.task("classifier", preprocessor={})
    model.predict(builders.texts(rng, 2), verbose=0)
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    check(model, tmp_path / "model.tflite", run_litert, rng)
    assert model.preprocessor is not None
