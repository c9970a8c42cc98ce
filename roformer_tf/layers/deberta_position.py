import math

import keras
from keras import ops

from roformer_tf.layers.relative_position import ClippedDistances, distance_products, near_distances


@keras.saving.register_keras_serializable(package="roformer_tf")
class DebertaPosition(ClippedDistances):
    """Disentangled positions of DeBERTa: scores between tokens and learned distances, both ways.

    To `q_m · k_n` it adds `q_m · (W_k p_(m-n))` and `(W_q p_(m-n)) · k_n`; the sum is divided by
    `sqrt(3 head_dim)`. All blocks share the vectors `p` and project them like tokens, by the
    block's own layer `qkv`: with its biases (as DeBERTa with `share_att_key`), its LoRA weights, or
    quantized. The last term has the distance of equation 10 and of DeBERTa's code, `m - n`;
    DeBERTa's paper writes `n - m` there.

    Args:
        hidden_dim: int. Size of the inputs of attention.
        max_distance: int. Larger distances count as this one.
        embeddings_initializer: of the table.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; not read.
        position_ids: int or float tensor `(batch, length)`; distances are rounded. `None` for 0, 1,
            2, …

    Returns:
        int32 tensor `(batch, query, key)`, the row of the table for each pair, or `None` without
        `position_ids`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import DebertaPosition, SelfAttention
    >>> scheme = DebertaPosition(hidden_dim=8)
    >>> attention = SelfAttention(num_heads=2, head_dim=4, position_scheme=scheme)
    >>> tuple(attention(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)

    Reference: equation 10 of arXiv 2104.09864; He et al., arXiv 2006.03654, equations 2 to 4.
    """

    num_score_terms = 3

    def __init__(self, hidden_dim, max_distance=512, embeddings_initializer="uniform", **kwargs):
        super().__init__(max_distance, **kwargs)
        self.hidden_dim = hidden_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.hidden_dim, embeddings_initializer=sizes.initializer, **options)

    def build(self, *shapes, **named_shapes):
        self.distance_table = self.add_weight(
            (2 * self.max_distance + 1, self.hidden_dim),
            initializer=self.embeddings_initializer.clone(),
            name="distance_table",
        )

    def apply_to_scores(self, scores, query, key, context, attention):
        table = ops.convert_to_tensor(self.distance_table)
        if context is None:
            table = near_distances(table, ops.shape(query)[-2])
        projected = attention.qkv(table)
        shape = (-1, 3, attention.num_heads, attention.head_dim)
        vectors = ops.transpose(ops.reshape(projected, shape), (1, 2, 0, 3))
        # (head, distance, head_dim); `query` is divided already
        query_vectors = vectors[0] / math.sqrt(self.num_score_terms * attention.head_dim)
        scores = scores + distance_products(query, vectors[1], context)
        # seen from the key the distances have the other sign
        added = distance_products(key, ops.flip(query_vectors, axis=1), context)
        return scores + ops.swapaxes(added, -1, -2)
