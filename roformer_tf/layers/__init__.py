"""Keras layers of RoFormer, written with `keras.ops` for TensorFlow, JAX and PyTorch."""

from roformer_tf.activations import gelu, gelu_tanh, get_activation
from roformer_tf.layers.attention_mask import AttentionMask
from roformer_tf.layers.conditional_random_field import (
    ConditionalRandomField,
    ConditionalRandomFieldLoss,
    tag_probabilities,
    viterbi_decode,
)
from roformer_tf.layers.cosine_feature_map import CosineFeatureMap
from roformer_tf.layers.cross_attention import CrossAttention
from roformer_tf.layers.deberta_position import DebertaPosition
from roformer_tf.layers.decoder_block import DecoderBlock
from roformer_tf.layers.dropout import Dropout, dropout_seeds
from roformer_tf.layers.efficient_global_pointer import EfficientGlobalPointer
from roformer_tf.layers.elu_feature_map import EluFeatureMap
from roformer_tf.layers.encoder_block import EncoderBlock, recompute
from roformer_tf.layers.favor_feature_map import FavorFeatureMap
from roformer_tf.layers.feature_map import FeatureMap
from roformer_tf.layers.feed_forward import FeedForward
from roformer_tf.layers.flat_dense import FlatDense
from roformer_tf.layers.global_pointer import GlobalPointer
from roformer_tf.layers.learned_position import LearnedPosition
from roformer_tf.layers.linear_attention import LinearAttention
from roformer_tf.layers.masked_lm_head import MaskedLMHead
from roformer_tf.layers.mean_pooling import MeanPooling
from roformer_tf.layers.multilabel_crossentropy import (
    MultilabelSpanCrossentropy,
    multilabel_categorical_crossentropy,
    sparse_multilabel_categorical_crossentropy,
)
from roformer_tf.layers.pooler import Pooler
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.relative_position import RelativePosition
from roformer_tf.layers.rms_norm import RMSNorm
from roformer_tf.layers.roformer_embeddings import RoFormerEmbeddings
from roformer_tf.layers.rotary_embedding import RotaryEmbedding
from roformer_tf.layers.rotary_multi_head_attention import RotaryMultiHeadAttention
from roformer_tf.layers.rotary_position import RotaryPosition
from roformer_tf.layers.self_attention import SelfAttention
from roformer_tf.layers.sinusoidal_position import SinusoidalPosition
from roformer_tf.layers.sinusoidal_relative_position import SinusoidalRelativePosition
from roformer_tf.layers.softmax_feature_map import SoftmaxFeatureMap
from roformer_tf.layers.span_crossentropy import SpanCrossentropy
from roformer_tf.layers.t5_relative_bias import T5RelativeBias
from roformer_tf.layers.token_embedding import TokenEmbedding
from roformer_tf.layers.transformer_xl_position import TransformerXLPosition
from roformer_tf.layers.tupe_position import TupePosition

__all__ = [
    "AttentionMask",
    "ConditionalRandomField",
    "ConditionalRandomFieldLoss",
    "CosineFeatureMap",
    "CrossAttention",
    "DebertaPosition",
    "DecoderBlock",
    "Dropout",
    "EfficientGlobalPointer",
    "EluFeatureMap",
    "EncoderBlock",
    "FavorFeatureMap",
    "FeatureMap",
    "FeedForward",
    "FlatDense",
    "GlobalPointer",
    "LearnedPosition",
    "LinearAttention",
    "MaskedLMHead",
    "MeanPooling",
    "MultilabelSpanCrossentropy",
    "Pooler",
    "PositionScheme",
    "RMSNorm",
    "RelativePosition",
    "RoFormerEmbeddings",
    "RotaryEmbedding",
    "RotaryMultiHeadAttention",
    "RotaryPosition",
    "SelfAttention",
    "SinusoidalPosition",
    "SinusoidalRelativePosition",
    "SoftmaxFeatureMap",
    "SpanCrossentropy",
    "T5RelativeBias",
    "TokenEmbedding",
    "TransformerXLPosition",
    "TupePosition",
    "dropout_seeds",
    "gelu",
    "gelu_tanh",
    "get_activation",
    "multilabel_categorical_crossentropy",
    "recompute",
    "sparse_multilabel_categorical_crossentropy",
    "tag_probabilities",
    "viterbi_decode",
]
