import keras
from keras import ops

MINUS_INFINITY = float("-inf")


def multilabel_categorical_crossentropy(y_true, y_pred):
    """Computes log(1 + sum of e^s over false classes) + log(1 + sum of e^-s over true classes).

    It pushes the scores of all true classes above 0, and those of all others below, and unlike
    binary cross entropy it copes with few true classes among very many.

    Args:
        y_true: Tensor `(..., classes)` of 0 and 1, or of probabilities.
        y_pred: Tensor `(..., classes)` of scores. Those of minus infinity do not count.

    Returns:
        float32 tensor `(...)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import multilabel_categorical_crossentropy
    >>> y_true, y_pred = np.float32([[1, 0, 0]]), np.float32([[9, -9, -9]])
    >>> bool(multilabel_categorical_crossentropy(y_true, y_pred)[0] < 1e-3)
    True

    Reference: https://kexue.fm/archives/7359; the function of this name of bert4keras 0.11.5.
    """
    scores = ops.cast(y_pred, "float32")
    y_true = ops.cast(y_true, "float32")
    counts = scores != MINUS_INFINITY  # NaN does, and shows in the loss
    false = ops.where(counts, scores, MINUS_INFINITY) + ops.log(1 - y_true)
    true = ops.where(counts, -scores, MINUS_INFINITY) + ops.log(y_true)
    return _log_one_plus(false) + _log_one_plus(true)


def sparse_multilabel_categorical_crossentropy(y_true, y_pred, mask_zero=False):
    """Computes `multilabel_categorical_crossentropy` from a list of the true classes.

    Args:
        y_true: int tensor `(..., count)`, the true classes of each example. One that is there twice
            counts twice among the true classes.
        y_pred: Tensor `(..., classes)` of scores. Those of minus infinity do not count.
        mask_zero: bool. Whether class 0 does not count, so that `y_true` may be padded with 0.

    Returns:
        float32 tensor `(...)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import sparse_multilabel_categorical_crossentropy
    >>> y_true, y_pred = np.array([[1, 0]]), np.float32([[0, 9, -9]])
    >>> loss = sparse_multilabel_categorical_crossentropy(y_true, y_pred, mask_zero=True)
    >>> bool(loss[0] < 1e-3)
    True

    Reference: the function of this name of bert4keras 0.11.5. That one subtracts true classes from
    the sum over all, which is wrong by more than 1e-7 e^s, and by e^s for a class that is there
    twice; this one leaves them out.
    """
    scores = ops.cast(y_pred, "float32")
    if mask_zero:
        is_first = ops.arange(ops.shape(scores)[-1]) == 0
        scores = ops.where(is_first, MINUS_INFINITY, scores)
    shape, classes = ops.shape(scores)[:-1], ops.shape(scores)[-1]
    scores = ops.reshape(scores, (-1, classes))
    index = ops.cast(y_true, "int32")
    index = ops.reshape(index, (-1, ops.shape(index)[-1]))
    is_real = index > 0 if mask_zero else index >= 0
    true = ops.take_along_axis(scores, ops.where(is_real, index, 0), axis=-1)
    true = ops.where(is_real & (true > MINUS_INFINITY), -true, MINUS_INFINITY)
    # Entries that do not count are sent to a column of their own.
    scores = ops.pad(scores, [[0, 0], [0, 1]], constant_values=MINUS_INFINITY)
    index = ops.where(is_real, index, classes)
    rows = ops.broadcast_to(ops.arange(ops.shape(index)[0])[:, None], ops.shape(index))
    places = ops.reshape(ops.stack([rows, index], axis=-1), (-1, 2))
    minus_infinities = ops.full((ops.shape(places)[0],), MINUS_INFINITY, dtype="float32")
    false = ops.scatter_update(scores, places, minus_infinities)
    return ops.reshape(_log_one_plus(false) + _log_one_plus(true), shape)


def _log_one_plus(x):
    """Returns log(1 + sum of e^x), also where all of `x` are minus infinity."""
    peak = ops.maximum(ops.max(x, axis=-1, keepdims=True, initial=MINUS_INFINITY), 0.0)
    peak = ops.stop_gradient(peak)
    total = ops.exp(-peak[..., 0]) + ops.sum(ops.exp(x - peak), axis=-1)
    return ops.log(total) + peak[..., 0]


@keras.saving.register_keras_serializable(package="roformer_tf")
class MultilabelSpanCrossentropy(keras.losses.Loss):
    """Trains the scores of a `GlobalPointer`, from a list of the true spans of each type.

    Args:
        **kwargs: Arguments of `keras.losses.Loss`, such as `name`.

    Call arguments:
        y_true: int tensor `(batch, count, 3)`: start, end and type of each true span, the end
            included. A start of -1 is padding.
        y_pred: Tensor `(batch, types, length, length)`, scores.

    Returns:
        Mean over examples and types of `multilabel_categorical_crossentropy`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import MultilabelSpanCrossentropy
    >>> scores = np.full((1, 1, 4, 4), -9, "float32")
    >>> scores[0, 0, 1, 2] = 9
    >>> bool(MultilabelSpanCrossentropy()(np.array([[[1, 2, 0], [-1, -1, -1]]]), scores) < 0.01)
    True

    Reference: `global_pointer_crossentropy` of the original entity scripts.
    """

    def call(self, y_true, y_pred):
        start, end, kind = ops.unstack(ops.cast(y_true, "int32"), 3, axis=-1)  # (batch, count)
        batch, types, length = ops.shape(y_pred)[:3]
        scores = ops.reshape(ops.cast(y_pred, "float32"), (batch, types, length * length))
        of_type = ops.equal(kind[:, None], ops.arange(types, dtype="int32")[None, :, None])
        is_real = ops.logical_and(of_type, start[:, None] >= 0)
        index = ops.where(is_real, (start * length + end)[:, None], -1)  # -1 does not count
        return ops.mean(sparse_multilabel_categorical_crossentropy(index, scores), axis=-1)
