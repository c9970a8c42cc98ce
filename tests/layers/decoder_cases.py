"""Cross-attention and decoder block, with float64 oracles from Vaswani et al., section 3."""

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case, rotary_context
from tests.oracles import numpy_roformer as oracle
from tests.oracles.numpy_roformer import dense, norm

B, T, S, H, HEADS, F = 2, 5, 7, 16, 2, 24
HEAD_DIM = H // HEADS

_rng = np.random.default_rng(1706_03762)
X = _rng.normal(size=(B, T, H)).astype("float32")
MEMORY = _rng.normal(size=(B, S, H)).astype("float32")
PADDING = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
MEMORY_BIAS = np.where(PADDING == 1, 0, -1e9).astype("float32")[:, None, None]
CAUSAL = np.where(np.tri(T) == 1, 0, -1e9).astype("float32")[None, None]
POSITIONS = np.array([0, 1, 2, 7, 1000])


def _attention(query, key, value, bias):
    """Of (b, t, H) queries and (b, s, H) keys and values, head by head."""
    visible = np.broadcast_to(bias, (len(query), 1, query.shape[1], key.shape[1]))[:, 0] == 0
    split = (x.reshape(*x.shape[:2], HEADS, -1) for x in (query, key, value))
    return oracle.attention(*split, visible).reshape(query.shape)


def cross_attention(weights, x, encoder_sequence, attention_bias=0, prefix=""):
    """Equation 1 of each head: queries of the decoder, keys and values of the encoder."""
    query = dense(x, weights, f"{prefix}query")
    key, value = np.split(dense(encoder_sequence, weights, f"{prefix}key_value"), 2, axis=-1)
    return dense(_attention(query, key, value, attention_bias), weights, f"{prefix}output_dense")


def self_attention(weights, x, bias, positions, prefix="attention/"):
    """Queries and keys rotated by their positions."""
    query, key, value = np.split(dense(x, weights, f"{prefix}qkv"), 3, axis=-1)
    query, key = (
        oracle.rotary_half(x.reshape(*x.shape[:2], HEADS, -1), positions).reshape(x.shape)
        for x in (query, key)
    )
    return dense(_attention(query, key, value, bias), weights, f"{prefix}output_dense")


def block(weights, x, positions, epsilon, bias, encoder_sequence=None, encoder_bias=None):
    """Of the decoder, or without `encoder_sequence` of the encoder."""
    x = np.asarray(x, "float64")
    x = norm(x + self_attention(weights, x, bias, positions), weights, "attention_norm", epsilon)
    if encoder_sequence is not None:
        update = cross_attention(weights, x, encoder_sequence, encoder_bias, "cross_attention/")
        x = norm(x + update, weights, "cross_attention_norm", epsilon)
    relu = oracle.ACTIVATIONS["relu"]  # looked up here, as tests replace it
    hidden = relu(dense(x, weights, "feed_forward/intermediate_dense"))
    update = dense(hidden, weights, "feed_forward/output_dense")
    return norm(x + update, weights, "feed_forward_norm", epsilon)


def decoder_block(weights, x, encoder_sequence, attention_bias, encoder_attention_bias, position):
    encoder = encoder_sequence, encoder_attention_bias
    return block(weights, x, POSITIONS, 1e-12, attention_bias, *encoder)


def _block(**kwargs):
    scheme = layers.RotaryPosition(HEAD_DIM)
    return layers.DecoderBlock(H, F, HEADS, activation="relu", position_scheme=scheme, **kwargs)


DECODER_CASES = [
    Case(
        "cross_attention",
        lambda **kwargs: layers.CrossAttention(HEADS, HEAD_DIM, **kwargs),
        {"x": X, "encoder_sequence": MEMORY, "attention_bias": MEMORY_BIAS},
        cross_attention,
        noise=2e-6,
    ),
    Case(
        "cross_attention_without_bias",
        lambda **kwargs: layers.CrossAttention(HEADS, HEAD_DIM, use_bias=False, **kwargs),
        {"x": X, "encoder_sequence": MEMORY[:, :, :12]},  # another width
        cross_attention,
        noise=2e-6,
        # inputs, kernel, query or key, score, probability, average, kernel and output
        roundings=8,
    ),
    Case(
        "decoder_block",
        _block,
        {
            "x": X,
            "encoder_sequence": MEMORY,
            "attention_bias": np.repeat(CAUSAL, B, 0),
            "encoder_attention_bias": MEMORY_BIAS,
            "position": rotary_context(np.repeat(POSITIONS[None], B, 0), HEAD_DIM),
        },
        decoder_block,
        noise=2e-6,
        roundings=12,
    ),
]
