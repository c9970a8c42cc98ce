"""Keras' own harness for layers, `keras.src.testing.TestCase.run_layer_test`, run on ours.

Schemes that return a context for attention, and feature maps, have no single output to train on.
They run inside `SelfAttention` and `LinearAttention`. Mixed precision is left out of two cases:
Performer's random features stay in float32 under every dtype policy, and logits have the dtype of
the token embedding, which is a layer of its own.
"""

import keras
import numpy as np
import pytest
from keras import ops
from keras.src.testing import TestCase

from roformer_tf import layers
from tests.layers.harness import numpy

X = (2, 6, 16)
IDS = np.array([[2, 5, 3, 0], [2, 6, 7, 3]], "int32")
SPANS = {"head_dim": 8, "tril_mask": False}  # a loss of masked scores would be infinite
HEADS = (2, 3, 6, 8)  # (batch, num_heads, length, head_dim)


def attention(scheme):
    return layers.SelfAttention, {"num_heads": 2, "head_dim": 8, "position_scheme": scheme}, X


def linear(feature_map):
    return layers.LinearAttention, {"num_heads": 2, "head_dim": 8, "feature_map": feature_map}, X


def block(cls=layers.EncoderBlock, **options):
    sizes = {"hidden_dim": 16, "intermediate_dim": 24, "num_heads": 2}
    return cls, {**sizes, **options}, X


# like others, or made of layers that have cases of their own
ALSO = (
    "attention_learned_frequencies",
    "linear_attention_softmax",
    "linear_attention_performer",
    "linear_attention_causal",
    "encoder_block_v2",
    "encoder_block_linear",
    "decoder_block",
)

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
    "attention_t5": lambda: attention(layers.T5RelativeBias(2)),
    "attention_relative": lambda: attention(layers.RelativePosition(8)),
    "attention_sinusoidal_relative": lambda: attention(layers.SinusoidalRelativePosition(8)),
    "attention_transformer_xl": lambda: attention(layers.TransformerXLPosition(2, 8)),
    "attention_tupe": lambda: attention(layers.TupePosition(9, 2, 8)),
    "attention_deberta": lambda: attention(layers.DebertaPosition(16)),
    "learned_position": lambda: (
        layers.LearnedPosition,
        {"max_sequence_length": 9, "embedding_dim": 8},
        IDS,
    ),
    "sinusoidal_position": lambda: (layers.SinusoidalPosition, {"embedding_dim": 8}, X),
    "linear_attention_performer": lambda: linear(layers.FavorFeatureMap(seed=1)),
    "linear_attention_softmax": lambda: linear(layers.SoftmaxFeatureMap(normalize_keys=True)),
    "linear_attention_cosine": lambda: linear(layers.CosineFeatureMap()),
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
    "token_embedding": lambda: (
        layers.TokenEmbedding,
        {"input_dim": 9, "output_dim": 8, "tie_weights": True},
        IDS,
    ),
    "roformer_embeddings": lambda: (
        layers.RoFormerEmbeddings,
        {"vocabulary_size": 9, "embedding_dim": 8, "hidden_dim": 16, "num_segments": 0},
        IDS,
    ),
    "masked_lm_head": lambda: (
        layers.MaskedLMHead,
        {"token_embedding": layers.TokenEmbedding(9, 16)},
        X,
    ),
    "attention_mask": lambda: (layers.AttentionMask, {}, IDS),
    "feed_forward": lambda: (layers.FeedForward, {"hidden_dim": 16, "intermediate_dim": 24}, X),
    "flat_dense": lambda: (layers.FlatDense, {"units": 5}, X),
    "rms_norm": lambda: (layers.RMSNorm, {}, X),
    "pooler": lambda: (layers.Pooler, {}, X),
    "mean_pooling": lambda: (layers.MeanPooling, {}, X),
    "global_pointer": lambda: (layers.GlobalPointer, {**SPANS, "num_heads": 3}, X),
    "efficient_global_pointer": lambda: (
        layers.EfficientGlobalPointer,
        {**SPANS, "num_heads": 3},
        X,
    ),
    "conditional_random_field": lambda: (layers.ConditionalRandomField, {"lr_multiplier": 10}, X),
    "dropout": lambda: (layers.Dropout, {"rate": 0.3}, X),
}


class Harness(TestCase):
    def runTest(self):
        """Makes an instance without a test of its own."""


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ALSO else n for n in CASES]
)
def test_layer(name):
    cls, arguments, shape = CASES[name]()
    harness = Harness()
    if shape is IDS:
        harness.run_layer_test(cls, init_kwargs=arguments, input_data=ops.convert_to_tensor(IDS))
        return
    # inputs by name cannot be trained on: the harness' model has one input
    single = isinstance(shape, tuple)
    if single:
        harness.run_layer_test(
            cls,
            init_kwargs=arguments,
            input_shape=shape,
            run_mixed_precision_check=not name.endswith(("performer", "lm_head")),
        )
        return
    data = {k.removesuffix("_shape"): keras.random.normal(v) for k, v in shape.items()}
    layer = cls(**arguments)
    layer.build(**shape)
    harness.run_class_serialization_test(cls(**arguments))
    assert layer(**data).shape == layer.compute_output_spec(**data).shape


@pytest.mark.parametrize(
    "name",
    [
        "attention_rotary",
        "linear_attention",
        "encoder_block",
        "decoder_block",
        "roformer_embeddings",
        "masked_lm_head",
        "mean_pooling",
        "global_pointer",
        "conditional_random_field",
    ],
)
def test_time_distributed(name, rng):
    """`keras.layers.TimeDistributed` asks for the shape of the outputs before it calls the layer."""
    cls, arguments, shape = CASES[name]()
    x = np.stack([IDS, IDS[::-1]]) if shape is IDS else rng.normal(size=(2, *X)).astype("float32")
    layer, inputs = cls(**arguments), keras.Input(x.shape[1:], dtype=x.dtype.name)
    outputs = keras.layers.TimeDistributed(layer)(inputs)
    expected = np.stack([numpy(layer(row)) for row in x])
    assert outputs.shape == (None, *expected.shape[1:])
    found = keras.Model(inputs, outputs).predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, atol=2e-6)
