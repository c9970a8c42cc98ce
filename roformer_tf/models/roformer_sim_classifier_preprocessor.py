import keras
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_sim_preprocessor import check_pairs, interleave
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSimClassifierPreprocessor(RoFormerTextClassifierPreprocessor):
    """Turns pairs of texts into the inputs of a `RoFormerSimClassifier`: each text is a sequence.

    Args:
        tokenizer, sequence_length, truncate_from, padding, **kwargs: See
            `RoFormerTextClassifierPreprocessor`.

    Call arguments:
        x: Tuple of two lists or tensors of strings.
        y: Labels, passed through.
        sample_weight: Weights, passed through.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids` and `padding_mask`, each
        `(batch, 2, length)`, or `(2, length)` for two strings. With `y` or `sample_weight` a tuple
        `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: If `x` is not a pair.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer)
    >>> preprocessor((["天气好"], ["好"]))["token_ids"].numpy().tolist()
    [[[2, 5, 6, 7, 3], [2, 7, 3, 0, 0]]]

    Reference: `data_generator` of RoFormer-Sim's `supervised.py`.
    """

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        inputs = self.pack(interleave(*check_pairs(x)))
        is_batch = x[0].shape.rank > 0
        batch = [-1] if is_batch else []
        x = {name: tf.reshape(v, [*batch, 2, tf.shape(v)[1]]) for name, v in inputs.items()}
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    @preprocessing_function
    def count_tokens(self, x):
        """Returns the number of tokens of the longer text of each pair; see the base class.

        `embed` counts single texts.
        """
        if tf.is_tensor(x):
            return super().count_tokens(x)
        first, second = check_pairs(x)
        return tf.maximum(super().count_tokens(first), super().count_tokens(second))
