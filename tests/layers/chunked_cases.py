"""Masks and seeds for attention in blocks and for the layers that choose it."""

import keras
import numpy as np

from roformer_tf.layers import AttentionMask
from tests.layers.harness import numpy

B, HEADS, LENGTH = 3, 2, 11
MASKINGS = ("bidirectional", "causal", "unilm")
# Sequence 0 is full, 1 ends in padding; 2 starts with it: if causal, its first tokens see nothing.
PADDING = np.ones((B, LENGTH), "int32")
PADDING[1, 7:] = 0
PADDING[2, :6] = 0
SEGMENTS = np.array([[0] * 5 + [1] * 6, [0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0], [0] * 11], "int32")
DOCUMENTS = np.array([[1] * 3 + [2] * 5 + [3] * 3, [1] * 7 + [0] * 4, [1] * 5 + [2] * 6], "int32")


def mask(masking, documents=False, dense=False, length=LENGTH):
    given = PADDING, SEGMENTS, DOCUMENTS if documents else None
    given = [None if x is None else x[:, :length] for x in given]
    return AttentionMask(masking, dense=dense)(*given)


def seed_of(number):
    return numpy(keras.random.SeedGenerator(number).next())
