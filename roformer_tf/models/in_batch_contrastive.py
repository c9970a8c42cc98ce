import keras
from keras import ops

from roformer_tf.models.unit_vectors import unit_vectors


@keras.saving.register_keras_serializable(package="roformer_tf")
class InBatchContrastive(keras.losses.Loss):
    """Softmax over the batch: which of the other rows says the same as this one?

    The scores are cosines times `scale`. A row is no candidate for itself. Rows of one number are positives of each
    other, all others are negatives; a row without a positive in the batch counts as 0. Under `tf.distribute` the batch
    is that of the replica: its negatives are the rows on the same device, so that the loss (unlike a mean over
    examples) is not the same for any number of replicas.

    Args:
        scale: float, inverse of the softmax' temperature.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: `(batch, 1)`, a number for each row, the same for those that belong together.
        y_pred: `(batch, size)`, vectors of any length.

    Returns:
        Mean over the rows (`reduction="sum_over_batch_size"`).

    Raises:
        ValueError: if `y_true` has more than one number for a row.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.models import InBatchContrastive
    >>> vectors = np.float32([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> loss = InBatchContrastive()(np.array([[0], [0], [1], [1]]), vectors)
    >>> bool(abs(float(loss) - np.log(1 + 2 * np.exp(-20))) < 1e-6)
    True

    Reference: `compute_loss_of_similarity` of RoFormer-Sim's `stage1.py`, where row 2i + 1 is the positive of row 2i.
    """

    def __init__(self, scale=20.0, name="in_batch_contrastive", **kwargs):
        super().__init__(name=name, **kwargs)
        self.scale = scale

    def call(self, y_true, y_pred):
        if y_true.shape[-1] != 1:
            raise ValueError(
                "The labels must be one number for each row: leave `y` out of `fit`. For the vectors of a teacher "
                f"compile with `loss='distillation'`. Received: y_true of shape {tuple(y_true.shape)}"
            )
        others, positives = _others_and_positives(y_true)
        log_shares = ops.log_softmax(
            ops.where(others, self.scale * cosines(y_pred), -1e12), axis=-1
        )
        positives = ops.cast(positives, y_pred.dtype)
        counts = ops.maximum(ops.sum(positives, axis=-1), 1.0)
        return -ops.sum(positives * log_shares, axis=-1) / counts

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="roformer_tf")
def nearest_is_positive(y_true, y_pred):
    """Share of the rows whose nearest other row, by the cosine, is a positive: arguments as of the loss."""
    others, positives = _others_and_positives(y_true)
    nearest = ops.argmax(ops.where(others, cosines(y_pred), -2.0), axis=-1)
    found = ops.take_along_axis(ops.cast(positives, "float32"), nearest[:, None], axis=-1)
    return found[:, 0]


def cosines(vectors):
    """Cosine of every vector with every other: `(batch, size)` -> `(batch, batch)`."""
    vectors = unit_vectors(vectors)
    return ops.matmul(vectors, ops.transpose(vectors))


def _others_and_positives(y_true):
    numbers = ops.reshape(y_true, (-1,))
    rows = ops.arange(ops.shape(numbers)[0])
    others = rows[:, None] != rows[None, :]
    same = numbers[:, None] == numbers[None, :]
    return others, ops.logical_and(same, others)
