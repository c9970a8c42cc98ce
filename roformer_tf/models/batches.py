"""What `fit`, `evaluate` and `predict` are given -> TensorFlow data, with errors that name the example."""

import types

import keras
import numpy as np
import tensorflow as tf
from keras import ops, tree

from roformer_tf.text.strings import to_string_tensor


def string_tensors(x):
    r"""Texts, or a tuple of two columns of texts, as string tensors; a dataset as it is.

    Raises:
        TypeError: if an example is no string; the message says which.
        ValueError: if there is no batch, but a single text or pair.

    >>> string_tensors(["天", b"\xe5\x9c\xb0"]).shape
    TensorShape([2])
    """
    if isinstance(x, str | bytes) or (
        isinstance(x, tuple) and any(isinstance(part, str | bytes) for part in x)
    ):
        raise ValueError(
            "Expected a list of texts, or for pairs a tuple of two lists: `[text]`, `([first], [second])`. "
            f"Received: x={x!r}"
        )
    if isinstance(x, tuple):
        return tuple(string_tensors(part) for part in x)
    if isinstance(x, dict | types.GeneratorType):
        raise TypeError(
            "A model with a preprocessor takes strings: a list or array of them, a tuple of two lists for pairs, or a "
            f"`tf.data.Dataset`. Received: x of type {type(x).__name__}. For token ids make the model with "
            "`preprocessor=None`; wrap a generator with `tf.data.Dataset.from_generator`."
        )
    if tf.is_tensor(x) or not (isinstance(x, list) or hasattr(x, "__array__")):
        return x
    texts = x if isinstance(x, list) else np.asarray(x).tolist()
    for i, text in enumerate(texts):
        if not isinstance(text, str | bytes) and not tf.is_tensor(text):
            raise TypeError(
                "Every example must be a string; pairs are a tuple of two lists, `(firsts, seconds)`. "
                f"Received: {text!r} of type {type(text).__name__} as example {i}."
            )
    return to_string_tensor(texts)


def prompt_columns(parts):
    """Sources and what their answers begin with, as lists; and whether they are a single text each.

    Raises:
        ValueError: if there are not as many of the one as of the other.

    >>> prompt_columns(("天地", "玄"))
    ((['天地'], ['玄']), True)
    """
    if all(map(is_text, parts)):
        return tuple([part] for part in parts), True
    sizes = [1 if is_text(part) else len(part) for part in parts if not is_dataset(part)]
    if any(map(is_text, parts)) or len(set(sizes)) > 1:
        raise ValueError(
            "There must be as many beginnings as sources: two lists of one length, or two strings. "
            f"Received: {' and '.join(map(str, sizes))} texts"
        )
    return tuple(parts), False


def is_text(x):
    """Whether this is a single string."""
    return isinstance(x, str | bytes) or (ops.is_tensor(x) and len(x.shape) == 0)


def is_dataset(x):
    """Whether this is a `tf.data.Dataset`."""
    return isinstance(x, tf.data.Dataset)


def check_batch_size(batch_size):
    """Refuses a number of rows that leaves rows out."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(
            f"`batch_size` must be a positive integer. Received: batch_size={batch_size!r}"
        )


def is_columns(x):
    """Whether `x` is arrays or lists (or tuples and dictionaries of them) with a row for each example."""
    if isinstance(x, tuple | dict):
        parts = x.values() if isinstance(x, dict) else x
        return len(x) > 0 and all(is_columns(part) for part in parts)
    return isinstance(x, list) or hasattr(x, "__array__") or isinstance(x, tf.RaggedTensor)


def to_columns(x, y=None, sample_weight=None):
    """`(x, y, sample_weight)` as tensors of the same number of rows.

    Raises:
        ValueError: if the lengths differ.

    >>> to_columns((["a", "b"], ["c"]), [0, 1])
    Traceback (most recent call last):
    ValueError: Inputs, labels and sample weights must be of one length. Received: 2, 1, 2 examples
    """
    columns = tuple(_to_tensors(part) for part in (x, y, sample_weight))
    flat = [column for column in tree.flatten(columns) if column is not None]
    if any(column.shape.rank == 0 for column in flat):
        raise ValueError(
            "Inputs, labels and sample weights must have a row for each example; pass `batch_size` by its name. "
            "Received: a single number"
        )
    sizes = [column.shape[0] for column in flat]
    if len(set(sizes)) > 1:
        raise ValueError(
            "Inputs, labels and sample weights must be of one length. "
            f"Received: {', '.join(map(str, sizes))} examples"
        )
    return columns


def split_columns(columns, fraction):
    """The first rows, and the last `fraction` of the rows, as `validation_split` of Keras takes them."""
    count = _count(columns)
    first = int(count * (1.0 - fraction))
    if not 0 < first < count:
        raise ValueError(
            "`validation_split` must leave examples on both sides: expected a number between 0 and 1, and enough "
            f"examples. Received: validation_split={fraction!r} for {count} examples"
        )
    return _take(columns, tf.range(first)), _take(columns, tf.range(first, count))


def batched(columns, batch_size=None, shuffle=False):
    """Dataset of batches, of 32 rows by default; shuffled, their order is drawn anew in every epoch."""
    count = _count(columns)
    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count)
    return rows.batch(batch_size or 32).map(
        lambda rows: keras.utils.pack_x_y_sample_weight(*_take(columns, rows))
    )


def _to_tensors(data):
    if isinstance(data, tuple):
        return tuple(_to_tensors(part) for part in data)
    if isinstance(data, dict):
        return {name: _to_tensors(part) for name, part in data.items()}
    if data is None or tf.is_tensor(data):
        return data
    if hasattr(data, "__array__"):
        data = ops.convert_to_numpy(data)
    return tf.convert_to_tensor(data)


def _count(columns):
    return next(column.shape[0] for column in tree.flatten(columns) if column is not None)


def _take(columns, rows):
    return tree.map_structure(lambda c: None if c is None else tf.gather(c, rows), columns)
