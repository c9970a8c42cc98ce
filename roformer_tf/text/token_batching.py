"""Batches pairs of texts by number of tokens."""

import tensorflow as tf

from roformer_tf.checks import check_positive_integer
from roformer_tf.text.strings import to_string_tensor

TOKENIZED_TOGETHER = 1024  # pairs


def token_batches(pairs, tokenizer, max_tokens, max_length=256, seed=None, multiple_of=1):
    """Batches pairs of similar length, with as many pairs in a batch as fit into `max_tokens`.

    The length of a pair is that of its longer text with two special tokens. After padding, neither
    the sources nor the targets of a batch have more than `max_tokens` tokens. Pairs longer than
    `max_length` are dropped.

    Args:
        pairs: `(sources, targets)`, lists or arrays of strings.
        tokenizer: A tokenizer of this package or of KerasHub.
        max_tokens: int. Maximum number of tokens in a batch, on each side.
        max_length: int. Maximum length of a pair.
        seed: int. Repeats the data forever and shuffles each pass differently; the order depends on
            this seed and on that of `keras.utils.set_random_seed`. `None` makes one pass, which
            keeps the order of the data among pairs of similar length.
        multiple_of: int. Each batch has a multiple of this many pairs, such as the number of
            replicas, except for the last ones of a single pass.

    Returns:
        `tf.data.Dataset` of dictionaries with `encoder_text` and `decoder_text`, string tensors
        `(pairs,)`.

    Raises:
        ValueError: If there are no pairs, or none of at most `max_length`; if there are not as many
            sources as targets; or if a pair of `max_length` does not fit into a batch.

    Example:

    >>> from roformer_tf.text import RoFormerSentencePieceTokenizer, train_sentencepiece
    >>> from roformer_tf.text import token_batches
    >>> sources, targets = ["a", "a", "a cat and a dog"], ["ein", "ein", "eine Katze und ein Hund"]
    >>> proto = train_sentencepiece(sources + targets, vocabulary_size=30)
    >>> tokenizer = RoFormerSentencePieceTokenizer(proto)
    >>> batches = token_batches((sources, targets), tokenizer, max_tokens=64, max_length=30)
    >>> [len(batch["encoder_text"]) for batch in batches]
    [2, 1]

    Reference: Vaswani et al., arXiv 1706.03762, section 5.1; `--max-tokens` of fairseq.
    """
    sources, targets = (to_string_tensor(texts) for texts in pairs)
    count = len(sources)
    if not count or count != len(targets):
        raise ValueError(
            "`pairs` must be equally many sources and targets, at least one each. "
            f"Received: {count} sources, {len(targets)} targets"
        )
    check_positive_integer("max_length", max_length)
    check_positive_integer("multiple_of", multiple_of)
    if max_tokens < max_length * multiple_of:
        raise ValueError(
            "`max_tokens` must be at least `multiple_of` times `max_length`. Received: "
            f"max_tokens={max_tokens}, max_length={max_length}, multiple_of={multiple_of}"
        )

    def with_length(positions):
        texts = tf.gather(sources, positions), tf.gather(targets, positions)
        lengths = [tokenizer.tokenize(x).row_lengths() + 2 for x in texts]
        length = tf.cast(tf.maximum(*lengths), tf.int32)
        return {"encoder_text": texts[0], "decoder_text": texts[1]}, length

    def short_rows(positions):
        rows = positions.batch(TOKENIZED_TOGETHER).map(with_length, num_parallel_calls=2)
        return rows.unbatch().filter(lambda texts, length: length <= max_length)

    positions = tf.data.Dataset.range(count)
    # otherwise an endless dataset without any short pair would hang
    if not any(short_rows(positions).take(1)):
        raise ValueError(
            "No pair has at most `max_length` tokens, special tokens included. Received: "
            f"max_length={max_length}"
        )
    if seed is not None:
        positions = positions.shuffle(count, seed=seed).repeat()
    limits = _limits(max_length)
    sizes = [max_tokens // limit // multiple_of * multiple_of for limit in limits]
    batches = (
        short_rows(positions)
        .bucket_by_sequence_length(
            lambda texts, length: length,
            bucket_boundaries=[limit + 1 for limit in limits[:-1]],
            bucket_batch_sizes=sizes,
        )
        .map(lambda texts, length: texts)
    )
    # Keras warns if it does not know the number of batches
    number = tf.data.INFINITE_CARDINALITY
    if seed is None:
        number = batches.reduce(tf.constant(0, tf.int64), lambda number, _: number + 1)
    return batches.apply(tf.data.experimental.assert_cardinality(number))


def _limits(max_length):
    """Lists the maximum lengths of the buckets: 8, 9, 10, …, later in steps of 10 %."""
    limits = [min(8, max_length)]
    while limits[-1] < max_length:
        limits.append(min(max(limits[-1] + 1, int(limits[-1] * 1.1)), max_length))
    return limits
