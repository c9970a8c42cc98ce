import keras
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checks import check_number
from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.text.random_masker import is_none_of, mask_tokens, seed_generator


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSimPreprocessor(RoFormerCausalLMPreprocessor):
    """Turns pairs of similar texts into the inputs, labels and weights of a `RoFormerSim`.

    Each pair is learned in both directions: (a, b) becomes the sequences `[CLS] a [SEP] b [SEP]`
    and `[CLS] b [SEP] a [SEP]`. Some sources have tokens masked as for a masked language model, so
    that the target cannot simply be copied.

    Args:
        tokenizer, sequence_length, truncate_from, padding, **kwargs: See
            `RoFormerTextClassifierPreprocessor`.
        source_mask_rate: float. Probability that a sequence has tokens of its source masked. Each
            token is then chosen with probability 0.15; of those chosen 80 % become `[MASK]`, 10 % a
            random token, and 10 % stay as they are.

    Call arguments:
        x: Tuple of two strings, or of two lists or tensors of strings.
        y: `None`. For distillation a tuple of the teacher's vectors of both columns, each
            `(batch, size)`.
        sample_weight: Weights of the pairs `(batch,)`, optional. They multiply those of both losses.

    Returns:
        `(inputs, labels, weights)` of twice as many sequences as pairs, the two of a pair next to
        each other. The inputs are those of `RoFormerCausalLMPreprocessor`. Labels and weights are
        dictionaries of `"logits"` (the next token; 1.0 for tokens of the target) and
        `"pooled_output"` (the number of the pair, or the teacher's vector; 1.0).

    Raises:
        ValueError: If `x` is not a pair, or sources are to be masked and the tokenizer has no mask
            token.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer, source_mask_rate=0.0)
    >>> inputs, labels, weights = preprocessor((["天气"], ["好"]))
    >>> inputs["token_ids"].numpy().tolist()
    [[2, 5, 6, 3, 7], [2, 7, 3, 5, 6]]
    >>> labels["pooled_output"].numpy().tolist(), weights["logits"].numpy().tolist()
    ([[0], [0]], [[0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0]])

    Reference: `data_generator` and `masked_encode` of RoFormer-Sim's `stage1.py` and `stage2.py`,
    which mask the tokens of a word together.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate_from="right",
        padding="longest",
        source_mask_rate=0.5,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, truncate_from, padding, **kwargs)
        check_number("source_mask_rate", source_mask_rate, 0, 1)
        self.source_mask_rate = source_mask_rate
        self._draw_seed = seed_generator()

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        first, second = check_pairs(x)
        if y is not None and not (isinstance(y, tuple | list) and len(y) == 2):
            raise ValueError(
                "`y` must be None, or for distillation a tuple of the teacher's vectors of both "
                f"columns. Received: y of type {type(y).__name__}"
            )
        both_ways = interleave(first, second), interleave(second, first)
        if sample_weight is not None:
            of_pairs = tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
            sample_weight = interleave(of_pairs, of_pairs)
        inputs, next_tokens, weights = self.next_tokens(both_ways, sample_weight)
        if self.source_mask_rate:
            inputs["token_ids"] = self._mask_sources(inputs["token_ids"], inputs["segment_ids"])
        count = tf.shape(next_tokens)[0]
        pooled = (tf.range(count) // 2)[:, tf.newaxis] if y is None else interleave(*y)
        of_rows = tf.ones([count]) if sample_weight is None else sample_weight
        return (
            inputs,
            {"logits": next_tokens, "pooled_output": pooled},
            {"logits": weights, "pooled_output": of_rows},
        )

    def _mask_sources(self, token_ids, segment_ids):
        tokenizer = self.tokenizer
        if tokenizer.mask_token is None:
            raise ValueError(
                "The tokenizer has no mask token for the tokens of the sources. Make it with "
                "`mask_token='[MASK]'`, or the preprocessor with `source_mask_rate=0.0`."
            )
        maskable = (segment_ids == 0) & is_none_of(token_ids, tokenizer.special_token_ids)
        seeds = tf.random.experimental.stateless_split(self._draw_seed(), 3)
        of_sequence = tf.random.stateless_uniform([tf.shape(token_ids)[0], 1], seeds[0])
        chosen = tf.random.stateless_uniform(tf.shape(token_ids), seeds[1]) < 0.15
        chosen &= maskable & (of_sequence < self.source_mask_rate)
        return mask_tokens(
            token_ids,
            chosen,
            seeds[2],
            vocabulary_size=tokenizer.vocabulary_size(),
            mask_token_id=tokenizer.mask_token_id,
            mask_token_rate=0.8,
            random_token_rate=0.1,
            first_random_id=1,  # 0 is padding
        )

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if "hidden_sources" in config:  # its name in older presets
            config["source_mask_rate"] = config.pop("hidden_sources")
        return super().from_config(config)


def check_pairs(x):
    """Returns both columns of a pair, each `(batch,)`. Raises `ValueError` for anything else."""
    if not isinstance(x, tuple) or len(x) != 2:
        raise ValueError(
            "Expected pairs of texts: a tuple of two columns of strings, `(first, second)`. "
            f"Received: x of type {type(x).__name__}"
        )
    return tuple(tf.reshape(column, [-1]) for column in x)


def interleave(first, second):
    """Joins two columns `(n, ...)` to `(2n, ...)`: first[0], second[0], first[1], second[1], …"""
    return tf.reshape(
        tf.stack([first, second], axis=1), tf.concat([[-1], tf.shape(first)[1:]], axis=0)
    )
