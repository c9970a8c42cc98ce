"""Samplers beside those of KerasHub: beam search with a length penalty, and the rules of when a text may end."""

from roformer_tf.samplers.beam_search_sampler import BeamSearchSampler
from roformer_tf.samplers.min_length import with_min_length
from roformer_tf.samplers.original_beam_sampler import OriginalBeamSampler
from roformer_tf.samplers.up_to_stop import up_to_stop, without_stops

__all__ = [
    "BeamSearchSampler",
    "OriginalBeamSampler",
    "up_to_stop",
    "with_min_length",
    "without_stops",
]
