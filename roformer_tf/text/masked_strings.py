"""Strings in which the mask token is written out, to token ids."""

import tensorflow as tf


def tokenize_with_masks(tokenizer, texts):
    """Tokenizes the parts of each text around the mask token, which the tokenizer itself takes for text.

    Args:
        tokenizer: `RoFormerTokenizer` with a mask token.
        texts: string tensor (batch,).

    Returns:
        ids: RaggedTensor int32 (batch, tokens), in which the masks of each text are -1, -2, …;
        counts: int32 (batch,), how many masks each text has.

    Raises:
        ValueError: the tokenizer has no mask token.

    Example:

    >>> from roformer_tf.text import RoFormerTokenizer
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
    >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
    >>> ids, counts = tokenize_with_masks(tokenizer, tf.constant(["天[MASK]", "[MASK]天[MASK]", ""]))
    >>> ids.to_list(), counts.numpy().tolist()
    ([[5, -1], [-1, 5, -2], []], [1, 2, 0])
    """
    if tokenizer.mask_token is None:
        raise ValueError(
            "The tokenizer has no mask token. Make it with `mask_token='[MASK]'`, or whatever the vocabulary calls it."
        )
    with tf.device("CPU"):
        parts = tf.strings.split(texts, sep=tokenizer.mask_token)
        ids = tokenizer.graph(parts.values)
        counts = tf.cast(parts.row_lengths(), tf.int32)
        # a mask after every part, then off with the last one of each text
        marks = -1 - tf.ragged.range(counts).values
        ids = tf.concat([ids, tf.RaggedTensor.from_tensor(marks[:, tf.newaxis])], axis=1)
        rows = parts.with_values(ids).merge_dims(1, 2)
        return rows[:, :-1], counts - 1
