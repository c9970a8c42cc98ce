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
    pytest.mark.tensorflow("exports with TensorFlow"),
    # of tf2onnx and of TensorFlow's converter
    pytest.mark.filterwarnings("ignore"),
]
# other kernels for the same sums of 32 numbers
NOISE = 2e-5
HIDDEN = -1e30  # LiteRT has the smallest float32 in place of minus infinity
one_layer = functools.partial(builders.backbone, "v1", num_layers=1)


def entities(head, labels=("a", "b"), **options):
    return builders.randomized(
        roformer_tf.RoFormerTokenClassifier(one_layer(**options), labels=labels, head=head)
    )


def reading(head, **options):
    return builders.randomized(
        roformer_tf.RoFormerQuestionAnswering(one_layer(**options), head=head)
    )


# Each head, scheme and feature map computes with slices of its own. A scheme shares a model with a head.
MODELS = {
    "gpt": lambda: builders.backbone("gpt"),
    "sim": lambda: builders.backbone("sim", pooler="tanh"),
    "classifier_with_a_tokenizer": lambda: builders.task(
        "classifier", preprocessor={}, num_layers=2
    ),
    "choices_with_a_tokenizer": lambda: builders.randomized(
        roformer_tf.RoFormerMultipleChoice(
            one_layer(),
            roformer_tf.RoFormerMultipleChoicePreprocessor(
                builders.tokenizer(), sequence_length=16
            ),
        )
    ),
    "masked_lm": lambda: roformer_tf.RoFormerMaskedLM(one_layer()),
    "sim_classifier": lambda: roformer_tf.RoFormerSimClassifier(
        builders.backbone("sim", num_layers=1)
    ),
    "mean_causal_linear": lambda: roformer_tf.RoFormerTextClassifier(
        one_layer(attention="softmax_features", masking="causal"), 3, pooling="mean"
    ),
    "crf_linear": lambda: entities("crf", attention="elu"),
    "softmax_relative": lambda: entities("softmax", position_scheme="relative"),
    "efficient_sinusoidal": lambda: entities(
        "efficient_global_pointer", position_scheme="sinusoidal_relative"
    ),
    "v2_pointer_of_one_label": lambda: entities(
        "global_pointer", labels=("a",), embedding_dim=12, **builders.V2
    ),
    "pointer_of_two_labels": lambda: entities("global_pointer"),
    "reading_deberta": lambda: reading("separate", position_scheme="deberta"),
    "bert_reading_by_a_pointer": lambda: reading("joint", position_scheme="learned"),
}


@functools.cache
def made(name):
    """Returns a model, which is exported in each format."""
    return MODELS[name]()


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
    if "answer_mask" in model.input:
        x["answer_mask"] = x["padding_mask"]
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
            is_hidden = np.isneginf(want)
            same = [o for o in outputs if o.shape == want.shape and (o[is_hidden] < HIDDEN).all()]
            assert min(np.abs(o - want)[~is_hidden].max() for o in same) < NOISE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_gives_the_numbers_of_keras(name, format, rng, tmp_path):
    ending, run, packages = FORMATS[format]
    for package in packages:
        pytest.importorskip(package)
    model = made(name)
    if name.endswith("with_a_tokenizer"):  # whose tables, which LiteRT lacks, stay out
        model.run_on(builders.texts(rng, 2, shortest=5))
    path = tmp_path / "new" / f"model.{ending}"  # folders are made, as for a SavedModel
    model.export(path, format=format, verbose=False)
    check(model, path, run, rng)
    assert not name.endswith("with_a_tokenizer") or model.preprocessor is not None


@pytest.mark.parametrize(
    "format, dtype", [("onnx", "mixed_bfloat16"), ("litert", "mixed_bfloat16"), ("litert", "int8")]
)
def test_what_a_runtime_lacks_is_refused(format, dtype, tmp_path):
    policy = dtype if dtype != "int8" else "float32"
    model = roformer_tf.RoFormerTextClassifier(one_layer(dtype=policy), 3)
    if dtype == "int8":
        model.quantize("int8")
    with pytest.raises(ValueError, match=f"computes in .*{dtype.removeprefix('mixed_')}"):
        model.export(tmp_path / "model", format=format, verbose=False)


def test_a_model_of_ones_own(rng, tmp_path):
    pytest.importorskip("ai_edge_litert")
    backbone = builders.backbone("v1")
    model = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output[:, 0]))
    with portable_operations():
        model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    check(model, tmp_path / "model.tflite", run_litert, rng)
