import keras
import numpy as np
import pytest

from roformer_tf.layers import MaskedLMHead, RoFormerEmbeddings, TokenEmbedding
from tests.layers.harness import assert_equal, built, gradients, numpy
from tests.layers.numpy_adam import NumpyAdam

# Id 3 stands four times in a batch, 4 twice, 9 never.
BATCHES = np.array([[[3, 3, 1], [3, 4, 3]], [[4, 4, 3], [0, 1, 3]], [[3, 3, 3], [2, 2, 3]]])
TARGETS = np.random.default_rng(11).normal(size=(3, 2, 3, 5))


def trained(layer, start):
    """The table after three steps of `keras.optimizers.Adam` on sum((vectors - targets)^2)."""
    import tensorflow as tf

    layer.build((None, 3))
    layer.set_weights([start])
    optimizer = keras.optimizers.Adam(0.1)
    for ids, targets in zip(BATCHES, TARGETS, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((layer(ids) - targets.astype("float32")) ** 2)
        gradient = tape.gradient(loss, layer.trainable_variables[0].value)
        optimizer.apply([gradient], layer.trainable_variables)
    return layer.get_weights()[0], gradient


def by_formula(start):
    adam = NumpyAdam({"table": start}, learning_rate=0.1)
    for ids, targets in zip(BATCHES, TARGETS, strict=True):
        gradient = np.zeros_like(adam.values["table"])
        # adds up what falls on the same row
        np.add.at(gradient, ids, 2 * (adam.values["table"][ids] - targets))
        adam.step({"table": gradient})
    return adam.values["table"]


@pytest.mark.tensorflow("sparse gradients of TensorFlow")
def test_adam_sees_the_sum_of_the_gradients_of_an_id(rng):
    import tensorflow as tf

    start = rng.normal(size=(10, 5)).astype("float32")
    table, gradient = trained(TokenEmbedding(10, 5), start)
    assert isinstance(gradient, tf.Tensor)
    np.testing.assert_allclose(table, by_formula(start), atol=2e-6)  # float32 against float64

    stock, gradient = trained(keras.layers.ReversibleEmbedding(10, 5), start)
    assert isinstance(gradient, tf.IndexedSlices)
    assert np.abs(stock - by_formula(start)).max() > 1e-2, (
        "Keras' Adam now adds up the gradients of repeated ids: `TokenEmbedding` may give way to "
        "`keras.layers.ReversibleEmbedding`"
    )


def test_gradient_of_both_uses_of_a_tied_table(rng):
    """Look-up and logits: the gradient of the one table is the sum of both."""
    layer = built(TokenEmbedding(10, 5))
    ids, cotangent = BATCHES[0], rng.normal(size=(2, 3, 10))
    _, (gradient,) = gradients(lambda: layer(layer(ids), reverse=True), [], cotangent, layer)
    table = layer.get_weights()[0].astype("float64")
    expected = np.einsum("btv,bte->ve", cotangent, table[ids])
    np.add.at(expected, ids, cotangent @ table)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_logits_of_a_step(rng, rows):
    """One token for each text. On TensorFlow the number of texts chooses the computation."""
    layer = built(TokenEmbedding(20, 6))
    x, cotangent = rng.normal(size=(rows, 1, 6)).astype("float32"), rng.normal(size=(rows, 1, 20))
    (logits,), (by_x, by_table) = gradients(lambda x: layer(x, reverse=True), [x], cotangent, layer)
    table = layer.get_weights()[0].astype("float64")
    # sums of up to nine products in float32
    np.testing.assert_allclose(logits, x @ table.T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(by_x, cotangent @ table, rtol=1e-6, atol=1e-6)
    expected = np.einsum("btv,bte->ve", cotangent, x)
    np.testing.assert_allclose(by_table, expected, rtol=1e-6, atol=1e-6)


def test_logits_are_computed_in_the_compute_dtype():
    for dtype in ("float16", "bfloat16"):
        layer = TokenEmbedding(10, 5, dtype=f"mixed_{dtype}")
        logits = layer(np.ones((2, 5), "float32"), reverse=True)
        assert keras.backend.standardize_dtype(logits.dtype) == dtype
    layer = TokenEmbedding(10, 5, dtype="mixed_bfloat16", reverse_dtype="float32")
    logits = layer(np.ones((2, 5), "float32"), reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert TokenEmbedding.from_config(layer.get_config()).reverse_dtype == "float32"
    assert TokenEmbedding(10, 5).get_config()["reverse_dtype"] is None


def test_mask_of_zeros():
    layer, inputs = built(TokenEmbedding(10, 5, mask_zero=True)), keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
    mean = layer.get_weights()[0][[1, 2]].mean(0)
    np.testing.assert_allclose(numpy(model(np.array([[1, 2, 0]])))[0], mean, rtol=1e-6, atol=1e-7)


def test_order_of_norm_and_dropout():
    """v1 drops after the norm, so there are zeros. v2 drops before it: the mean square is 1."""
    ids = np.arange(200).reshape(1, 200) % 20
    for norm in ("layer_norm", "rms_norm"):
        layer = RoFormerEmbeddings(20, 64, 64, num_segments=0, dropout=0.5, norm=norm)
        built(layer, (1, 200))
        output = numpy(layer(ids, training=True))
        still = numpy(layer(ids, training=False))
        kept = output != 0
        assert 0.45 < kept.mean() < 0.55  # 12,800 draws: five standard deviations are 0.022
        if norm == "layer_norm":
            np.testing.assert_allclose(output[kept], 2 * still[kept], rtol=1e-6)
        else:
            np.testing.assert_allclose((output**2).mean(-1), 1, rtol=1e-4)


def test_one_table_for_several_layers(tmp_path):
    """In a model that is saved and loaded, too: two embeddings and a head with the same table."""
    first = RoFormerEmbeddings(9, 4, 6)
    other = RoFormerEmbeddings(9, 4, 4, num_segments=0, token_embedding=first.token_embedding)
    head = MaskedLMHead(first.token_embedding)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, [head(first(ids, 0 * ids)), other(ids)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    layers = [layer for layer in loaded.layers if hasattr(layer, "token_embedding")]
    assert len(layers) == 3 and len({id(layer.token_embedding) for layer in layers}) == 1
    assert_equal(loaded.get_weights(), model.get_weights())
    assert_equal(loaded.predict(np.arange(9)[None]), model.predict(np.arange(9)[None]))


def test_a_table_of_another_size():
    with pytest.raises(ValueError, match=r"\(9, 4\). Received: one of \(8, 4\)"):
        RoFormerEmbeddings(9, 4, 6, token_embedding=TokenEmbedding(8, 4))
