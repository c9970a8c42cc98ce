import math

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.packing import PackedInputs
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.text import RoFormerTokenizer


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerMaskedLMPreprocessor(PackedInputs, keras_hub.models.MaskedLMPreprocessor):
    """Texts to the inputs, labels and weights of a `RoFormerMaskedLM`, with tokens masked at random.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: positive integer, the most tokens a row may have.
        truncate_from: `"right"` or `"left"`.
        padding: `"longest"` or `"max_length"`, as in `RoFormerTextClassifierPreprocessor`.
        mask_selection_rate: float, share of tokens to predict; special tokens are never chosen.
        mask_selection_length: positive integer, size of `mask_positions`; by default the share of `sequence_length`.
        mask_token_rate: float, share of the chosen tokens that become `[MASK]`.
        random_token_rate: float, share of the chosen tokens that become a random token.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: string, list or tensor of strings, or a tuple of two of them (pairs).
        y, sample_weight: not read.

    Returns:
        `(inputs, labels, weights)`: the dictionary of `RoFormerTextClassifierPreprocessor` with `mask_positions`; the
        tokens that were there; 1.0 for each of them, and 0.0 where there were fewer than `mask_selection_length`.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer, sequence_length=16)
    >>> inputs, labels, weights = preprocessor(["天气好天气好天气好"])
    >>> tuple(inputs["token_ids"].shape), tuple(labels.shape), float(weights.numpy().sum())
    ((1, 11), (1, 3), 1.0)

    Reference: `keras_hub.layers.MaskedLMMaskGenerator`; section 3.1 of BERT, arXiv 1810.04805.
    """

    backbone_cls = RoFormerBackbone
    tokenizer_cls = RoFormerTokenizer

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate_from="right",
        padding="longest",
        mask_selection_rate=0.15,
        mask_selection_length=None,
        mask_token_rate=0.8,
        random_token_rate=0.1,
        **kwargs,
    ):
        super().__init__(
            tokenizer,
            sequence_length=sequence_length,
            mask_selection_rate=mask_selection_rate,
            mask_selection_length=mask_selection_length
            or math.ceil(mask_selection_rate * sequence_length),
            mask_token_rate=mask_token_rate,
            random_token_rate=random_token_rate,
            **kwargs,
        )
        self.set_packing(truncate_from, padding)

    def build(self, input_shape=None):
        tokenizer = self.tokenizer
        self.masker = keras_hub.layers.MaskedLMMaskGenerator(
            vocabulary_size=tokenizer.vocabulary_size(),
            mask_selection_rate=self.mask_selection_rate,
            mask_selection_length=self.mask_selection_length,
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
            mask_token_id=tokenizer.mask_token_id,
            unselectable_token_ids=tokenizer.special_token_ids,
        )
        self.built = True

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        inputs = self.pack(x)
        # inside a tf.function, so that eager calls and tf.data draw from the same generator
        masked = tf.function(self.masker)(inputs["token_ids"])
        inputs["token_ids"] = masked["token_ids"]
        inputs["mask_positions"] = tf.cast(masked["mask_positions"], tf.int32)
        return keras.utils.pack_x_y_sample_weight(
            inputs, masked["mask_ids"], masked["mask_weights"]
        )
