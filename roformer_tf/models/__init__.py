"""Backbone, tasks and their preprocessors, on KerasHub's base classes."""

from roformer_tf.models.fill_mask import fill_mask
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.models.roformer_causal_lm import RoFormerCausalLM
from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.models.roformer_masked_lm import RoFormerMaskedLM
from roformer_tf.models.roformer_masked_lm_preprocessor import RoFormerMaskedLMPreprocessor
from roformer_tf.models.roformer_text_classifier import RoFormerTextClassifier
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.text import RoFormerTokenizer

# KerasHub asks the tokenizer of a preset for its backbone; `text/`, a floor below, cannot name it.
RoFormerTokenizer.backbone_cls = RoFormerBackbone

__all__ = [
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerCausalLMPreprocessor",
    "RoFormerMaskedLM",
    "RoFormerMaskedLMPreprocessor",
    "RoFormerTextClassifier",
    "RoFormerTextClassifierPreprocessor",
    "fill_mask",
]
