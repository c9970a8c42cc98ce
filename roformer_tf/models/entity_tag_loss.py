import keras
from keras import ops

from roformer_tf.layers import ConditionalRandomFieldLoss


@keras.saving.register_keras_serializable(package="roformer_tf")
class EntityTagLoss(keras.losses.Loss):
    """Trains tags of tokens from a list of entities.

    Args:
        **kwargs: Arguments of `keras.losses.Loss`, such as `name`.

    Call arguments:
        y_true: int tensor `(batch, count, 3)`: first and last token, and type of each entity; -1
            for padding.
        y_pred: Tensor `(batch, length, tags)` of logits, where padding has minus infinity for all
            tags but the first, or `(batch, length, tags, tags)` of `ConditionalRandomField`.

    Returns:
        Mean over the batch, of the mean cross entropy of the tokens of a sequence, or of the
        negative log probability of its tags.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.models import EntityTagLoss
    >>> loss = EntityTagLoss()(np.array([[[1, 2, 0]]]), np.zeros((1, 4, 3), "float32"))
    >>> bool(abs(float(loss) - np.log(3)) < 1e-6)
    True
    """

    def call(self, y_true, y_pred):
        y_pred = ops.cast(y_pred, "float32")
        tags = tags_of_spans(y_true, ops.shape(y_pred)[1])
        if len(y_pred.shape) == 4:
            is_real = y_pred[:, :, 0, 1] != float("-inf")
            return ConditionalRandomFieldLoss().call(ops.where(is_real, tags, -1), y_pred)
        # JAX multiplies all logits by 0 or 1, and 0 times minus infinity is NaN
        logits = ops.maximum(y_pred, -1e9)
        losses = ops.sparse_categorical_crossentropy(tags, logits, from_logits=True)
        is_real = ops.cast(y_pred[:, :, 1] != float("-inf"), "float32")
        counts = ops.maximum(ops.sum(is_real, axis=1), 1.0)
        return ops.sum(losses * is_real, axis=1) / counts


def tags_of_spans(spans, length):
    """Returns spans as tags: 0 outside, 2k + 1 at the first token of type k, 2k + 2 at the others.

    The spans are an int tensor `(batch, count, 3)`: first and last token, and type; -1 for padding.
    The tags are int32 `(batch, length)`.
    """
    first, last, kind = (x[..., None] for x in ops.unstack(ops.cast(spans, "int32"), 3, axis=-1))
    position = ops.arange(length, dtype="int32")[None, None]
    inside = (position >= first) & (position <= last) & (first >= 0)
    tags = 2 * kind + 2 - ops.cast(position == first, "int32")
    return ops.max(ops.where(inside, tags, 0), axis=1)
