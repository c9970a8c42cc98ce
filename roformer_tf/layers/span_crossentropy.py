import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class SpanCrossentropy(keras.losses.Loss):
    """Cross entropy over all pairs of a start and an end, where each sequence has one true span.

    Args:
        **kwargs: Arguments of `keras.losses.Loss`, such as `name`.

    Call arguments:
        y_true: int tensor `(batch, 2)`: start and end of the true span, both included.
        y_pred: Tensor `(batch, length, length)` of scores of each start and end, or `(batch,
            length, 2)` of scores of starts and of ends, which are added. Those of minus infinity
            do not count.

    Returns:
        Mean over the batch.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import SpanCrossentropy
    >>> loss = SpanCrossentropy()(np.array([[1, 2]]), np.zeros((1, 4, 4), "float32"))
    >>> bool(abs(float(loss) - np.log(16)) < 1e-6)
    True
    >>> loss = SpanCrossentropy()(np.array([[1, 2]]), np.zeros((1, 4, 2), "float32"))
    >>> bool(abs(float(loss) - np.log(16)) < 1e-6)
    True

    Reference: `sparse_categorical_crossentropy` over `length²` classes of the reading script of the
    original (roformer-v2, `clue/cmrc2018.py`); `QuestionAnswering` models of Hugging Face for
    scores of starts and ends, whose loss is half as large.
    """

    def call(self, y_true, y_pred):
        scores = ops.cast(y_pred, "float32")
        start, end = ops.split(ops.cast(y_true, "int32"), 2, axis=-1)
        shape = ops.shape(scores)
        if y_pred.shape[-1] == 2 and y_pred.shape[1] != 2:
            of_starts, of_ends = scores[..., 0], scores[..., 1]
            return _crossentropy(start, of_starts) + _crossentropy(end, of_ends)
        scores = ops.reshape(scores, (shape[0], shape[1] * shape[2]))
        return _crossentropy(start * shape[2] + end, scores)


def _crossentropy(label, scores):
    """Returns the cross entropy `(batch,)` of labels `(batch, 1)` and scores `(batch, classes)`."""
    return ops.logsumexp(scores, axis=-1) - ops.take_along_axis(scores, label, axis=-1)[..., 0]
