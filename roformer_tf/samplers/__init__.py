"""Samplers beside those of KerasHub: beam search with a length penalty, and the rules of when a text may end."""

from roformer_tf.samplers.min_length import with_min_length

__all__ = ["with_min_length"]
