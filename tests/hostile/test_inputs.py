"""Every public method answers wrong inputs, or says what is wrong with them."""

import json

import keras
import numpy as np
import pytest

from roformer_tf.models import fill_mask
from tests.hostile.inputs import TEXTS, model, run_inputs
from tests.models import builders


@pytest.mark.slow
def test_no_input_is_a_defect():
    records = list(run_inputs())
    defects = [record for record in records if record["outcome"] == "defect"]
    assert not defects, json.dumps(defects, ensure_ascii=False, indent=1)
    assert len(records) > 1300


def test_one_hot_labels_with_their_loss():
    classifier = builders.task("classifier", preprocessor={})
    losses = []
    for y, loss in (
        ([2, 0], keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        ([[0, 0, 1], [1, 0, 0]], keras.losses.CategoricalCrossentropy(from_logits=True)),
    ):
        classifier.compile("sgd", loss, jit_compile=False)
        losses.append(classifier.evaluate(TEXTS, y, verbose=0))
    np.testing.assert_allclose(*losses, rtol=1e-6)
    classifier.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="One-hot labels need .*CategoricalCrossentropy"):
        classifier.fit(TEXTS, [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_outputs_that_are_not_finite_are_errors(dtype):
    """Weights can become NaN after loading, by training; float16 overflows with healthy ones."""
    value = np.nan if dtype == "float32" else 3e4
    message = "outputs are NaN or infinite. Its weights" if dtype == "float32" else "mixed_bfloat16"
    sim = builders.task("causal_lm_sim", preprocessor={}, dtype=dtype)
    masked_lm = builders.task("masked_lm", preprocessor={}, dtype=dtype)
    for task in (sim, masked_lm):
        kernel = task.backbone.encoder_blocks[0].feed_forward.output_dense.kernel
        kernel.assign(np.full(kernel.shape, value))
        kernel = task.backbone.encoder_blocks[0].feed_forward.intermediate_dense.kernel
        large = np.where(np.arange(kernel.shape[1]) % 2, 3e4, -3e4)  # one of the signs is left
        kernel.assign(np.where(np.arange(kernel.shape[0])[:, None] == 0, large, 0.0))
    sim.compile(sampler="greedy", jit_compile=False)
    for call in (
        lambda: sim.generate(TEXTS, max_length=8),
        lambda: sim.score(TEXTS),
        lambda: fill_mask(masked_lm, "天[MASK]"),
        lambda: masked_lm.predict(TEXTS, verbose=0),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    "name, values",
    [
        ("token_ids", [[2, 48]]), ("token_ids", [[2, -1]]), ("token_ids", [[2.5, 3]]),
        ("token_ids", [2, 3]), ("padding_mask", [[1, 2]]), ("padding_mask", [[0.5, 1]]),
        ("padding_mask", [[1]]), ("segment_ids", [[0, 2]]), ("mask_positions", [[2]]),
    ],
)  # fmt: skip
def test_ids_are_checked(name, values):
    inputs = {"token_ids": np.array([[2, 7]]), name: np.array(values)}
    masked_lm = model("masked_lm")
    for call in (masked_lm, lambda x: masked_lm.predict(x, verbose=0)):
        with pytest.raises(ValueError, match=f"`{name}` must hold whole numbers"):
            call(inputs)
    if name != "mask_positions":
        with pytest.raises(ValueError, match=f"`{name}` must hold whole numbers"):
            masked_lm.backbone(inputs)


@pytest.mark.parametrize("weights", [[np.nan, 1.0], [np.inf, 1.0]])
def test_sample_weights_must_be_finite(weights):
    with pytest.raises(ValueError, match="A sample weight is NaN or infinite"):
        model("classifier").fit(TEXTS, [0, 1], sample_weight=weights, verbose=0)


def test_lengths_are_bounded():
    with pytest.raises(ValueError, match="`max_length` must be at most 1,048,576"):
        model("causal_lm").generate(TEXTS, max_length=10**9)
    with pytest.raises(ValueError, match="`sequence_length` must be .* at most 1,048,576"):
        type(model("classifier").preprocessor)(builders.tokenizer(), sequence_length=10**9)
