import keras
import keras_hub
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.packing import PackedInputs
from roformer_tf.models.presets import PreprocessorFromPreset
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.text import RoFormerTokenizer


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTextClassifierPreprocessor(
    PackedInputs, PreprocessorFromPreset, keras_hub.models.TextClassifierPreprocessor
):
    """Texts, or pairs of texts, to the inputs of a `RoFormerTextClassifier`.

    `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`; a pair that is too long loses tokens from the longer text,
    as in the original.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: positive integer, the most tokens a row may have.
        truncate_from: `"right"` (ends of the texts are cut) or `"left"`.
        padding: `"longest"` (of the batch) or `"max_length"` (always `sequence_length`).
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: string, list or tensor of strings, or a tuple of two of them (pairs).
        y: labels, passed through.
        sample_weight: passed through.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids`, `padding_mask`, each `(batch, length)`; with `y` and
        `sample_weight` as a tuple when they are given.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer, sequence_length=8)
    >>> preprocessor(["天气好", "好"])["token_ids"].numpy().tolist()
    [[2, 5, 6, 7, 3], [2, 7, 3, 0, 0]]

    Reference: `Tokenizer.encode` of bert4keras.
    """

    backbone_cls = RoFormerBackbone
    tokenizer_cls = RoFormerTokenizer

    def __init__(
        self, tokenizer, sequence_length=512, truncate_from="right", padding="longest", **kwargs
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.set_packing(truncate_from, padding)

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        return keras.utils.pack_x_y_sample_weight(self.pack(x), y, sample_weight)
