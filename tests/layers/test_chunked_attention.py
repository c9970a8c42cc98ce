"""Attention in blocks equals plain attention in values, gradients and dropout."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import AttentionMask
from roformer_tf.layers.chunked_attention import chunked_attention
from tests.layers.chunked_cases import HEADS, LENGTH, MASKINGS, B, mask, seed_of
from tests.layers.harness import assert_equal, compiled, gradients, numpy, slope_at_zero

DIM, SIZE = 4, 4  # three blocks, the last of 3


def queries_keys_values(rng, length=LENGTH, scale=1.0):
    """Small, or large enough for a softmax that is nearly one-hot."""
    shape = (B, HEADS, length, DIM)
    return [(scale * rng.normal(size=shape)).astype("float32") for _ in range(3)]


def oracle(query, key, value, bias=0.0, kept=1.0):
    """Equation 2 in float64."""
    scores = query @ np.swapaxes(key, -1, -2) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) * kept @ value


def in_float64(*arrays):
    return [np.asarray(x, "float64") for x in arrays]


@pytest.mark.parametrize("length", [1, 4, 11])
@pytest.mark.parametrize("scale", [1, 8])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("masking", MASKINGS)
def test_equals_float64(masking, documents, scale, length, rng):
    given = queries_keys_values(rng, length, scale)
    bias = numpy(mask(masking, documents, dense=True, length=length))
    seen = np.broadcast_to(bias == 0, (B, 1, length, length)).any(-1)[..., None]
    # near -1e9, float32 rounds away the differences of hidden scores: their average is the mean
    expected = oracle(*in_float64(*given, bias))
    expected = np.where(seen, expected, in_float64(given[2])[0].mean(2, keepdims=True))
    output = numpy(
        chunked_attention(*given, mask(masking, documents, length=length), block_size=SIZE)
    )
    # scores of up to some hundred, rounded to 2^-24 of their size, stand in an exponent
    error = np.abs(output - expected)
    if scale > 1:  # scores above 32 are felt even beside -1e9, as in the plain way
        error = error * seen
    assert error.max() < 1e-6 * scale**3


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("masking", MASKINGS)
def test_gradients(masking, documents, rng):
    """Gradients equal those of plain attention, and float64 differences along a direction."""
    given = queries_keys_values(rng)
    cotangent = rng.normal(size=given[0].shape)
    parts, dense = mask(masking, documents), mask(masking, documents, dense=True)

    def plain(query, key, value):
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) + dense
        return ops.matmul(ops.softmax(scores), value)

    _, expected = gradients(plain, given, cotangent)
    _, found = gradients(lambda *x: chunked_attention(*x, parts, block_size=SIZE), given, cotangent)
    assert_equal(found, expected, atol=5e-6)

    # in float64 hidden scores still differ, so only rows that see something
    bias = numpy(dense).astype("float64")
    seen = np.broadcast_to(bias == 0, (B, 1, LENGTH, LENGTH)).any(-1)[..., None]
    _, found = gradients(
        lambda *x: chunked_attention(*x, parts, block_size=SIZE), given, cotangent * seen
    )
    directions = [rng.normal(size=x.shape) for x in given]

    def loss(step):
        moved = (x + step * d for x, d in zip(in_float64(*given), directions, strict=True))
        return (oracle(*moved, bias) * cotangent * seen).sum()

    numeric = slope_at_zero(loss)
    along = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
    assert abs(along - numeric) < 1e-5 * sum(map(np.linalg.norm, found))


def test_bias_for_each_key(rng):
    given = queries_keys_values(rng)
    for shape in ((B, HEADS, 1, LENGTH), (1, 1, 1, LENGTH)):
        bias = rng.normal(size=shape).astype("float32")
        output = numpy(chunked_attention(*given, bias, block_size=SIZE))
        np.testing.assert_allclose(output, oracle(*in_float64(*given, bias)), atol=2e-6)


def test_lower_bias_than_ours_hides_no_deeper(rng):
    """A key may be hidden by -3.4e38 or -inf. Hiding all keys gives the mean of all values."""
    given = queries_keys_values(rng)
    mean = given[2].mean(2, keepdims=True)
    for lowest in (np.finfo("float32").min, -np.inf):
        bias = np.full((1, 1, 1, LENGTH), lowest, "float32")
        output = numpy(chunked_attention(*given, bias, block_size=SIZE))
        np.testing.assert_allclose(output, np.broadcast_to(mean, output.shape), atol=1e-6)


@pytest.mark.tensorflow("takes TensorFlow's tapes")
def test_second_derivatives_are_refused(rng):
    import tensorflow as tf

    given = [tf.constant(x) for x in queries_keys_values(rng)]
    with tf.GradientTape() as outer:
        outer.watch(given)
        with tf.GradientTape() as inner:
            inner.watch(given)
            loss = tf.reduce_sum(chunked_attention(*given, block_size=SIZE) ** 2)
        penalty = tf.add_n([tf.reduce_sum(x**2) for x in inner.gradient(loss, given)])
    with pytest.raises(NotImplementedError, match="no second derivative.*chunked_above = None"):
        outer.gradient(penalty, given)


def test_hidden_blocks_are_left_out(rng):
    """NaN in the last block reaches no earlier query and none of its gradients."""
    given = queries_keys_values(rng)
    causal = AttentionMask("causal", dense=False)(np.ones((B, LENGTH)))

    def call(*x):
        return chunked_attention(*x, causal, block_size=SIZE)

    clean = numpy(call(*given))
    for x in given:
        x[:, :, 8:] = np.nan
    (output,), (by_query, *_) = gradients(call, given, np.ones_like(clean))
    np.testing.assert_array_equal(output[:, :, :8], clean[:, :, :8])
    assert np.isfinite(by_query[:, :, :8]).all()


@pytest.mark.parametrize("backend_compiles", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, backend_compiles, rng):
    given = [ops.cast(x, dtype) for x in queries_keys_values(rng)]
    call = lambda *x: chunked_attention(*x, mask("causal"), block_size=SIZE)  # noqa: E731
    output = (compiled(call) if backend_compiles else call)(*given)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    expected = oracle(*in_float64(*map(numpy, given), numpy(mask("causal", dense=True))))
    # products, weights and the output are rounded
    share = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    atol = 6 * share * np.abs(expected).max()
    np.testing.assert_allclose(numpy(output)[:2], expected[:2], atol=atol)


def dropped_weights(query, key, seed, rate, size=SIZE):
    """The weights after dropout, as the averages of unit vectors."""
    length = query.shape[2]
    eye = np.broadcast_to(np.eye(length, dtype="float32"), (*query.shape[:2], length, length))
    pad = [(0, 0)] * 3 + [(0, length - query.shape[3])]
    query, key = np.pad(query, pad), np.pad(key, pad)
    return numpy(chunked_attention(query, key, eye, None, rate, seed, size))


def test_dropout_is_the_same_in_the_backward_pass(rng):
    given, rate, seed = queries_keys_values(rng), 0.375, seed_of(3)
    kept = dropped_weights(*given[:2], seed, rate) / dropped_weights(*given[:2], seed, 0.0)
    assert set(np.unique(kept).astype("float64").round(3)) == {0, 1.6}
    cotangent = rng.normal(size=given[0].shape)
    output, found = gradients(
        lambda *x: chunked_attention(*x, None, rate, seed, SIZE), given, cotangent
    )
    kept = np.round(kept, 1)  # without the rounding of the division
    np.testing.assert_allclose(output[0], oracle(*in_float64(*given), kept=kept), atol=2e-5)
    for i, gradient in enumerate(found):
        direction = rng.normal(size=gradient.shape)

        def loss(step, i=i, direction=direction):
            moved = in_float64(*given)
            moved[i] += step * direction
            return (oracle(*moved, kept=kept) * cotangent).sum()

        numeric = slope_at_zero(loss)
        assert abs((gradient * direction).sum() - numeric) < 1e-4 * np.linalg.norm(gradient)


def test_dropout_drops_each_weight_by_itself(rng):
    query = key = rng.normal(size=(200, 1, 12, DIM)).astype("float32")
    seeds = [seed_of(1), seed_of(2)]
    draws, others = (dropped_weights(query, key, seed, 0.3) > 0 for seed in seeds)
    draws = draws.reshape(len(draws), -1).astype("float64")
    # of all numbers, and of each alone: four or five standard deviations
    assert abs(draws.mean() - 0.7) < 4 * np.sqrt(0.21 / draws.size)
    assert np.abs(draws.mean(0) - 0.7).max() < 5 * np.sqrt(0.21 / len(draws))
    correlation = np.corrcoef(draws.T) - np.eye(draws.shape[1])
    assert np.abs(correlation).max() < 6 / np.sqrt(len(draws))
    assert abs((draws == others.reshape(draws.shape)).mean() - 0.58) < 4 * 0.5 / draws.size**0.5
