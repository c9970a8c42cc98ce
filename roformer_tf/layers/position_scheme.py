import keras
from keras import ops

from roformer_tf.layers.config import own_arguments


@keras.saving.register_keras_serializable(package="roformer_tf")
class PositionScheme(keras.layers.Layer):
    """Base class of position schemes; by itself it is the scheme "none".

    A scheme takes the tokens of a forward pass and returns a *context* (for RoPE, cosines and
    sines). Attention layers pass this context to the hooks, which change nothing by default. The
    context of a scheme with `added_to_input` is added to the embeddings before their norm instead.

    Attributes:
        added_to_input: bool. Whether the context is added to the embeddings. The hooks are not
            called then.
        per_layer: bool. Whether each block has its own scheme with its own weights.
        num_score_terms: int. Number of products in a score. Scores are divided by
            `sqrt(num_score_terms * head_dim)`.
        needs_scores: bool. Whether the hooks read or change scores or attention weights, so that
            attention must compute a number for each query and key.
        depends_on_length: bool. Whether the context of a token changes as the sequence grows. A
            cache then holds keys and values from before the hooks.

    Call arguments:
        token_ids: int tensor `(batch, length)`, or features `(batch, length, hidden_dim)`; only the
            length is read.
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

    def get_config(self):
        return {**own_arguments(self, PositionScheme), **super().get_config()}

    def compute_mask(self, inputs, previous_mask):
        return None  # a mask that Keras propagates belongs to features, not to their context

    @classmethod
    def for_model(cls, sizes, **options):
        """Creates the scheme of a model.

        Args:
            sizes: Object with `head_dim`, `num_heads`, `hidden_dim`, `embedding_dim`,
                `max_sequence_length`, `max_wavelength`, `masking` and `initializer` (of
                embeddings).
            **options: further arguments of the class.
        """
        return cls(**options)

    @property
    def changes_output(self):
        """Whether `apply_to_output` does anything, and so needs the outputs of all queries."""
        return type(self).apply_to_output is not PositionScheme.apply_to_output

    def build(self, *shapes, **named_shapes):
        self.built = True

    def call(self, token_ids, position_ids=None, padding_mask=None):
        return None

    def apply_to_query_key(self, query, key, context):
        """Changes queries and keys `(batch, num_heads, length, head_dim)` before their product."""
        return query, key

    def apply_to_features(self, query, key, context):
        """Changes the features of queries and keys in linear attention's numerator (eq. 19)."""
        return self.apply_to_query_key(query, key, context)

    def apply_to_value(self, value, context):
        """Changes values, `(batch, num_heads, key, head_dim)`, before they are averaged."""
        return value

    def apply_to_scores(self, scores, query, key, context, attention):
        """Changes the scores, `(batch, num_heads, query, key)`.

        Args:
            query: The queries of the product, already divided like the scores.
            key: The keys of the product.
            attention: The calling `SelfAttention`, for schemes that use its projections.
        """
        return scores

    def apply_to_output(self, output, weights, context):
        """Changes the averaged values, `(batch, num_heads, query, head_dim)`.

        Args:
            weights: The attention weights `(batch, num_heads, query, key)` they were averaged with;
                `None` unless the scheme has `needs_scores`.
        """
        return output


class BiasScheme(PositionScheme):
    """Base class of schemes whose context `(1 or batch, num_heads, query, key)` biases scores."""

    needs_scores = True

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        length = token_ids.shape[1]
        return keras.KerasTensor((batch, self.num_heads, length, length), "float32")

    def apply_to_scores(self, scores, query, key, context, attention):
        return ops.cast(scores, "float32") + context


def tokens_of(x):
    """Returns an int tensor that stands for the token ids of features: schemes read its shape."""
    return ops.cast(x[..., 0], "int32")


def positions_of(token_ids, position_ids):
    """Returns `position_ids`, or 0, 1, 2, … if they are `None`: `(1, length)`."""
    if position_ids is None:
        return ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]
    return position_ids
