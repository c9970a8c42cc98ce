"""Pretraining: raw text to a trained model, in stages of different lengths, on any number of replicas."""

from roformer_tf.pretraining.settings import PretrainingSettings
from roformer_tf.pretraining.stage import Stage

__all__ = ["PretrainingSettings", "Stage"]
