"""Inputs longer than `SelfAttention.chunked_above`: the same numbers everywhere."""

import keras
import numpy as np
import pytest

from tests.layers.harness import assert_close, gradients
from tests.models.builders import (
    backbone,
    inputs,
    packed_documents,
    sequence,
    task,
)

# float32 through two blocks, where sums are taken in another order
NOISE = 1e-5


def chunked(model, above=0):
    """The same model, with chunked attention above a length."""
    for block in getattr(model, "backbone", model).encoder_blocks:
        block.attention.chunked_above = above
    return model


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("masking", ["bidirectional", "causal", "unilm"])
def test_models(masking, packed, rng):
    given = packed_documents(rng)[1] if packed else inputs(rng)
    whole, blocks = backbone(masking=masking), chunked(backbone(masking=masking))
    cotangent = rng.normal(size=sequence(whole(given)).shape)
    (one, by_one), (other, by_other) = (
        gradients(lambda model=model: model(given), [], cotangent, model)
        for model in (whole, blocks)
    )
    assert np.abs(one[0] - other[0]).max() > 0  # the computations differ
    assert_close(other + by_other, one + by_one, NOISE)


@pytest.mark.parametrize("masking", ["bidirectional", "causal", "unilm"])
def test_floatx_changes_no_dtype(masking, rng):
    """A model of float32 stays one, whatever Keras makes of a number without a dtype."""
    given = inputs(rng)
    model = chunked(backbone(masking=masking, num_layers=1))
    expected = sequence(model(given))
    keras.config.set_floatx("float64")
    np.testing.assert_array_equal(sequence(model(given)), expected)


def test_schemes_that_need_scores_stay_whole(rng):
    given = inputs(rng)
    model = backbone(position_scheme="sinusoidal_relative", masking="causal")
    expected = sequence(model(given))
    np.testing.assert_array_equal(sequence(chunked(model)(given)), expected)


@pytest.mark.slow
@pytest.mark.tensorflow("is TensorFlow's own")
def test_fit_of_any_length_under_a_strategy():
    """One graph for batches below and above the threshold, on two replicas.

    The losses are those of plain attention.
    """
    import tensorflow as tf

    from roformer_tf.pretraining.strategies import choose_strategy

    rng = np.random.default_rng(0)
    batches = []
    for length in (7, 12, 9):
        x = inputs(rng, batch=4, length=length)
        batches.append((x, np.roll(x["token_ids"], -1, 1), x["padding_mask"].astype("float32")))
    strategy = choose_strategy(cpu_replicas=2)
    losses = []
    for above in (None, 8):
        with strategy.scope():
            model = chunked(task("causal_lm"), above)
            model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
        spec = keras.tree.map_structure(
            lambda x: tf.TensorSpec([None, None], tf.as_dtype(x.dtype)), batches[0]
        )
        data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
        data = data.apply(tf.data.experimental.assert_cardinality(3))
        losses.append(model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.tensorflow("is TensorFlow's own")
def test_saved_model_of_any_length(rng, tmp_path):
    import tensorflow as tf

    model = chunked(backbone(masking="causal"), 8)
    names = ("token_ids", "segment_ids", "padding_mask")
    module = tf.Module()
    module.model = model
    module.serve = tf.function(lambda **given: model(given))
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}
    tf.saved_model.save(module, tmp_path, module.serve.get_concrete_function(**specs))
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    for length in (6, 13):
        given = inputs(rng, length=length)
        (found,) = serve(**{k: tf.constant(v) for k, v in given.items()}).values()
        np.testing.assert_allclose(found, sequence(model(given)), atol=NOISE)
