"""Keras' own harness for layers, `keras.src.testing.TestCase.run_layer_test`, run on ours, on any backend.

Position schemes other than the base class return a context for attention, which the harness cannot train on: they
run through it inside `SelfAttention`.
"""

import keras
import pytest
from keras.src.testing import TestCase

from roformer_tf import layers

X = (2, 6, 16)
HEADS = (2, 3, 6, 8)  # (batch, num_heads, length, head_dim)


def attention(scheme):
    return layers.SelfAttention, {"num_heads": 2, "head_dim": 8, "position_scheme": scheme}, X


def block(cls=layers.EncoderBlock, **options):
    sizes = {"hidden_dim": 16, "intermediate_dim": 24, "num_heads": 2}
    return cls, {**sizes, **options}, X


CASES = {
    "rotary_embedding": lambda: (layers.RotaryEmbedding, {}, X),
    "rotary_embedding_options": lambda: (
        layers.RotaryEmbedding,
        {"layout": "interleaved", "rotary_dim": 4, "scaling_factor": 2.0},
        HEADS,
    ),
    "rotary_multi_head_attention": lambda: (
        layers.RotaryMultiHeadAttention,
        {"num_heads": 4, "key_dim": 8, "num_key_value_heads": 2},
        {"query_shape": X, "value_shape": (2, 4, 12)},
    ),
    "rotary_multi_head_linear_attention": lambda: (
        layers.RotaryMultiHeadAttention,
        {"num_heads": 4, "key_dim": 8, "feature_map": layers.EluFeatureMap()},
        {"query_shape": X, "value_shape": (2, 4, 12)},
    ),
    "attention_without_positions": lambda: attention(None),
    "attention_rotary": lambda: attention(layers.RotaryPosition(8)),
    "attention_learned_frequencies": lambda: attention(layers.RotaryPosition(8, learned=True)),
    "attention_nezha": lambda: attention(layers.SinusoidalRelativePosition(8)),
    "attention_t5": lambda: attention(layers.T5RelativeBias(2)),
    "attention_relative": lambda: attention(layers.RelativePosition(8)),
    "linear_attention": lambda: (
        layers.LinearAttention,
        {"num_heads": 2, "head_dim": 8, "position_scheme": layers.RotaryPosition(8)},
        X,
    ),
    "linear_attention_causal": lambda: (
        layers.LinearAttention,
        {"num_heads": 2, "head_dim": 8, "causal": True},
        X,
    ),
    "cross_attention": lambda: (
        layers.CrossAttention,
        {"num_heads": 2, "head_dim": 8},
        {"x_shape": X, "encoder_sequence_shape": (2, 4, 12)},
    ),
    "encoder_block": lambda: block(position_scheme=layers.RotaryPosition(8)),
    "encoder_block_v2": lambda: block(norm="rms_norm", use_bias=False, activation="relu"),
    "encoder_block_linear": lambda: block(feature_map=layers.EluFeatureMap(), causal=True),
    "decoder_block": lambda: block(layers.DecoderBlock, position_scheme=layers.RotaryPosition(8)),
    "feed_forward": lambda: (layers.FeedForward, {"hidden_dim": 16, "intermediate_dim": 24}, X),
    "flat_dense": lambda: (layers.FlatDense, {"units": 5}, X),
    "rms_norm": lambda: (layers.RMSNorm, {}, X),
    "pooler": lambda: (layers.Pooler, {}, X),
    "mean_pooling": lambda: (layers.MeanPooling, {}, X),
    "dropout": lambda: (layers.Dropout, {"rate": 0.3}, X),
}


class Harness(TestCase):
    def runTest(self):
        """Makes an instance without a test of its own."""


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_layer(name):
    cls, arguments, shape = CASES[name]()
    harness = Harness()
    # inputs by name cannot be trained on: the harness' model has one input
    single = isinstance(shape, tuple)
    if single:
        harness.run_layer_test(cls, init_kwargs=arguments, input_shape=shape)
        return
    data = {k.removesuffix("_shape"): keras.random.normal(v) for k, v in shape.items()}
    layer = cls(**arguments)
    layer.build(**shape)
    harness.run_class_serialization_test(cls(**arguments))
    assert layer(**data).shape == layer.compute_output_spec(**data).shape
