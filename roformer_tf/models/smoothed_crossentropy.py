import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of class numbers with label smoothing, without a vector for each label.

    The wanted distribution has `1 - label_smoothing` at the label, and `label_smoothing` spread evenly over all
    classes, the label among them. `keras.losses.CategoricalCrossentropy` has the same, for one-hot labels: of 4,096
    tokens out of 37,000 these would take 600 MB. Here it is put as cross-entropy of the label, plus `label_smoothing`
    times how far the label's logit is above the mean logit.

    Args:
        label_smoothing: float in [0, 1).
        reduction: as of `keras.losses.Loss`; by default the mean over the tokens that count, by their weights.
        name: str.
        dtype: dtype policy of the loss, float32 by default.

    Call arguments:
        y_true: int tensor `(...)` of labels.
        y_pred: logits `(..., classes)`.
        sample_weight: tensor `(...)`, 0 for padding.

    Raises:
        ValueError: if `label_smoothing` is not in [0, 1).

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from roformer_tf.models import SmoothedCrossentropy
    >>> logits = np.array([[1.0, 2.0, 0.5]], "float32")
    >>> loss = SmoothedCrossentropy(0.1)(np.array([1]), logits)
    >>> other = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    >>> bool(abs(loss - other(np.array([[0, 1, 0]]), logits)) < 1e-6)
    True

    Reference: Szegedy et al., arXiv 1512.00567, section 7; Vaswani et al., arXiv 1706.03762, section 5.4.
    """

    def __init__(
        self,
        label_smoothing=0.1,
        reduction="mean_with_sample_weight",
        name="smoothed_crossentropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be in [0, 1). Received: label_smoothing={label_smoothing!r}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        y_true = ops.cast(y_true, "int32")  # the loss' dtype would have made it a float
        loss = ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        if self.label_smoothing:
            of_label = ops.take_along_axis(y_pred, y_true[..., None], axis=-1)[..., 0]
            loss = loss + self.label_smoothing * (of_label - ops.mean(y_pred, axis=-1))
        return loss

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
