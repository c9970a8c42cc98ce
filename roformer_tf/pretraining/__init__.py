"""Pretraining: raw text to a trained model, in stages of different lengths, on any number of replicas."""

from roformer_tf.pretraining.corpus import Corpus, prepare_corpus
from roformer_tf.pretraining.objective import PretrainingObjective
from roformer_tf.pretraining.pretrainer import Pretrainer
from roformer_tf.pretraining.settings import PretrainingSettings
from roformer_tf.pretraining.stage import Stage

__all__ = [
    "Corpus",
    "Pretrainer",
    "PretrainingObjective",
    "PretrainingSettings",
    "Stage",
    "prepare_corpus",
]
