import keras


class PositionScheme(keras.layers.Layer):
    """How positions enter attention: the base class of `RotaryPosition`, and by itself the scheme "none".

    A scheme is called once per forward pass and makes a *context* (for RoPE the sines and cosines). Every attention
    layer hands this context back through the hooks, which by default change nothing.

    Call arguments:
        token_ids: int tensor `(batch, length)`.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …

    Returns:
        The context: a structure of tensors, or `None`.

    Example:

    >>> from roformer_tf.layers import PositionScheme
    >>> PositionScheme().rotate_query_key("query", "key", None)
    ('query', 'key')
    """

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
