import keras


@keras.saving.register_keras_serializable(package="roformer_tf")
class PositionScheme(keras.layers.Layer):
    """Base class of position schemes; by itself it is the scheme "none".

    A scheme takes the tokens of a forward pass and returns a *context* (for RoPE, cosines and
    sines). Attention layers pass this context to the hooks, which change nothing by default. The
    context of a scheme with `added_to_input` is added to the embeddings before their norm instead.

    Class attributes that say what a scheme needs:

    * `added_to_input`: the context is added to the embeddings, the hooks are not called;
    * `per_layer`: each block has its own scheme with its own weights; otherwise all blocks share
      one;
    * `num_score_terms`: how many products a score is the sum of; scores are divided by
      `sqrt(num_score_terms * head_dim)`;
    * `needs_scores`: the hooks read or change scores or attention weights, so attention must
      compute a number for each query and key;
    * `depends_on_length`: the context of a token changes as the sequence grows, so a cache must
      hold keys and values from before the hooks.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …
        padding_mask: int tensor `(batch, length)`, 1 for real tokens, or `None`; most schemes do
            not read it.

    Returns:
        The context: a structure of tensors, or `None`.

    Example:

    >>> from roformer_tf.layers import PositionScheme
    >>> PositionScheme().apply_to_query_key("query", "key", None)
    ('query', 'key')
    """

    added_to_input = False
    per_layer = False
    num_score_terms = 1
    needs_scores = False
    depends_on_length = False

    def __init__(self, **kwargs):
        # positions and tables stay in float32 under every dtype policy
        super().__init__(autocast=False, **kwargs)

    @classmethod
    def for_model(cls, sizes, **options):
        """Makes the scheme of a model.

        Args:
            sizes: Object with `head_dim`, `num_heads`, `hidden_dim`, `embedding_dim`,
                `max_sequence_length`, `max_wavelength`, `masking` and `initializer` (of
                embeddings).
            **options: further arguments of the class.
        """
        return cls(**options)

    def build(self, *shapes, **named_shapes):
        self.built = True

    def call(self, token_ids, position_ids=None, padding_mask=None):
        return None

    def apply_to_query_key(self, query, key, context):
        """Hook on queries and keys, `(batch, num_heads, length, head_dim)`, before their product."""
        return query, key

    def apply_to_features(self, query, key, context):
        """Hook on the features of queries and keys that linear attention multiplies (equation 19)."""
        return self.apply_to_query_key(query, key, context)

    def apply_to_value(self, value, context):
        """Hook on values, `(batch, num_heads, key, head_dim)`, before they are averaged."""
        return value

    def apply_to_scores(self, scores, query, key, context, attention):
        """Hook on the scores, `(batch, num_heads, query, key)`.

        Args:
            query: queries as they entered the product, already divided like the scores.
            key: keys as they entered the product.
            attention: The `SelfAttention` that calls, for schemes that use its projections.
        """
        return scores

    def apply_to_output(self, output, weights, context):
        """Hook on the averaged values, `(batch, num_heads, query, head_dim)`.

        Args:
            weights: The attention weights `(batch, num_heads, query, key)` they were averaged with;
                `None` unless the scheme has `needs_scores`.
        """
        return output


def deserialize_parts(config):
    """Returns the config with its position scheme and its feature map as layers."""
    parts = {
        name: keras.saving.deserialize_keras_object(config[name])
        for name in ("position_scheme", "feature_map")
        if name in config
    }
    return {**config, **parts}
