import math

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_preprocessor import (
    RoFormerPreprocessor,
    check_sequence_length,
    weighted,
)
from roformer_tf.text import RandomMasker
from roformer_tf.text.strings import to_string_tensor


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerMaskedLMPreprocessor(RoFormerPreprocessor, keras_hub.models.MaskedLMPreprocessor):
    """Turns texts into the inputs, labels and weights of a `RoFormerMaskedLM`, masking at random.

    Args:
        tokenizer, sequence_length, truncate_from, padding, **kwargs: See
            `RoFormerTextClassifierPreprocessor`.
        mask_selection_rate: float. Share of the tokens to predict. Special tokens are never chosen.
        mask_selection_length: int. Size of `mask_positions`, by default this share of the maximum.
        mask_token_rate: float. Share of the chosen tokens that become `[MASK]`.
        random_token_rate: float. Share of the chosen tokens that become a random token.

    Call arguments:
        x: string, or list or tensor of strings, or a tuple of two of them for pairs.
        y: Ignored.
        sample_weight: float tensor `(batch,)`, which multiplies the weights.

    Returns:
        `(inputs, labels, weights)`: the dictionary of `RoFormerTextClassifierPreprocessor` with
        `mask_positions`; the tokens before masking; 1.0 for each of them, and 0.0 where there are
        fewer than `mask_selection_length`.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer, sequence_length=16)
    >>> inputs, labels, weights = preprocessor(["天气好天气好天气好"])
    >>> tuple(inputs["token_ids"].shape), tuple(labels.shape), tuple(weights.shape)
    ((1, 11), (1, 3), (1, 3))

    Reference: section 3.1 of BERT, arXiv 1810.04805.
    """

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
        check_sequence_length("sequence_length", sequence_length)
        share = math.ceil(mask_selection_rate * sequence_length)
        super().__init__(
            tokenizer,
            sequence_length,
            truncate_from,
            padding,
            mask_selection_rate=mask_selection_rate,
            mask_selection_length=mask_selection_length or share,
            mask_token_rate=mask_token_rate,
            random_token_rate=random_token_rate,
            **kwargs,
        )

    def build(self, input_shape=None):
        tokenizer = self.tokenizer
        self.masker = RandomMasker(
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
        token_ids, positions, labels, weights = self.masker(inputs["token_ids"])
        inputs |= {"token_ids": token_ids, "mask_positions": positions}
        weights = weighted(weights, sample_weight)
        return keras.utils.pack_x_y_sample_weight(inputs, labels, weights)

    def pack_masks(self, x):
        """Packs texts with mask tokens written out, and asks for the tokens at those positions.

        Nothing is masked at random. The parts of a text before, between and after its masks are
        tokenized separately.

        Args:
            x: string, or list or tensor of strings, such as "今天[MASK]气很好". A single string
                is a batch of one.

        Returns:
            `(inputs, found)`. The inputs are int32: `token_ids`, `segment_ids` and `padding_mask`,
            each `(batch, length)`, and `mask_positions` `(batch, masks)`, the positions of each
            text's masks from left to right. `found`, bool `(batch, masks)`, is `False` for masks
            lost to truncation, and where a text has fewer masks than another. The position is 0
            there.

        Raises:
            ValueError: If the tokenizer has no mask token.

        Example:

        >>> import roformer_tf
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
        >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
        >>> inputs, found = preprocessor.pack_masks(["天[MASK]好[MASK]", "天气"])
        >>> inputs["token_ids"].numpy().tolist()
        [[2, 5, 4, 7, 4, 3], [2, 5, 6, 3, 0, 0]]
        >>> inputs["mask_positions"].numpy().tolist(), found.numpy().tolist()
        ([[2, 4], [0, 0]], [[True, True], [False, False]])
        """
        return self._pack_masks(to_string_tensor(x))

    @preprocessing_function
    def _pack_masks(self, x):
        return self.as_graph("masks", self._packed_masks, tf.reshape(x, [-1]))

    def _packed_masks(self, texts):
        if self.tokenizer.mask_token is None:
            raise ValueError(
                "The tokenizer has no mask token. Pass `mask_token='[MASK]'`, or the name that the "
                "vocabulary has for it, when you create the tokenizer."
            )
        with tf.device("CPU"):
            parts = tf.strings.split(texts, sep=self.tokenizer.mask_token)
            ids = self.tokenizer.graph(parts.values)
            counts = tf.cast(parts.row_lengths(), tf.int32)
            # Add a mask after each part, then drop the last mask of each text. The masks are
            # numbered -1, -2, …, since truncation may drop any of them.
            marks = -1 - tf.ragged.range(counts).values
            ids = tf.concat([ids, tf.RaggedTensor.from_tensor(marks[:, tf.newaxis])], axis=1)
            ids = parts.with_values(ids).merge_dims(1, 2)[:, :-1]
            counts -= 1
        inputs = self.pack_ids((ids,))
        numbered = inputs["token_ids"]
        masks = tf.where(numbered < 0)
        rows, positions = tf.unstack(tf.cast(masks, tf.int32), axis=1)
        index = tf.stack([rows, -1 - tf.gather_nd(numbered, masks)], axis=1)
        shape = [tf.size(counts), tf.reduce_max(tf.concat([counts, [0]], 0))]
        inputs["token_ids"] = tf.where(numbered < 0, self.tokenizer.mask_token_id, numbered)
        inputs["mask_positions"] = tf.scatter_nd(index, positions, shape)
        found = tf.scatter_nd(index, tf.ones_like(positions), shape) > 0
        return inputs, found
