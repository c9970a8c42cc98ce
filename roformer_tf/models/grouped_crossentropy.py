import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class GroupedCrossentropy(keras.losses.Loss):
    """Cross entropy of several tasks with one row of logits: a softmax over the group of classes a label is of.

    Args:
        groups: integers, how many classes each task has. `(2, 3)`: labels 0 and 1 are of the first, 2 to 4 of the
            second.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: `(batch,)` or `(batch, 1)`, labels from 0 to the number of classes - 1.
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
            labels, own_group(labels, y_pred, self.groups), from_logits=True
        )

    def get_config(self):
        return {**super().get_config(), "groups": self.groups}


@keras.saving.register_keras_serializable(package="roformer_tf")
def grouped_accuracy(y_true, y_pred, groups):
    """1.0 where the label has the highest logit of its group, 0.0 elsewhere: arguments as of the loss."""
    labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
    best = ops.argmax(own_group(labels, y_pred, groups), axis=-1)
    return ops.cast(ops.equal(ops.cast(best, "int32"), labels), "float32")


def own_group(labels, logits, groups):
    """The logits of each label's own group; all others are so small that no softmax sees them."""
    group_of_class = ops.convert_to_tensor(np.repeat(np.arange(len(groups), dtype="int32"), groups))
    same = ops.take(group_of_class, labels)[:, None] == group_of_class[None, :]
    return ops.where(same, logits, ops.cast(-1e12, logits.dtype))
