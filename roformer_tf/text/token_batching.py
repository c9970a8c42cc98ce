"""Pairs of texts -> batches of about as many tokens each."""

import tensorflow as tf

from roformer_tf.text.strings import to_string_tensor

AT_ONCE = 1024  # pairs that are tokenized together, for their lengths


def token_batches(pairs, tokenizer, max_tokens, max_length=256, seed=None, multiple_of=1):
    """Batches of pairs of similar length, each with as many pairs as `max_tokens` has room for.

    The length of a pair is that of its longer text, with its two special tokens; padded, neither the sources nor the
    targets of a batch are more than `max_tokens` tokens. Longer pairs than `max_length` are left out.

    Args:
        pairs: `(sources, targets)`, lists or arrays of strings.
        tokenizer: a tokenizer of this package or of KerasHub.
        max_tokens: positive integer.
        max_length: positive integer.
        seed: integer. The order is drawn anew for each pass over the data, of which there is no end; it depends on this
            seed, and on that of `keras.utils.set_random_seed`. `None`: one pass, of each length in the order of the
            data.
        multiple_of: positive integer, such as the number of replicas; batches have a multiple of it in pairs, but for
            the last ones of a single pass.

    Returns:
        `tf.data.Dataset` of dictionaries of `encoder_text` and `decoder_text`, string tensors `(pairs,)`.

    Raises:
        ValueError: if there are no pairs, or none of at most `max_length`; if there are not as many sources as targets;
            or if there is no room for a pair of `max_length`.

    Example:

    >>> from roformer_tf.text import RoFormerSentencePieceTokenizer, token_batches, train_sentencepiece
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
            "`pairs` must be as many sources as targets, one at least. "
            f"Received: {count} sources, {len(targets)} targets"
        )
    for name, value in {"max_length": max_length, "multiple_of": multiple_of}.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
    if max_tokens < max_length * multiple_of:
        raise ValueError(
            "`max_tokens` must have room for `multiple_of` pairs of `max_length` tokens. Received: "
            f"max_tokens={max_tokens}, max_length={max_length}, multiple_of={multiple_of}"
        )

    def with_length(places):
        texts = tf.gather(sources, places), tf.gather(targets, places)
        lengths = [tokenizer.tokenize(x).row_lengths() + 2 for x in texts]
        length = tf.cast(tf.maximum(*lengths), tf.int32)
        return {"encoder_text": texts[0], "decoder_text": texts[1]}, length

    def is_short(texts, length):
        return length <= max_length

    places = tf.data.Dataset.range(count)
    # without end and without a pair that passes, the dataset would never answer
    if not any(places.batch(AT_ONCE).map(with_length).unbatch().filter(is_short).take(1)):
        raise ValueError(
            f"No pair has at most `max_length` tokens, with its special ones. Received: max_length={max_length}"
        )
    if seed is not None:
        places = places.shuffle(count, seed=seed).repeat()
    rows = places.batch(AT_ONCE).map(with_length, num_parallel_calls=2).unbatch()
    limits = _limits(max_length)
    sizes = [max_tokens // limit // multiple_of * multiple_of for limit in limits]
    batches = (
        rows.filter(is_short)
        .bucket_by_sequence_length(
            lambda texts, length: length,
            bucket_boundaries=[limit + 1 for limit in limits[:-1]],
            bucket_batch_sizes=sizes,
        )
        .map(lambda texts, length: texts)
    )
    # Keras warns of data whose end it does not know
    number = tf.data.INFINITE_CARDINALITY
    if seed is None:
        number = batches.reduce(tf.constant(0, tf.int64), lambda number, _: number + 1)
    return batches.apply(tf.data.experimental.assert_cardinality(number))


def _limits(max_length):
    """The longest pair of each kind of batch, 8, 9, 10, … and then in steps of a tenth."""
    limits = [min(8, max_length)]
    while limits[-1] < max_length:
        limits.append(min(max(limits[-1] + 1, int(limits[-1] * 1.1)), max_length))
    return limits
