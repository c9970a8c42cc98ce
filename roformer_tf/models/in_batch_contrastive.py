import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class InBatchContrastive(keras.losses.Loss):
    """Contrastive loss: a softmax over the other texts of the batch finds a text's paraphrase.

    The scores are cosines times `scale`, and a text is not compared with itself. Texts with the
    same number are positives of each other, all others are negatives. A text without a positive in
    the batch adds 0. Under `tf.distribute` each replica compares the texts of its own batch, so
    unlike a mean over examples the loss depends on the number of replicas.

    Args:
        scale: float. Inverse of the softmax' temperature.
        **kwargs: Arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: `(batch, 1)`, a number for each text, the same for texts that belong together.
        y_pred: `(batch, size)`, vectors of any length.

    Returns:
        Mean over the texts (`reduction="sum_over_batch_size"`).

    Raises:
        ValueError: If `y_true` has more than one number for a text.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.models import InBatchContrastive
    >>> vectors = np.float32([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> loss = InBatchContrastive()(np.array([[0], [0], [1], [1]]), vectors)
    >>> bool(abs(float(loss) - np.log(1 + 2 * np.exp(-20))) < 1e-6)
    True

    Reference: `compute_loss_of_similarity` of RoFormer-Sim's `stage1.py`, where text 2i + 1 is the
    positive of text 2i.
    """

    def __init__(self, scale=20.0, name="in_batch_contrastive", **kwargs):
        super().__init__(name=name, **kwargs)
        self.scale = scale

    def call(self, y_true, y_pred):
        if y_true.shape[-1] != 1:
            raise ValueError(
                "The labels must be one number for each text: leave `y` out of `fit`. For the "
                "vectors of a teacher compile with `loss='distillation'`. Received: y_true of "
                f"shape {tuple(y_true.shape)}"
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
    """Returns 1.0 for each text whose nearest other text, by cosine, is a positive, else 0.0."""
    others, positives = _others_and_positives(y_true)
    nearest = ops.argmax(ops.where(others, cosines(y_pred), -2.0), axis=-1)
    found = ops.take_along_axis(ops.cast(positives, "float32"), nearest[:, None], axis=-1)
    return found[:, 0]


def unit_vectors(vectors):
    """Divides vectors `(..., size)` by their lengths. Vectors of length 0 stay as they are.

    Reference: `K.l2_normalize`, which the original's losses use.
    """
    return vectors * ops.rsqrt(
        ops.maximum(ops.sum(ops.square(vectors), axis=-1, keepdims=True), 1e-12)
    )


def cosines(vectors):
    """Returns the cosine of every vector with every other: `(batch, size)` -> `(batch, batch)`."""
    vectors = unit_vectors(vectors)
    return ops.matmul(vectors, ops.transpose(vectors))


def _others_and_positives(y_true):
    numbers = ops.reshape(y_true, (-1,))
    index = ops.arange(ops.shape(numbers)[0])
    others = index[:, None] != index[None, :]
    same = numbers[:, None] == numbers[None, :]
    return others, ops.logical_and(same, others)
