"""Epsilon is small next to a variance of 1, and decides everything next to one of 1e-8."""

import keras
import numpy as np
import pytest

from roformer_tf.layers import (
    EncoderBlock,
    MaskedLMHead,
    RMSNorm,
    RoFormerEmbeddings,
    TokenEmbedding,
)
from roformer_tf.layers.rms_norm import make_norm
from tests.layers.harness import numpy
from tests.oracles import numpy_roformer as oracle

SMALL = (1e-4 * np.random.default_rng(3).normal(size=(2, 5, 8))).astype("float32")


@pytest.mark.parametrize("epsilon", [1e-12, 1e-7])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_epsilon_reaches_the_norms(kind, epsilon):
    block = EncoderBlock(8, 16, 2, norm=kind, epsilon=epsilon)
    block.build(SMALL.shape)
    embeddings = RoFormerEmbeddings(5, 8, 8, norm=kind, epsilon=epsilon)
    embeddings.build((2, 5))
    exact = oracle.rms_norm(SMALL, epsilon)
    if kind == "layer_norm":
        exact = oracle.layer_norm(SMALL, np.ones(8), np.zeros(8), epsilon)
    for norm in (block.attention_norm, block.feed_forward_norm, embeddings.norm):
        # mean and variance of numbers of size 1e-4, each rounded to 6e-8 of itself
        np.testing.assert_allclose(numpy(norm(SMALL)), exact, rtol=2e-5, atol=2e-6)
    # one epsilon for the other would show
    assert np.abs(exact).max() > 1 if epsilon == 1e-12 else np.abs(exact).max() < 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed_bfloat16", "bfloat16"])
def test_layer_norm(dtype):
    """With scale and offset, far from zero, where the mean must be subtracted first."""
    rng = np.random.default_rng(4)
    norm = make_norm("layer_norm", 1e-12, dtype=dtype)
    norm.build((2, 5, 8))
    x, scale, offset = rng.normal(30, size=(2, 5, 8)), rng.normal(size=8), rng.normal(size=8)
    norm.set_weights([scale, offset])
    scale, offset = (numpy(weight).astype("float64") for weight in norm.weights)
    x = numpy(keras.ops.cast(x, norm.compute_dtype)).astype("float64")
    output = numpy(norm(x)).astype("float64")
    # of numbers of 30, rounded; the outputs are at most 5, rounded once
    allowed = {"float64": 1e-12, "float32": 2e-5}.get(dtype, 5 * 2.0**-8)
    np.testing.assert_allclose(output, oracle.layer_norm(x, scale, offset, 1e-12), atol=allowed)


def test_epsilon_of_the_head():
    embedding = TokenEmbedding(5, 8)
    embedding.build(None)
    head = MaskedLMHead(embedding)
    head.build(SMALL.shape)
    assert head.norm.epsilon == 1e-12


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_squares_do_not_overflow_or_vanish(dtype):
    """300^2 overflows float16, and (1e-4)^2 vanishes in it: the norm is computed in float32."""
    for scale in (3e4, 1e-4):
        x = (scale * np.random.default_rng(5).uniform(1, 2, size=(3, 8))).astype("float32")
        output = numpy(RMSNorm(epsilon=1e-12, dtype=dtype)(x)).astype("float32")
        # the input and the output are rounded once
        share = 3 * {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}[dtype]
        np.testing.assert_allclose(output, oracle.rms_norm(x, 1e-12), rtol=share)


def test_rms_norm_in_float64():
    x = np.random.default_rng(6).normal(size=(3, 8))
    output = numpy(RMSNorm(epsilon=1e-7, dtype="float64")(x))
    np.testing.assert_allclose(output, oracle.rms_norm(x, 1e-7), rtol=1e-14)


def test_rms_norm_of_zeros():
    np.testing.assert_array_equal(numpy(RMSNorm()(np.zeros((2, 4), "float32"))), 0)
    assert RMSNorm().weights == []
