"""What every way of masking shares: seeds, hiding the chosen tokens, and listing them."""

import random

import numpy as np
import tensorflow as tf


def seed_generator():
    """A function that gives a new seed, an int64 tensor `(2,)`, whenever it runs, also inside `tf.data`."""
    # Python's generator is the one that `keras.utils.set_random_seed` surely seeds.
    generator = np.random.default_rng(random.getrandbits(64))

    def draw():
        return generator.integers(2**63, size=2)

    return lambda: tf.ensure_shape(tf.numpy_function(draw, [], tf.int64), [2])


def mask_tokens(
    token_ids,
    chosen,
    seed,
    vocabulary_size,
    mask_token_id,
    mask_token_rate,
    random_token_rate,
    first_random_id=0,
):
    """Replaces chosen tokens by the mask token or by a random one, each for itself.

    Args:
        token_ids: int32 tensor `(rows, width)`.
        chosen: bool tensor `(rows, width)`.
        seed: integer tensor `(2,)`: the same seed gives the same tokens.
        vocabulary_size: integer.
        mask_token_id: integer.
        mask_token_rate, random_token_rate: floats, probabilities that a chosen token becomes the mask token, and a
            random one of `first_random_id` … `vocabulary_size - 1`. Otherwise it stays as it is.
        first_random_id: integer.

    Returns:
        int32 tensor `(rows, width)`.
    """
    seeds = tf.random.experimental.stateless_split(seed, 2)
    shape = tf.shape(token_ids)
    fate = tf.random.stateless_uniform(shape, seeds[0])
    tokens = tf.random.stateless_uniform(
        shape, seeds[1], first_random_id, vocabulary_size, token_ids.dtype
    )
    hidden = tf.where(fate < mask_token_rate, mask_token_id, tokens)
    hidden = tf.where(fate < mask_token_rate + random_token_rate, hidden, token_ids)
    return tf.where(chosen, hidden, token_ids)


def places_of(chosen, slots):
    """The places of True in each row, in ascending order.

    Args:
        chosen: bool tensor `(rows, width)`.
        slots: integer or scalar tensor, number of columns of the result; further places are left out.

    Returns:
        `(positions, used)`: int32 and bool tensors `(rows, slots)`; positions are 0 where `used` is False.

    >>> positions, used = places_of(tf.constant([[False, True, True], [True, False, False]]), 2)
    >>> positions.numpy().tolist(), used.numpy().tolist()
    ([[1, 2], [0, 0]], [[True, True], [True, False]])
    """
    places = tf.where(chosen)  # (chosen tokens, 2): row, column
    slot = tf.gather_nd(tf.cumsum(tf.cast(chosen, tf.int64), axis=1) - 1, places)
    fits = slot < tf.cast(slots, tf.int64)
    target = tf.boolean_mask(tf.stack([places[:, 0], slot], 1), fits)
    column = tf.cast(tf.boolean_mask(places[:, 1], fits), tf.int32)
    shape = tf.stack([tf.shape(chosen, tf.int64)[0], tf.cast(slots, tf.int64)])
    positions = tf.scatter_nd(target, column, shape)
    count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
    used = tf.sequence_mask(count, slots)
    return tf.ensure_shape(positions, used.shape), used
