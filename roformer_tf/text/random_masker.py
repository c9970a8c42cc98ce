import tensorflow as tf

from roformer_tf.text.mask_tokens import mask_tokens, places_of, seed_generator


class RandomMasker:
    """Chooses tokens of each row at random and hides them, anew on every call and in every epoch.

    `keras_hub.layers.MaskedLMMaskGenerator` does the same with TensorFlow's stateful random operations. Once a global
    seed is set (`keras.utils.set_random_seed`), those begin from the start whenever a function is traced or a dataset
    is iterated: each epoch would mask the same tokens.

    Args:
        vocabulary_size: positive integer; random tokens are drawn from all of the vocabulary.
        mask_token_id: integer.
        unselectable_token_ids: integers that are never chosen.
        mask_selection_rate: float, share of the other tokens to choose; one at least.
        mask_selection_length: positive integer, the most tokens to choose, and the width of the result.
        mask_token_rate, random_token_rate: floats, shares of the chosen tokens that become the mask token, and a
            random one. The rest stays as it is.

    Call arguments:
        token_ids: int32 tensor `(batch, length)` or `(length,)`.

    Returns:
        `(token_ids, positions, labels, weights)`: the ids with hidden tokens; the chosen positions in ascending order,
        int32 `(batch, mask_selection_length)`; the tokens that were there; and 1.0 for each of them. Positions, labels
        and weights are 0 where fewer tokens were chosen.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.text import RandomMasker
    >>> masker = RandomMasker(100, 4, [0, 2, 3], 0.5, 3, mask_token_rate=1.0, random_token_rate=0.0)
    >>> ids, positions, labels, weights = masker(tf.constant([[2, 7, 7, 7, 7, 3, 0]]))
    >>> int(tf.reduce_sum(tf.cast(ids == 4, tf.int32))), labels.numpy().tolist(), weights.numpy().tolist()
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

        selectable = tf.ones_like(token_ids, tf.bool)
        for token_id in self.unselectable_token_ids:
            selectable &= token_ids != token_id
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
        positions, used = places_of(chosen, self.mask_selection_length)
        labels = tf.where(used, tf.gather(token_ids, positions, batch_dims=1), 0)
        return hidden, positions, labels, tf.cast(used, tf.float32)
