"""Backbone, tasks and their preprocessors, on KerasHub's base classes."""

from roformer_tf.models.add_tokens import add_tokens
from roformer_tf.models.answer_metrics import AnswerMetrics
from roformer_tf.models.answer_scores import choice_accuracy, entity_f1, reading_scores
from roformer_tf.models.entities import entities_from_words, read_conll
from roformer_tf.models.entity_tag_loss import EntityTagLoss
from roformer_tf.models.fill_mask import cloze_examples, fill_mask, zero_shot
from roformer_tf.models.grouped_crossentropy import GroupedCrossentropy
from roformer_tf.models.in_batch_contrastive import InBatchContrastive
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.models.roformer_causal_lm import RoFormerCausalLM
from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.models.roformer_masked_lm import RoFormerMaskedLM
from roformer_tf.models.roformer_masked_lm_preprocessor import RoFormerMaskedLMPreprocessor
from roformer_tf.models.roformer_multiple_choice import RoFormerMultipleChoice
from roformer_tf.models.roformer_multiple_choice_preprocessor import (
    RoFormerMultipleChoicePreprocessor,
)
from roformer_tf.models.roformer_question_answering import RoFormerQuestionAnswering
from roformer_tf.models.roformer_question_answering_preprocessor import (
    RoFormerQuestionAnsweringPreprocessor,
)
from roformer_tf.models.roformer_seq_2_seq_backbone import RoFormerSeq2SeqBackbone
from roformer_tf.models.roformer_seq_2_seq_lm import RoFormerSeq2SeqLM, translate
from roformer_tf.models.roformer_seq_2_seq_lm_preprocessor import RoFormerSeq2SeqLMPreprocessor
from roformer_tf.models.roformer_sim import RoFormerSim
from roformer_tf.models.roformer_sim_classifier import RoFormerSimClassifier
from roformer_tf.models.roformer_sim_classifier_preprocessor import (
    RoFormerSimClassifierPreprocessor,
)
from roformer_tf.models.roformer_sim_preprocessor import RoFormerSimPreprocessor
from roformer_tf.models.roformer_text_classifier import RoFormerTextClassifier
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.models.roformer_token_classifier import RoFormerTokenClassifier
from roformer_tf.models.roformer_token_classifier_preprocessor import (
    RoFormerTokenClassifierPreprocessor,
)
from roformer_tf.models.similarity_distillation import SimilarityDistillation
from roformer_tf.models.smoothed_crossentropy import SmoothedCrossentropy
from roformer_tf.text import RoFormerSentencePieceTokenizer, RoFormerTokenizer

# KerasHub asks a tokenizer for the backbone of its presets. `text/`, a floor below, cannot name it.
RoFormerTokenizer.backbone_cls = RoFormerBackbone
RoFormerSentencePieceTokenizer.backbone_cls = RoFormerSeq2SeqBackbone

__all__ = [
    "add_tokens",
    "zero_shot",
    "cloze_examples",
    "AnswerMetrics",
    "read_conll",
    "reading_scores",
    "entity_f1",
    "choice_accuracy",
    "RoFormerMultipleChoicePreprocessor",
    "RoFormerMultipleChoice",
    "RoFormerQuestionAnsweringPreprocessor",
    "RoFormerQuestionAnswering",
    "RoFormerTokenClassifierPreprocessor",
    "RoFormerTokenClassifier",
    "EntityTagLoss",
    "entities_from_words",
    "GroupedCrossentropy",
    "InBatchContrastive",
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerCausalLMPreprocessor",
    "RoFormerMaskedLM",
    "RoFormerMaskedLMPreprocessor",
    "RoFormerSeq2SeqBackbone",
    "RoFormerSeq2SeqLM",
    "RoFormerSeq2SeqLMPreprocessor",
    "RoFormerSim",
    "RoFormerSimClassifier",
    "RoFormerSimClassifierPreprocessor",
    "RoFormerSimPreprocessor",
    "RoFormerTextClassifier",
    "RoFormerTextClassifierPreprocessor",
    "SimilarityDistillation",
    "SmoothedCrossentropy",
    "fill_mask",
    "translate",
]
