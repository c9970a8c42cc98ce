"""Random masking of tokens."""

import random

import numpy as np
import tensorflow as tf


class RandomMasker:
    """Masks random tokens of each sequence: different ones in every call and every epoch.

    `keras_hub.layers.MaskedLMMaskGenerator` uses TensorFlow's stateful random ops. With a global
    seed (`keras.utils.set_random_seed`) these restart whenever a function is traced or a dataset is
    iterated, so each epoch would mask the same tokens.

    Args:
        vocabulary_size: int. Random tokens are drawn from the whole vocabulary.
        mask_token_id: int.
        unselectable_token_ids: list of int. Ids that are never selected.
        mask_selection_rate: float. Share of the other tokens to select, but at least one.
        mask_selection_length: int. Maximum number of selected tokens, and the width of the outputs.
        mask_token_rate: float. Share of the selected tokens that become the mask token.
        random_token_rate: float. Share of the selected tokens that become a random token. The rest
            stays unchanged.

    Call arguments:
        token_ids: int32 tensor `(batch, length)` or `(length,)`.

    Returns:
        `(token_ids, positions, labels, weights)`: the masked ids; and, each
        `(batch, mask_selection_length)`, the selected positions in ascending order, int32; their
        original ids; and weights of 1.0. The last three are 0 where fewer tokens were selected.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.text import RandomMasker
    >>> masker = RandomMasker(100, 4, [0, 2, 3], 0.5, 3, mask_token_rate=1.0, random_token_rate=0.0)
    >>> ids, positions, labels, weights = masker(tf.constant([[2, 7, 7, 7, 7, 3, 0]]))
    >>> masked = int(tf.reduce_sum(tf.cast(ids == 4, tf.int32)))
    >>> masked, labels.numpy().tolist(), weights.numpy().tolist()
    (2, [[7, 7, 0]], [[1.0, 1.0, 0.0]])

    Reference: `create_masked_lm_predictions` of BERT's `create_pretraining_data.py`.
    """

    def __init__(
        self,
        vocabulary_size,
        mask_token_id,
        unselectable_token_ids,
        mask_selection_rate,
        mask_selection_length,
        mask_token_rate,
        random_token_rate,
    ):
        self.vocabulary_size = vocabulary_size
        self.mask_token_id = mask_token_id
        self.unselectable_token_ids = unselectable_token_ids
        self.mask_selection_rate = mask_selection_rate
        self.mask_selection_length = mask_selection_length
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self._draw_seed = seed_generator()

    def __call__(self, token_ids):
        if token_ids.shape.rank == 1:
            return tuple(x[0] for x in self(token_ids[tf.newaxis]))
        seeds = tf.random.experimental.stateless_split(self._draw_seed(), 2)

        selectable = is_none_of(token_ids, self.unselectable_token_ids)
        size = tf.reduce_sum(tf.cast(selectable, tf.float32), axis=1)
        count = tf.maximum(tf.round(size * self.mask_selection_rate), 1.0)
        count = tf.minimum(count, tf.minimum(size, float(self.mask_selection_length)))
        # the `count` selectable tokens with the smallest of independent random numbers
        order = tf.random.stateless_uniform(tf.shape(token_ids), seeds[0])
        rank = tf.argsort(tf.argsort(tf.where(selectable, order, 2.0), axis=1), axis=1)
        chosen = rank < tf.cast(count, tf.int32)[:, tf.newaxis]

        hidden = mask_tokens(
            token_ids,
            chosen,
            seeds[1],
            self.vocabulary_size,
            self.mask_token_id,
            self.mask_token_rate,
            self.random_token_rate,
        )
        positions, used = masked_positions(chosen, self.mask_selection_length)
        labels = tf.where(used, tf.gather(token_ids, positions, batch_dims=1), 0)
        return hidden, positions, labels, tf.cast(used, tf.float32)


def seed_generator():
    """Returns a function that draws a new int64 seed `(2,)` at each call, in `tf.data`, too."""
    # `keras.utils.set_random_seed` always seeds Python's generator
    generator = np.random.default_rng(random.getrandbits(64))

    def draw():
        return generator.integers(2**63, size=2)

    return lambda: tf.ensure_shape(tf.numpy_function(draw, [], tf.int64), [2])


def is_none_of(token_ids, others):
    """Returns a bool tensor: where `token_ids` is none of `others`, a list of int."""
    different = tf.ones_like(token_ids, tf.bool)
    for token_id in others:
        different &= token_ids != token_id
    return different


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
    """Replaces each chosen token by the mask token or by a random token, or keeps it.

    Args:
        token_ids: int32 tensor `(batch, length)`.
        chosen: bool tensor `(batch, length)`.
        seed: integer tensor `(2,)`. The same seed gives the same tokens.
        vocabulary_size: int.
        mask_token_id: int.
        mask_token_rate: float. Probability that a chosen token becomes the mask token.
        random_token_rate: float. Probability that it becomes a random token from
            `[first_random_id, vocabulary_size)`.
        first_random_id: int.

    Returns:
        int32 tensor `(batch, length)`.
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


def masked_positions(chosen, slots):
    """Returns the positions of the chosen tokens of each sequence, in ascending order.

    Args:
        chosen: bool tensor `(batch, length)`.
        slots: int or scalar tensor. Width of the result. Positions beyond it are dropped.

    Returns:
        `(positions, used)`: int32 and bool tensors `(batch, slots)`. Positions are 0 where `used`
        is False.

    >>> chosen = tf.constant([[False, True, True], [True, False, False]])
    >>> positions, used = masked_positions(chosen, 2)
    >>> positions.numpy().tolist(), used.numpy().tolist()
    ([[1, 2], [0, 0]], [[True, True], [True, False]])
    """
    positions = tf.where(chosen)  # (chosen tokens, 2): row, column
    slot = tf.gather_nd(tf.cumsum(tf.cast(chosen, tf.int64), axis=1) - 1, positions)
    fits = slot < tf.cast(slots, tf.int64)
    target = tf.boolean_mask(tf.stack([positions[:, 0], slot], 1), fits)
    column = tf.cast(tf.boolean_mask(positions[:, 1], fits), tf.int32)
    shape = tf.stack([tf.shape(chosen, tf.int64)[0], tf.cast(slots, tf.int64)])
    positions = tf.scatter_nd(target, column, shape)
    count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
    used = tf.sequence_mask(count, slots)
    return tf.ensure_shape(positions, used.shape), used
