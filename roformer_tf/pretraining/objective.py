import math

import tensorflow as tf

from roformer_tf.checks import check_one_of
from roformer_tf.pretraining.packing import document_lengths, positions_in_documents
from roformer_tf.pretraining.settings import OBJECTIVES
from roformer_tf.text.random_masker import is_none_of, mask_tokens, masked_positions

# The number of slots of a batch is a multiple of this, so that there are few different shapes.
_SLOTS = 8


class PretrainingObjective:
    """Makes the inputs and targets of a language model: masked tokens, next token, or UniLM.

    * `"masked_lm"`: each token is chosen with probability `mask_rate`, independently, and predicted
      at its own position. A chosen token becomes the mask token with probability
      `mask_token_rate`, a random token with id 1 … `vocabulary_size` - 1 with probability
      `random_token_rate`, and stays otherwise. The number of chosen tokens is random too; a short
      sequence may have none. With `whole_word`, words are chosen with probability `mask_rate`, and
      with a word all of its tokens; what becomes of each is drawn separately. Special tokens,
      including `[UNK]`, are never chosen. The original chooses them like any other token; pass
      `mask_special_tokens=True` to do the same.
    * `"causal_lm"`: every token of a document but the first is predicted from the position before.
    * `"unilm"`: each document is split at a random position and becomes `[CLS] a [SEP] b [SEP]`,
      like the pairs of RoFormer-Sim. Segment 0 is `[CLS] a [SEP]`, segment 1 is `b [SEP]`. The
      tokens of segment 1 are predicted, each from the position before. `a` and `b` have at least
      one token, but `a` is empty if the document has a single token.

    All of this is drawn from the seed passed to the call: the same seed gives the same batch.

    Args:
        tokenizer: a `RoFormerTokenizer`. Used for the size of its vocabulary and the ids of its
            special tokens.
        objective: str. `"masked_lm"`, `"causal_lm"` or `"unilm"`.
        mask_rate, mask_token_rate, random_token_rate: float. See `"masked_lm"`.
        whole_word: bool. Whether to choose words instead of tokens. See `"masked_lm"`.
        mask_special_tokens: bool. Whether special tokens may be chosen. See `"masked_lm"`.

    Call arguments:
        token_ids: int32 tensor `(batch, sequence_length)`. A document is `[CLS] tokens [SEP]`, or
            `[CLS] tokens [SEP] [SEP]` for `"unilm"` (`num_end_tokens`), which moves the first
            `[SEP]` between `a` and `b`.
        lengths: int32 tensor `(batch,)`. Number of tokens of each sequence.
        seed: integer tensor `(2,)`.
        document_ids: int32 tensor `(batch, sequence_length)`. 1, 2, … for the documents of a
            sequence, 0 for padding. `None` if each sequence is one document.
        word_starts: bool tensor `(batch, sequence_length)`. `True` where a word or a special token
            begins. Required with `whole_word`.

    Returns:
        Dict of tensors: int32 `token_ids`, `segment_ids`, `padding_mask`, each `(batch,
        sequence_length)`; int32 `mask_positions` and `labels`, float32 `label_weights`, each
        `(batch, slots)`, 0 where a sequence has fewer predictions than another. `slots` is a
        multiple of 8.

    Raises:
        ValueError: If `objective` is unknown, the tokenizer lacks a special token, or
            `word_starts` is missing.

    Example:

    >>> import tensorflow as tf
    >>> import roformer_tf
    >>> from roformer_tf.pretraining import PretrainingObjective
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> ids = tf.constant([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])
    >>> batch = PretrainingObjective(tokenizer, "causal_lm")(ids, tf.constant([5, 3]), seed=[1, 2])
    >>> batch["labels"].numpy().tolist()
    [[5, 6, 7, 3, 0, 0, 0, 0], [5, 3, 0, 0, 0, 0, 0, 0]]
    >>> batch["label_weights"].numpy().sum(axis=1).tolist()
    [4.0, 2.0]

    Reference: `random_masking` of `train.py` of the original repository; section 3.1 of BERT,
    arXiv 1810.04805; whole word masking of BERT's repository; UniLM, arXiv 1905.03197, and the
    training of RoFormer-Sim.
    """

    def __init__(
        self,
        tokenizer,
        objective="masked_lm",
        mask_rate=0.15,
        mask_token_rate=0.8,
        random_token_rate=0.1,
        whole_word=False,
        mask_special_tokens=False,
    ):
        check_one_of("objective", objective, OBJECTIVES)
        needed = ["pad", "start", "end"] + ["mask"] * (objective == "masked_lm")
        missing = [name for name in needed if getattr(tokenizer, f"{name}_token_id") is None]
        if missing:
            raise ValueError(
                "Pretraining needs a tokenizer with padding, start and end tokens, and for masks a "
                f"mask token. Received one without: {', '.join(missing)}. Add its token to the "
                "vocabulary, such as [MASK]"
            )
        self.objective = objective
        self.mask_rate = mask_rate
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self.whole_word = whole_word and objective == "masked_lm"
        self.mask_special_tokens = mask_special_tokens
        self.vocabulary_size = tokenizer.vocabulary_size()
        self.mask_token_id = tokenizer.mask_token_id
        self.end_token_id = tokenizer.end_token_id
        self.special_token_ids = list(tokenizer.special_token_ids)

    @property
    def num_end_tokens(self):
        """Number of end tokens that the sequences need after each document."""
        return 2 if self.objective == "unilm" else 1

    def __call__(self, token_ids, lengths, seed, document_ids=None, word_starts=None):
        if self.whole_word and word_starts is None:
            raise ValueError("`whole_word=True` needs `word_starts`. Received: word_starts=None")
        seed = tf.cast(tf.convert_to_tensor(seed), tf.int64)
        token_ids = tf.convert_to_tensor(token_ids)
        real = tf.sequence_mask(lengths, tf.shape(token_ids)[1])
        if document_ids is None:
            document_ids = tf.cast(real, tf.int32)
        document_ids = tf.convert_to_tensor(document_ids)
        targets = getattr(self, f"_{self.objective}")
        token_ids, segment_ids, positions, labels, used = targets(
            token_ids, real, seed, document_ids, word_starts
        )
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": tf.cast(real, tf.int32),
            "mask_positions": positions,
            "labels": tf.where(used, labels, 0),
            "label_weights": tf.cast(used, tf.float32),
        }

    def _masked_lm(self, token_ids, real, seed, document_ids, word_starts):
        seeds = tf.random.experimental.stateless_split(seed, 2)
        draw = tf.random.stateless_uniform(tf.shape(token_ids), seeds[0])
        if self.whole_word:  # all tokens of a word share the draw at the word's number
            word = tf.cumsum(tf.cast(word_starts, tf.int32), axis=1)
            draw = tf.gather(draw, tf.maximum(word - 1, 0), batch_dims=1)
        chosen = real & (draw < self.mask_rate)
        if not self.mask_special_tokens:
            chosen &= is_none_of(token_ids, self.special_token_ids)
        masked = mask_tokens(
            token_ids,
            chosen,
            seeds[1],
            self.vocabulary_size,
            self.mask_token_id,
            self.mask_token_rate,
            self.random_token_rate,
            first_random_id=1,
        )
        positions, used = self._slots(chosen)
        labels = tf.gather(token_ids, positions, batch_dims=1)
        return masked, tf.zeros_like(token_ids), positions, labels, used

    def _causal_lm(self, token_ids, real, seed, document_ids, word_starts):
        chosen = _next(document_ids) == document_ids
        return self._next_tokens(token_ids, tf.zeros_like(token_ids), chosen & real)

    def _unilm(self, token_ids, real, seed, document_ids, word_starts):
        position = positions_in_documents(document_ids)
        size = document_lengths(document_ids) - 3  # tokens without [CLS] and the two [SEP]
        # one draw for each document, taken from its first position
        draw = tf.random.stateless_uniform(tf.shape(token_ids), seed)
        index = tf.broadcast_to(tf.range(tf.shape(token_ids)[1]), tf.shape(token_ids))
        draw = tf.gather(draw, index - position, batch_dims=1)
        least = tf.minimum(size - 1, 1)  # the least number of tokens before the new [SEP]
        span = tf.cast(tf.maximum(size - 1, 1), tf.float32)
        before = least + tf.cast(draw * span, tf.int32)

        later = real & (position > before + 1)
        token_ids = tf.gather(token_ids, index - tf.cast(later, tf.int32), batch_dims=1)
        token_ids = tf.where(real & (position == before + 1), self.end_token_id, token_ids)
        segment_ids = tf.cast(later, tf.int32)
        chosen = (_next(segment_ids) == 1) & (_next(document_ids) == document_ids)
        return self._next_tokens(token_ids, segment_ids, chosen & real)

    def _next_tokens(self, token_ids, segment_ids, chosen):
        """Predicts the next token from each chosen position."""
        positions, used = self._slots(chosen)
        labels = tf.gather(_next(token_ids), positions, batch_dims=1)
        return token_ids, segment_ids, positions, labels, used

    def _slots(self, chosen):
        count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        most = tf.reduce_max(tf.concat([count, [1]], 0))
        return masked_positions(chosen, (most + _SLOTS - 1) // _SLOTS * _SLOTS)


def _next(x):
    """Shifts each sequence one position to the left."""
    return tf.pad(x[:, 1:], [[0, 0], [0, 1]])


def predicted_positions(data, batch_size, length, most=False):
    """Returns the number of positions of a batch that the head computes.

    That is the mean, or with `most` a number that a batch hardly ever exceeds.
    """
    positions = batch_size * length
    if data.objective == "causal_lm":
        return positions
    if data.objective == "unilm":  # the second part of each chunk, split at a random position
        return positions if most else positions // 2
    mean = data.mask_rate * positions
    if not most:
        return round(mean)
    # tokens are chosen one by one, or a whole word at a time
    variance = mean * (1 - data.mask_rate) * (4 if data.whole_word else 1)
    return min(positions, math.ceil(mean + 4 * math.sqrt(variance)))
