"""Datasets of batches for `fit` and `evaluate` of a task."""

import keras
import numpy as np
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import convert_to_numpy

from roformer_tf.models.batches import (
    batched,
    is_columns,
    is_dataset,
    is_stream,
    longest_input,
    packed,
    plain,
    take_rows,
    to_columns,
)
from roformer_tf.models.labels import are_names
from roformer_tf.models.length_batches import (
    check_batch_limits,
    count_tokens,
    ladder,
    length_batches,
)


def check_grouping(group_by_length, max_tokens):
    """Raises `ValueError` if batches are bounded by tokens and not grouped by length."""
    if max_tokens is not None and not group_by_length:
        raise ValueError(
            "`max_tokens_per_batch` is for `group_by_length=True`. Received: "
            f"max_tokens_per_batch={max_tokens}, group_by_length={group_by_length}"
        )


def check_has_labels(task, x, y, argument="y"):
    """Raises `ValueError` if examples have no labels and the task needs them.

    Args:
        task: a `RoFormerTask`.
        x: Examples in columns, or a dataset, which has the labels too.
        y: Labels of columns.
        argument: str. The argument of `fit` that should have held the labels of columns.
    """
    wanted = "a list with a label for each example"
    if argument != "y":
        wanted = "`(examples, labels)`"
    if is_dataset(x):
        _, y, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        argument, wanted = "x", "a dataset of batches `(examples, labels)`"
    if y is None and task.needs_labels:
        raise ValueError(f"Labels are missing: pass `{argument}`, {wanted}.")


def check_targets_of_texts(task, y, sample_weight):
    """Raises `ValueError` if labels or weights are none that the preprocessor takes."""
    if not task.needs_labels and are_names(y):
        raise ValueError(
            f"A {type(task).__name__} takes no texts as labels. Pass pairs of texts as a tuple: "
            "`fit((first, second))`, or a dataset of `((first, second),)`."
        )
    shape = getattr(sample_weight, "shape", ())
    is_known = getattr(shape, "rank", 0) is not None
    if is_known and any(size not in (None, 1) for size in shape[1:]):
        raise ValueError(
            "`sample_weight` must have one number for each example, shape `(examples,)`. "
            f"Received: shape {tuple(shape)}"
        )


def tensors_of_batch(task, x, y, sample_weight):
    """Returns `(x, y, sample_weight)` of one batch, preprocessed, as tensors of the backend.

    Each may be `None` or a structure; KerasHub's `train_on_batch` takes no dictionaries of labels.
    """

    def to_tensor(x):
        if x is None or keras.ops.is_tensor(x):
            return x
        return keras.ops.convert_to_tensor(convert_to_numpy(x))

    check_has_labels(task, x, y)
    batch = keras.utils.unpack_x_y_sample_weight(task.preprocess_samples(x, y, sample_weight))
    return keras.tree.map_structure(to_tensor, batch)


@plain
def batches_of_columns(task, columns, group_by_length, batch_size, max_tokens, shuffle=False):
    """Makes a dataset of batches.

    Args:
        task: a `RoFormerTask`.
        columns: `(x, y, sample_weight)`, see `to_columns`.
        group_by_length: Whether a batch has texts of similar length.
        batch_size, max_tokens: See `length_batches`. With `max_tokens` texts are grouped, too.
        shuffle: Whether to draw other batches, in another order, in every epoch. Batches of texts
            of similar length then hold lengths between two widths of `ladder_width`.
    """
    if not group_by_length and max_tokens is None:
        return batched(columns, batch_size, shuffle)
    if not task.are_texts(columns[0]):
        raise ValueError(
            "`group_by_length` and `max_tokens_per_batch` need texts, and a model with a "
            "preprocessor. Received: model inputs"
        )
    lengths = count_tokens(task.preprocessor, columns[0])
    if not shuffle:
        batches = length_batches(lengths, batch_size, max_tokens)
        indices = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(batches))
    else:
        examples = tf.data.Dataset.from_tensor_slices((lengths, np.arange(len(lengths))))
        examples = examples.shuffle(len(lengths))
        indices = bucketed(examples, int(np.max(lengths)), batch_size, max_tokens)
        count = indices.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)
        indices = indices.shuffle(count).apply(tf.data.experimental.assert_cardinality(count))
    return indices.map(lambda rows: packed(*take_rows(columns, rows)))


@plain
def grouped_batches(task, dataset, batch_size, max_tokens):
    """Groups the examples of a dataset of batches of texts by length, as far as they are read.

    Examples wait in a bucket until there are enough for a batch, so memory holds at most a batch
    for each width of `ladder_width`.
    """
    if not task.are_texts(dataset):
        raise ValueError(
            "`group_by_length` needs batches of texts, and a model with a preprocessor. "
            f"Received: a dataset of {dataset.element_spec}"
        )

    def with_lengths(*batch):
        return task.preprocessor.count_tokens(batch[0]), batch

    examples = dataset.map(with_lengths).unbatch()
    return bucketed(examples, longest_input(task.preprocessor), batch_size, max_tokens)


def bucketed(dataset, longest, batch_size, max_tokens):
    """Batches the single examples of a dataset in buckets by length; what is left comes last.

    Args:
        dataset: `tf.data.Dataset` of the number of tokens and the rest of each example.
        longest: int. Maximum number of tokens of an example.
        batch_size, max_tokens: See `length_batches`.
    """
    batch_size = check_batch_limits(batch_size, max_tokens)
    widths = ladder(longest)
    sizes = [batch_size] * len(widths)
    if max_tokens is not None:
        most = [max(1, max_tokens // width) for width in widths]
        sizes = most if batch_size is None else [min(m, batch_size) for m in most]
    batches = dataset.bucket_by_sequence_length(
        lambda count, _: tf.cast(count, tf.int32),
        bucket_boundaries=[width + 1 for width in widths[:-1]],
        bucket_batch_sizes=sizes,
    )
    return batches.map(lambda _, batch: batch)


def validation_batches(task, validation_data, batch_size, steps):
    """Returns `validation_data` of `fit` with columns as a dataset, and the steps of an epoch."""
    if is_stream(validation_data):
        return task.check_data(validation_data)[0], steps
    if not isinstance(validation_data, tuple | list):
        return validation_data, steps
    x, y, weights = keras.utils.unpack_x_y_sample_weight(tuple(validation_data))
    x, y = task.check_data(x, y)
    check_has_labels(task, x, y, "validation_data")
    if not is_columns(x):
        return validation_data, steps
    # KerasHub takes no `batch_size` for them when the data to train on is a dataset.
    return in_one_go(task, batched(to_columns(x, y, weights), batch_size), steps)


@plain
def in_one_go(task, dataset, steps, epochs=1):
    """Returns a dataset that lasts for all epochs, and the number of steps of an epoch."""
    # Keras makes two iterators for each epoch of a dataset whose length it knows, and does not use
    # the second. So the length is hidden. Not under a strategy and on other backends: there Keras
    # takes a batch before it starts an epoch, and that batch would be missing.
    looks_ahead = keras.backend.backend() != "tensorflow" or task._distribute_strategy is not None
    if steps is not None or task.steps_per_execution > 1 or looks_ahead:
        return dataset, steps
    without_length = dataset.repeat(epochs).filter(lambda *_: True)
    return without_length, int(dataset.cardinality())
