"""One or two texts with their special tokens, truncated as bert4keras truncates them."""

import tensorflow as tf

from roformer_tf.checks import check_one_of
from roformer_tf.text.pair_packer import join_segments, truncation_index
from roformer_tf.text.strings import to_string_tensor


def checked_texts(first, second):
    """Converts the texts of `encode` to a tuple of string tensors.

    Raises:
        ValueError: If one is a string and the other a batch.
    """
    texts = (first,) if second is None else (first, second)
    texts = tuple(map(to_string_tensor, texts))
    ranks = {text.shape.rank for text in texts}
    if not ranks <= {0, 1} or len(ranks) > 1:
        raise ValueError(
            "`first` and `second` must both be strings, or both batches of strings. Received: "
            f"shapes {[tuple(text.shape) for text in texts]}"
        )
    return texts


def packing_options(tokenizer, max_length, maxlen, truncate_from, pattern):
    """Returns the keyword arguments of `encode_texts` for the arguments of `encode`.

    Raises:
        ValueError: If one of them is wrong.
    """
    if maxlen is not None and max_length is not None:
        raise ValueError(
            "`maxlen` is bert4keras' name of `max_length`: pass one of them. "
            f"Received: max_length={max_length!r}, maxlen={maxlen!r}"
        )
    name = "max_length" if maxlen is None else "maxlen"
    limit = max_length if maxlen is None else maxlen
    check_one_of("pattern", pattern, ("S*E*E", "S*ES*E"))
    lowest = 0 if tokenizer.end_token is None else 1
    if limit is not None and (not isinstance(limit, int) or limit < lowest):
        raise ValueError(
            f"`{name}` must be None or an integer of at least {lowest}. Received: {limit!r}"
        )
    index = truncation_index(
        truncate_from, tokenizer.start_token is not None, tokenizer.end_token is not None
    )
    return {"limit": limit, "index": index, "repeat_start": pattern == "S*ES*E"}


def encode_texts(tokenizer, texts, limit, index, repeat_start, return_offsets):
    """Encodes a tuple of one or two string tensors.

    Returns:
        `(token_ids, segment_ids)`, and with `return_offsets` also `(starts, ends)`.
    """
    with tf.device("CPU"):
        flat = [tf.reshape(text, [-1]) for text in texts]
        start, end = tokenizer.start_token_id, tokenizer.end_token_id
        options = limit, index, repeat_start
        if return_offsets:
            rows = [tokenizer.graph.tokenize_with_offsets(text) for text in flat]
            ids, *offsets = zip(*rows, strict=True)
        else:
            ids, offsets = [tokenizer.graph(text) for text in flat], []
        token_ids, segment_ids, lengths = join_segments(ids, start, end, *options)
        # special tokens cover no character
        nothing = (None if start is None else 0, None if end is None else 0)
        joined = [join_segments(part, *nothing, *options)[0] for part in offsets]
        outputs = token_ids, segment_ids, *joined
        if texts[0].shape.rank == 0:
            return tuple(output[0] for output in outputs)
        return tuple(tf.RaggedTensor.from_tensor(output, lengths) for output in outputs)
