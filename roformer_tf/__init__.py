"""RoFormer, the Transformer with rotary position embedding (arXiv 2104.09864), for TensorFlow and Keras 3."""

from roformer_tf.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerCausalLMPreprocessor,
    RoFormerMaskedLM,
    RoFormerMaskedLMPreprocessor,
    RoFormerSeq2SeqBackbone,
    RoFormerSeq2SeqLM,
    RoFormerSeq2SeqLMPreprocessor,
    RoFormerSim,
    RoFormerSimClassifier,
    RoFormerSimClassifierPreprocessor,
    RoFormerSimPreprocessor,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.text import RoFormerSentencePieceTokenizer, RoFormerTokenizer

__version__ = "0.1.0"

__all__ = [
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerCausalLMPreprocessor",
    "RoFormerMaskedLM",
    "RoFormerMaskedLMPreprocessor",
    "RoFormerSentencePieceTokenizer",
    "RoFormerSeq2SeqBackbone",
    "RoFormerSeq2SeqLM",
    "RoFormerSeq2SeqLMPreprocessor",
    "RoFormerSim",
    "RoFormerSimClassifier",
    "RoFormerSimClassifierPreprocessor",
    "RoFormerSimPreprocessor",
    "RoFormerTextClassifier",
    "RoFormerTextClassifierPreprocessor",
    "RoFormerTokenizer",
]
