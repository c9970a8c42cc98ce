import keras


@keras.saving.register_keras_serializable(package="roformer_tf")
class PositionScheme(keras.layers.Layer):
    """How positions enter a model: the base class of the schemes, and by itself the scheme "none".

    A scheme is called once per forward pass and makes a *context* (for RoPE the cosines and sines). Attention layers
    hand this context back through the hooks, which by default change nothing. The context of a scheme with
    `added_to_input` is added to the embeddings instead, before their norm.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …

    Returns:
        The context: a structure of tensors, or `None`.

    Example:

    >>> from roformer_tf.layers import PositionScheme
    >>> PositionScheme().rotate_query_key("query", "key", None)
    ('query', 'key')
    """

    added_to_input = False

    def __init__(self, **kwargs):
        # positions and tables stay in float32 under every dtype policy
        super().__init__(autocast=False, **kwargs)

    def build(self, *shapes, **named_shapes):
        self.built = True

    def call(self, token_ids, position_ids=None):
        return None

    def rotate_query_key(self, query, key, context):
        """Hook on queries and keys, `(batch, num_heads, length, head_dim)`, before their product."""
        return query, key

    def add_to_scores(self, scores, query, context):
        """Hook on the scores, `(batch, num_heads, query, key)`; `query` is divided by sqrt(head_dim) already."""
        return scores

    def add_to_values(self, values, weights, context):
        """Hook on the averaged values, `(batch, num_heads, query, head_dim)`, made with attention `weights`."""
        return values
