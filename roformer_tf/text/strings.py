"""Conversion of strings of any form to TensorFlow string tensors."""

import re

import numpy as np
import tensorflow as tf

# Like a surrogate, it has no case and no decomposition, and is in no vocabulary
_LIKE_A_SURROGATE = "\U0010ffff"


def encode_utf8(text):
    r"""Encodes a string as UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes U+10FFFF.

    The tokenizer treats both as unknown letters, so the ids equal the original's.

    >>> encode_utf8("追"), encode_utf8("\ud83d")
    (b'\xe8\xbf\xbd', b'\xf4\x8f\xbf\xbf')
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(
            "The tokenizer takes strings: str, bytes, lists or tensors of them. Received an "
            f"element of type {type(text).__name__}: {text!r}"
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", _LIKE_A_SURROGATE, text).encode()


def to_string_tensor(inputs):
    """Converts str, bytes, (nested) lists, arrays or tensors to a string Tensor or RaggedTensor."""
    if isinstance(inputs, tf.Tensor | tf.RaggedTensor):
        if inputs.dtype != tf.string:
            raise TypeError(
                "The tokenizer takes strings. Received a tensor of "
                f"dtype={inputs.dtype.name}, shape={inputs.shape}"
            )
        return inputs
    if isinstance(inputs, np.ndarray):
        inputs = inputs.tolist()
    elif hasattr(inputs, "to_list"):  # a pandas column
        inputs = inputs.to_list()
    if not isinstance(inputs, list | tuple):
        return tf.constant(encode_utf8(inputs))
    if any(isinstance(x, list | tuple) for x in inputs):
        return tf.ragged.stack([to_string_tensor(x) for x in inputs])
    # From a list of bytes: in a NumPy array each string would take the space of the longest one
    return tf.constant([encode_utf8(x) for x in inputs], tf.string, shape=[len(inputs)])


def checked_texts(first, second):
    """Converts the texts of `encode` to a tuple of string tensors.

    Raises:
        ValueError: If one is a string and the other a batch.
    """
    texts = (first,) if second is None else (first, second)
    texts = tuple(map(to_string_tensor, texts))
    if {text.shape.rank for text in texts} not in ({0}, {1}):
        raise ValueError(
            "`first` and `second` must both be strings, or both batches of strings. Received: "
            f"shapes {[tuple(text.shape) for text in texts]}"
        )
    return texts


def check_one_length(columns):
    """Raises `ValueError` if columns of a batch, tensors, are known to have different lengths."""
    sizes = [column.shape[0] for column in columns if tf.is_tensor(column) and column.shape.rank]
    if len(set(sizes) - {None}) > 1:
        raise ValueError(
            "Expected pairs of texts: two columns of one length. Received: "
            f"{' and '.join(map(str, sizes))} texts"
        )


def map_strings(tokenize, texts):
    """Applies `tokenize`, which maps `(batch,)` to `(batch, tokens)`, to strings of any rank."""
    with tf.device("CPU"):
        if isinstance(texts, tf.RaggedTensor):
            texts = texts.with_row_splits_dtype(tf.int64)
            return tf.nest.map_structure(texts.with_flat_values, tokenize(texts.flat_values))
        outputs = tokenize(tf.reshape(texts, [-1]))
        rank = texts.shape.rank
        if rank == 0:
            return tf.nest.map_structure(lambda x: x[0], outputs)
        if rank > 1:
            outer = tf.RaggedTensor.from_tensor(texts, ragged_rank=rank - 1)
            return tf.nest.map_structure(outer.with_flat_values, outputs)
        return outputs
