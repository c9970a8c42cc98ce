"""Keras layers of RoFormer: `keras.ops` only, so they run on the TensorFlow, JAX and PyTorch backends alike."""

from roformer_tf.layers.activations import gelu, gelu_tanh, get_activation
from roformer_tf.layers.attention_mask import AttentionMask
from roformer_tf.layers.dropout import Dropout, dropout_seeds
from roformer_tf.layers.encoder_block import EncoderBlock
from roformer_tf.layers.feed_forward import FeedForward
from roformer_tf.layers.flat_dense import FlatDense
from roformer_tf.layers.learned_position import LearnedPosition
from roformer_tf.layers.masked_lm_head import MaskedLMHead
from roformer_tf.layers.mean_pooling import MeanPooling
from roformer_tf.layers.pooler import Pooler
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.recompute import recompute
from roformer_tf.layers.rms_norm import RMSNorm
from roformer_tf.layers.roformer_embeddings import RoFormerEmbeddings
from roformer_tf.layers.rotary_position import RotaryPosition
from roformer_tf.layers.self_attention import SelfAttention
from roformer_tf.layers.sinusoidal_relative_position import SinusoidalRelativePosition
from roformer_tf.layers.token_embedding import TokenEmbedding

__all__ = [
    "AttentionMask",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "FlatDense",
    "LearnedPosition",
    "MaskedLMHead",
    "MeanPooling",
    "Pooler",
    "PositionScheme",
    "RMSNorm",
    "RoFormerEmbeddings",
    "RotaryPosition",
    "SelfAttention",
    "SinusoidalRelativePosition",
    "TokenEmbedding",
    "dropout_seeds",
    "gelu",
    "gelu_tanh",
    "get_activation",
    "recompute",
]
