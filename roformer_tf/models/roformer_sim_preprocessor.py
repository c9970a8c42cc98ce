import keras
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.text.mask_tokens import mask_tokens, seed_generator


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSimPreprocessor(RoFormerCausalLMPreprocessor):
    """Pairs of similar texts to the inputs, labels and weights of a `RoFormerSim`, each pair in both directions.

    The pair (a, b) becomes two rows, `[CLS] a [SEP] b [SEP]` and `[CLS] b [SEP] a [SEP]`. In some rows tokens of the
    source are hidden as for a masked language model, so that the target cannot simply be copied.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: positive integer, the most tokens a row may have.
        truncate_from: `"right"` or `"left"`.
        padding: `"longest"` or `"max_length"`, as in `RoFormerTextClassifierPreprocessor`.
        hidden_sources: float, probability that a row has tokens of its source hidden: each of them with probability
            0.15, and of these 80 % become `[MASK]`, 10 % a random token, 10 % stay.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: tuple of two strings, or of two lists or tensors of strings.
        y: `None`; or for distillation a tuple of the teacher's vectors of both, each `(batch, size)`.
        sample_weight: not read.

    Returns:
        `(inputs, labels, weights)`, twice as many rows as pairs, those of one pair beside each other. The inputs are
        those of `RoFormerCausalLMPreprocessor`; labels and weights are dictionaries of `"logits"` (the next token, and
        1.0 for those of the target) and `"pooled_output"` (the pair's number or the teacher's vector, and 1.0).

    Raises:
        ValueError: if `x` is no pair, or there are sources to hide and the tokenizer has no mask token.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer, hidden_sources=0.0)
    >>> inputs, labels, weights = preprocessor((["天气"], ["好"]))
    >>> inputs["token_ids"].numpy().tolist()
    [[2, 5, 6, 3, 7], [2, 7, 3, 5, 6]]
    >>> labels["pooled_output"].numpy().tolist(), weights["logits"].numpy().tolist()
    ([[0], [0]], [[0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0]])

    Reference: `data_generator` and `masked_encode` of RoFormer-Sim's `stage1.py` and `stage2.py`; there the tokens of
    a word are hidden together.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate_from="right",
        padding="longest",
        hidden_sources=0.5,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, truncate_from, padding, **kwargs)
        if not 0.0 <= hidden_sources <= 1.0:
            raise ValueError(
                "`hidden_sources` must be a probability, from 0 to 1. "
                f"Received: hidden_sources={hidden_sources!r}"
            )
        self.hidden_sources = hidden_sources
        self._draw_seed = seed_generator()

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        first, second = check_pairs(x)
        rows = side_by_side(first, second), side_by_side(second, first)
        inputs, next_tokens, counted = self.next_tokens(rows)
        if self.hidden_sources:
            inputs["token_ids"] = self._hide(inputs["token_ids"], inputs["segment_ids"] == 0)
        count = tf.shape(next_tokens)[0]
        pooled = (tf.range(count) // 2)[:, tf.newaxis] if y is None else side_by_side(*y)
        return (
            inputs,
            {"logits": next_tokens, "pooled_output": pooled},
            {"logits": counted, "pooled_output": tf.ones([count])},
        )

    def _hide(self, token_ids, in_source):
        tokenizer = self.tokenizer
        if tokenizer.mask_token is None:
            raise ValueError(
                "The tokenizer has no mask token to hide tokens of the sources with: make it with "
                "`mask_token='[MASK]'`, or the preprocessor with `hidden_sources=0.0`."
            )
        for token_id in tokenizer.special_token_ids:
            in_source &= token_ids != token_id
        seeds = tf.random.experimental.stateless_split(self._draw_seed(), 3)
        rows = tf.random.stateless_uniform([tf.shape(token_ids)[0], 1], seeds[0])
        chosen = tf.random.stateless_uniform(tf.shape(token_ids), seeds[1]) < 0.15
        chosen &= in_source & (rows < self.hidden_sources)
        return mask_tokens(
            *(token_ids, chosen, seeds[2]),
            vocabulary_size=tokenizer.vocabulary_size(),
            mask_token_id=tokenizer.mask_token_id,
            mask_token_rate=0.8,
            random_token_rate=0.1,
            first_random_id=1,  # 0 is padding
        )

    def get_config(self):
        return {**super().get_config(), "hidden_sources": self.hidden_sources}


def check_pairs(x):
    """The two columns of strings, each `(batch,)`; refuses what is no pair."""
    if not isinstance(x, tuple) or len(x) != 2:
        raise ValueError(
            "Pairs of texts are needed: a tuple of two columns of strings, `(first, second)`. "
            f"Received: x of type {type(x).__name__}"
        )
    return tuple(tf.reshape(column, [-1]) for column in x)


def side_by_side(first, second):
    """Two columns `(n, ...)` as one, `(2n, ...)`, with what belongs together beside each other."""
    return tf.reshape(
        tf.stack([first, second], axis=1), tf.concat([[-1], tf.shape(first)[1:]], axis=0)
    )
