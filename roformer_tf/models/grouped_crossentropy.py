import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class GroupedCrossentropy(keras.losses.Loss):
    """Cross entropy of several tasks that share one vector of logits.

    Each label belongs to a group of classes, one for each task. The softmax is over that group
    only.

    Args:
        groups: tuple of ints. Number of classes of each task. With `(2, 3)` labels 0 and 1 belong
            to the first, 2 to 4 to the second.
        **kwargs: Arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: `(batch,)` or `(batch, 1)`, labels in `[0, number of classes)`.
        y_pred: `(batch, number of classes)`, logits.

    Returns:
        Mean over the batch.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.models import GroupedCrossentropy
    >>> loss = GroupedCrossentropy((2, 3))(np.array([1]), np.zeros((1, 5), "float32"))
    >>> bool(abs(float(loss) - np.log(2)) < 1e-6)
    True

    Reference: `special_crossentropy` of RoFormer-Sim's `supervised.py`.
    """

    def __init__(self, groups, name="grouped_crossentropy", **kwargs):
        super().__init__(name=name, **kwargs)
        self.groups = tuple(groups)

    def call(self, y_true, y_pred):
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        return ops.sparse_categorical_crossentropy(
            labels, mask_other_groups(labels, y_pred, self.groups), from_logits=True
        )

    def get_config(self):
        return {**super().get_config(), "groups": self.groups}


@keras.saving.register_keras_serializable(package="roformer_tf")
def grouped_accuracy(y_true, y_pred, groups):
    """Returns 1.0 where the label has the highest logit of its group, else 0.0."""
    labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
    best = ops.argmax(mask_other_groups(labels, y_pred, groups), axis=-1)
    return ops.cast(ops.equal(ops.cast(best, "int32"), labels), "float32")


def mask_other_groups(labels, logits, groups):
    """Replaces the logits outside the group of each label by -1e12, whose probability is 0."""
    group_of_class = ops.convert_to_tensor(np.repeat(np.arange(len(groups), dtype="int32"), groups))
    same = ops.take(group_of_class, labels)[:, None] == group_of_class[None, :]
    return ops.where(same, logits, ops.cast(-1e12, logits.dtype))
