"""Strings to token ids, in TensorFlow ops only."""

from roformer_tf.text.pair_packer import PairPacker

__all__ = ["PairPacker"]
