"""Converts the data of `fit`, `evaluate` and `predict` to tensors; errors name the example."""

import itertools
import types

import keras
import numpy as np
import tensorflow as tf
from keras import ops, tree
from keras.src.trainers.data_adapters import get_data_adapter

from roformer_tf.checks import check_positive_integer
from roformer_tf.text.strings import check_one_length, to_string_tensor

# There is nothing for AutoGraph to convert, and looking takes up to seconds.
plain = tf.autograph.experimental.do_not_convert


def check_not_empty(x):
    """Raises `ValueError` if there is no example."""
    first = x[0] if isinstance(x, tuple) and x else x
    if isinstance(first, dict):
        first = next(iter(first.values()), [])
    size = None
    if isinstance(first, list | tuple) or isinstance(first, np.ndarray) and first.ndim:
        size = len(first)
    elif tf.is_tensor(first) and first.shape.rank:
        size = first.shape[0]
    elif hasattr(x, "cardinality"):
        size = int(x.cardinality())
    if size == 0:
        raise ValueError(
            "The dataset is empty: expected at least one example. Received: 0 examples"
        )


def check_epochs(epochs, argument, x, steps):
    """Raises `ValueError` if `epochs` is no positive integer, or `x` has batches for the first alone.

    Args:
        epochs: The argument of `fit`.
        argument: str. The argument for the number of batches of `x` in an epoch.
        x: Data of `fit`.
        steps: The value of `argument`.
    """
    check_positive_integer("epochs", epochs)
    if isinstance(x, types.GeneratorType) and epochs > 1 and steps is None:
        raise ValueError(
            "A generator can be read once, so the first epoch would take all of its batches. Let "
            f"it go on (`while True:`), and say how many batches make an epoch: `{argument}=100`. "
            f"Received: a generator, epochs={epochs}, {argument}=None"
        )


def check_is_batched(dataset):
    """Raises `ValueError` if a dataset gives single examples and not batches."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    named = x.items() if isinstance(x, dict) else [("", part) for part in tree.flatten(x)]
    for name, spec in named:
        is_text, is_ids = spec.dtype == tf.string, name.endswith("token_ids")
        if spec.shape.rank == 0 and is_text or spec.shape.rank == 1 and is_ids:
            raise ValueError(
                "The dataset gives single examples, not batches of them. Did you forget "
                f"`dataset.batch(32)`? Received: a dataset of {dataset.element_spec}"
            )


def string_tensors(x):
    r"""Converts texts, or a tuple of two columns, to string tensors. Leaves a dataset alone.

    Raises:
        TypeError: If an example is not a string. The message names it.
        ValueError: If `x` is a single text or pair and not a batch.

    >>> string_tensors(["天", b"\xe5\x9c\xb0"]).shape
    TensorShape([2])
    """
    if isinstance(x, str | bytes) or (
        isinstance(x, tuple) and any(isinstance(part, str | bytes) for part in x)
    ):
        raise ValueError(
            "Expected a list of texts, or for pairs a tuple of two lists: `[text]`, "
            f"`([first], [second])`. Received: x={x!r}"
        )
    if isinstance(x, tuple):
        columns = tuple(string_tensors(part) for part in x)
        check_one_length(columns)
        return columns
    if is_dataset(x):
        return x
    if not tf.is_tensor(x) and not isinstance(x, tf.RaggedTensor):
        if not isinstance(x, list) and not hasattr(x, "__array__") or isinstance(x, type):
            raise TypeError(
                "Expected strings: a list or array of them, or a tuple of two lists for pairs. "
                f"Received: {list(x) if isinstance(x, dict) else x!r} of type {type(x).__name__}"
            )
        x = x if isinstance(x, list) else np.asarray(x).tolist()
        if not isinstance(x, list):
            raise TypeError(f"Expected a list or array of strings. Received: {x!r}")
        for i, text in enumerate(x):
            if not isinstance(text, str | bytes) and not tf.is_tensor(text):
                raise TypeError(
                    "Every example must be a string; pairs are a tuple of two lists, `(firsts, "
                    f"seconds)`. Received: {text!r} of type {type(text).__name__} as example {i}."
                )
    texts = to_string_tensor(x)
    if isinstance(texts, tf.RaggedTensor) or texts.shape.rank not in (None, 1):
        if texts.shape.rank != 2 or texts.shape[1] != 1:
            raise ValueError(
                "Expected a flat list of texts, or for pairs a tuple of two lists. Received: "
                f"nested lists of shape {tuple(texts.shape)}"
            )
        return texts[:, 0]
    return texts


def prompt_columns(parts):
    """Returns sources and the starts of their targets as batches, and whether each was one text.

    Raises:
        ValueError: If there are more of one than of the other.
        TypeError: If an example is not a string.

    >>> columns, is_single = prompt_columns((["天地"], ["玄"]))
    >>> [column.shape for column in columns], is_single
    ([TensorShape([1]), TensorShape([1])], False)
    """
    if all(map(is_text, parts)):
        return tuple(text_batch(part)[0] for part in parts), True
    parts = tuple(part if is_text(part) else string_tensors(part) for part in parts)
    sizes = [1 if is_text(part) else len(part) for part in parts if not is_dataset(part)]
    if any(map(is_text, parts)) or len(set(sizes)) > 1:
        raise ValueError(
            "Expected as many starts of targets as sources: two lists of one length, or two "
            f"strings. Received: {' and '.join(map(str, sizes))} texts"
        )
    return parts, False


def text_batch(texts):
    """Returns one text or several as a string tensor `(texts,)`, and whether it is a single text.

    Raises:
        ValueError: If there is no text.
        TypeError: If an example is not a string, or `texts` is a dataset.

    >>> text_batch(["天", "地"])[0].shape, text_batch("天")[0].shape
    (TensorShape([2]), TensorShape([1]))
    """
    if is_text(texts):
        return tf.reshape(to_string_tensor(texts), [1]), True
    if is_dataset(texts):
        raise TypeError("Expected a list or array of strings. Received: a dataset")
    texts = string_tensors(list(texts) if isinstance(texts, tuple) else texts)
    check_not_empty(texts)
    return texts, False


def is_text(x):
    """Whether `x` is a single string, also as an array or tensor without axes."""
    return isinstance(x, str | bytes) or getattr(x, "shape", None) == ()


def is_dataset(x):
    """Whether `x` is a `tf.data.Dataset`."""
    return isinstance(x, tf.data.Dataset)


def is_stream(x):
    """Whether `x` is a generator or `keras.utils.PyDataset`, which give one batch after another."""
    return isinstance(x, types.GeneratorType | keras.utils.PyDataset)


def stream_to_dataset(stream, convert, encode_labels, shuffle=False):
    """Makes a dataset of a generator or `keras.utils.PyDataset`.

    Its tensors have no static shapes, so that batches may be of any width. A `PyDataset` keeps its
    workers, and a generator goes on from epoch to epoch.

    Args:
        stream: It gives batches `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
        convert: Function that checks `x` and `y`, and returns both converted.
        encode_labels: Method of the task.
        shuffle: Whether to shuffle the order of the batches of a `PyDataset` in each epoch.

    Raises:
        ValueError: If there is no batch, or a batch is not a tuple.
    """

    def to_tensors(batch):
        batch = tuple(batch) if isinstance(batch, list) else batch
        if not isinstance(batch, tuple) or len(batch) not in (1, 2, 3):
            raise ValueError(
                "A generator or PyDataset must give batches `(texts,)`, `(texts, labels)` or "
                f"`(texts, labels, sample_weights)`. Received: {str(batch)[:100]}"
            )
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        x, y = convert(x, y)
        return to_columns(x, encode_labels(y), sample_weight)

    if isinstance(stream, types.GeneratorType):
        first = list(itertools.islice(stream, 1))
        count = tf.data.UNKNOWN_CARDINALITY
        rest = itertools.chain(first, stream)
    else:
        count = stream.num_batches
        first = [stream[0]] if count != 0 else []
        count = tf.data.INFINITE_CARDINALITY if count is None else count
    if not first:
        raise ValueError("The dataset is empty: expected at least one batch. Received: 0 batches")

    def batches():
        if isinstance(stream, types.GeneratorType):
            yield from map(given, map(to_tensors, rest))
            return
        adapter = get_data_adapter(stream, shuffle=shuffle)  # with the workers of the PyDataset
        adapter.on_epoch_begin()
        try:
            yield from map(given, map(to_tensors, adapter.get_numpy_iterator()))
        finally:
            adapter.on_epoch_end()

    example = to_tensors(first[0])

    def given(columns):  # a signature cannot have `None`
        return tuple(column for column in columns if column is not None)

    def with_all(*columns):
        columns = iter(columns)
        return packed(*(None if column is None else next(columns) for column in example))

    signature = tree.map_structure(
        lambda tensor: tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype), given(example)
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    dataset = dataset.map(plain(with_all))
    if count == tf.data.UNKNOWN_CARDINALITY:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def squeeze_labels(y):
    """Returns labels `(batch, 1)` as `(batch,)`, and other ones as they are.

    Keras takes both, but a model that has seen the one fails on the other.

    >>> squeeze_labels([[0], [1]]), squeeze_labels([0, 1])
    ([0, 1], [0, 1])
    """
    if isinstance(y, list):
        is_column = all(isinstance(label, list | tuple) and len(label) == 1 for label in y)
        return [label[0] for label in y] if is_column else y
    shape = getattr(y, "shape", None)
    if shape is None or isinstance(shape, tf.TensorShape) and shape.rank is None:
        return y
    return y[:, 0] if tuple(shape[1:]) == (1,) else y


def column_labels(y):
    """Returns labels `(batch,)` as `(batch, 1)`, the shape of single scores, and other ones as they are.

    Keras' losses and most of its metrics take both; `F1Score` takes columns only.

    >>> column_labels([0, 1]).tolist()
    [[0], [1]]
    """
    if y is None:
        return None
    y = y if hasattr(y, "shape") else np.asarray(y)
    is_tensor = isinstance(y.shape, tf.TensorShape)
    return y[:, None] if (y.shape.rank if is_tensor else len(y.shape)) == 1 else y


def listed(column):
    """Returns a tuple of numbers or strings as a list. A tuple of columns stays one.

    >>> listed((0.5, 2.0)), listed(([0.5], [2.0]))
    ([0.5, 2.0], ([0.5], [2.0]))
    """
    return list(column) if isinstance(column, tuple) and all(map(np.isscalar, column)) else column


def plain_columns(data):
    """Returns columns of pandas, of polars, and of strings or objects in NumPy as lists.

    A matrix stays one: its rows of strings may be padded.

    >>> plain_columns((np.array(["a", "b"]), np.array([1, 2])))
    (['a', 'b'], array([1, 2]))
    """
    if isinstance(data, dict):
        return {name: plain_columns(column) for name, column in data.items()}
    if isinstance(data, tuple):
        return tuple(map(plain_columns, data))
    if hasattr(data, "to_list") and not isinstance(data, tf.RaggedTensor):
        return data.to_list()
    is_strings = isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype.kind in "OUT"
    return data.tolist() if is_strings else data


def is_columns(x):
    """Whether `x` is an array or list of examples, or a tuple or dictionary of them."""
    if isinstance(x, tuple | dict):
        parts = x.values() if isinstance(x, dict) else x
        return len(x) > 0 and all(is_columns(part) for part in parts)
    return isinstance(x, list) or hasattr(x, "__array__") or isinstance(x, tf.RaggedTensor)


def to_columns(x, y=None, sample_weight=None):
    """Converts `(x, y, sample_weight)` to tensors with one entry for each example.

    Raises:
        ValueError: If the lengths differ.

    >>> to_columns((["a", "b"], ["c"]), [0, 1])
    Traceback (most recent call last):
    ValueError: Inputs, labels and sample weights must be of one length. Received: 2, 1, 2 examples
    """

    def to_tensors(data):
        if isinstance(data, tuple):
            return tuple(map(to_tensors, data))
        if isinstance(data, dict):
            return {name: to_tensors(part) for name, part in data.items()}
        if data is None or tf.is_tensor(data):
            return data
        try:
            return tf.convert_to_tensor(
                ops.convert_to_numpy(data) if hasattr(data, "__array__") else data
            )
        except (ValueError, TypeError) as error:
            raise ValueError(
                "Labels and sample weights must be numbers or arrays of them, one for each "
                f"example. Received: {str(data)[:100]}"
            ) from error

    columns = to_tensors((x, y, listed(sample_weight)))
    for weights in tree.flatten(columns[2]):
        if weights is not None and not (weights.dtype.is_floating or weights.dtype.is_integer):
            raise ValueError(
                f"Sample weights must be numbers. Received: dtype={weights.dtype.name}"
            )
        if weights is not None and weights.dtype.is_floating:
            if not np.isfinite(weights.numpy()).all():
                raise ValueError("A sample weight is NaN or infinite. Expected finite numbers.")
    flat = [column for column in tree.flatten(columns) if column is not None]
    if any(column.shape.rank == 0 for column in flat):
        raise ValueError(
            "Inputs, labels and sample weights must have an entry for each example; pass "
            "`batch_size` by its name. Received: a single number"
        )
    sizes = [column.shape[0] for column in flat]
    if len(set(sizes)) > 1:
        raise ValueError(
            "Inputs, labels and sample weights must be of one length. "
            f"Received: {', '.join(map(str, sizes))} examples"
        )
    return columns


def split_columns(columns, fraction):
    """Splits columns into the first examples and the last `fraction` of them."""
    count = count_rows(columns)
    first = int(count * (1.0 - fraction))
    if not 0 < first < count:
        raise ValueError(
            "`validation_split` must leave examples on both sides: expected a number between 0 and "
            f"1, and enough examples. Received: validation_split={fraction!r} for {count} examples"
        )
    return take_rows(columns, tf.range(first)), take_rows(columns, tf.range(first, count))


@plain
def batched(columns, batch_size=None, shuffle=False):
    """Makes a dataset of batches, of 32 examples by default; `shuffle` shuffles every epoch."""
    check_positive_integer("batch_size", batch_size, optional=True)
    count = count_rows(columns)
    indices = tf.data.Dataset.range(count)
    if shuffle:
        indices = indices.shuffle(count)
    return indices.batch(batch_size or 32).map(lambda batch: packed(*take_rows(columns, batch)))


def packed(x, y=None, sample_weight=None):
    """Packs columns as Keras does, and keeps weights without labels, which a preprocessor makes."""
    if y is None and sample_weight is not None:
        return x, None, sample_weight
    return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def count_rows(columns):
    """Returns the number of examples of columns, of which some may be `None`."""
    return next(column.shape[0] for column in tree.flatten(columns) if column is not None)


def take_rows(columns, indices):
    """Returns the examples at `indices` of columns, which may be `None`."""
    if isinstance(indices, np.ndarray) and np.array_equal(indices, np.arange(count_rows(columns))):
        return columns  # all of them: a gather takes 0.3 ms
    return tree.map_structure(lambda c: None if c is None else tf.gather(c, indices), columns)


def longest_input(preprocessor):
    """Returns the maximum number of tokens that a preprocessor makes of a text."""
    if hasattr(preprocessor, "encoder_sequence_length"):  # of a translation model
        return max(preprocessor.encoder_sequence_length, preprocessor.decoder_sequence_length)
    return preprocessor.sequence_length
