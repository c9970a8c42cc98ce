"""Samplers that KerasHub lacks: beam search with a length penalty, and rules for stop tokens."""

from roformer_tf.samplers.beam_search_sampler import BeamSearchSampler
from roformer_tf.samplers.original_beam_sampler import OriginalBeamSampler
from roformer_tf.samplers.stop_tokens import (
    remove_stop_tokens,
    valid_token_mask,
    with_min_length,
)

__all__ = [
    "BeamSearchSampler",
    "OriginalBeamSampler",
    "remove_stop_tokens",
    "valid_token_mask",
    "with_min_length",
]
