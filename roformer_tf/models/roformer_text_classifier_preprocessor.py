import keras
import keras_hub
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTextClassifierPreprocessor(
    RoFormerPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """Turns texts, or pairs of texts, into the inputs of a `RoFormerTextClassifier`.

    A text becomes `[CLS] text [SEP]`, a pair `[CLS] first [SEP] second [SEP]`. A pair that is too
    long loses tokens of the longer text, as in the original.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: int. Maximum number of tokens in a sequence, special tokens included.
        truncate_from: `"right"` drops the ends of texts that are too long, `"left"` their starts.
        padding: `"longest"` pads to the longest sequence of the batch, which costs least on
            TensorFlow and PyTorch. `"max_length"` pads to `sequence_length`, for XLA and JAX, which
            compile a program for each shape.
        pair_segments: bool. Whether the second text of a pair has segment id 1. The scripts of the
            original's v2 use 0 everywhere.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: string, or list or tensor of strings, or a tuple of two of them for pairs.
        y: Labels, passed through.
        sample_weight: Weights, passed through.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids` and `padding_mask`, each
        `(batch, length)`. With `y` or `sample_weight` a tuple `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: If `padding` is unknown or `sequence_length` is less than 2.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer, sequence_length=8)
    >>> preprocessor(["天气好", "好"])["token_ids"].numpy().tolist()
    [[2, 5, 6, 7, 3], [2, 7, 3, 0, 0]]

    Reference: `Tokenizer.encode` of bert4keras.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate_from="right",
        padding="longest",
        pair_segments=True,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, truncate_from, padding, **kwargs)
        self.pair_segments = pair_segments

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        return keras.utils.pack_x_y_sample_weight(self.pack(x), y, sample_weight)
