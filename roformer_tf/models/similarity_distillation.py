import keras
from keras import ops

from roformer_tf.models.in_batch_contrastive import cosines


@keras.saving.register_keras_serializable(package="roformer_tf")
class SimilarityDistillation(keras.losses.Loss):
    """Squared difference between the cosines of a model and its teacher, over all pairs of texts.

    The vectors of teacher and model may have different sizes. Under `tf.distribute` each replica
    compares the pairs of its own batch.

    Args:
        scale: float. Factor of the loss.
        **kwargs: Arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: `(batch, teacher_size)`, the teacher's vectors of the same texts, of any length.
        y_pred: `(batch, size)`, vectors of any length.

    Returns:
        Mean over all pairs, those of a text with itself included.

    Raises:
        ValueError: If `y_true` holds numbers of pairs instead of vectors.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.models import SimilarityDistillation
    >>> teacher = np.float32([[1, 0, 0], [1, 0, 0]])
    >>> float(SimilarityDistillation()(teacher, np.float32([[1, 0], [0, 1]])))
    50.0

    Reference: `compute_loss_of_similarity` of RoFormer-Sim's `stage2.py`.
    """

    def __init__(self, scale=100.0, name="similarity_distillation", **kwargs):
        super().__init__(name=name, **kwargs)
        self.scale = scale

    def call(self, y_true, y_pred):
        if y_true.shape[-1] == 1:
            raise ValueError(
                "The labels must be the teacher's vectors, `y=(teacher.embed(first), "
                "teacher.embed(second))` in `fit`. Received: one number for each text, y_true of "
                f"shape {tuple(y_true.shape)}"
            )
        difference = cosines(y_pred) - cosines(y_true)
        return self.scale * ops.mean(ops.square(difference), axis=-1)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}
