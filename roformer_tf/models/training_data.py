"""Datasets of batches for `fit` and `evaluate` of a task."""

import keras
from keras_hub.src.utils.tensor_utils import convert_to_numpy

from roformer_tf.models.batches import (
    batched,
    is_columns,
    is_dataset,
    is_stream,
    of_unknown_length,
    to_columns,
)
from roformer_tf.models.labels import are_names
from roformer_tf.models.length_batches import count_tokens, grouped, grouped_windows


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


def check_not_texts(task, y):
    """Raises `ValueError` if labels are texts and the preprocessor makes the labels."""
    if not task.needs_labels and are_names(y):
        raise ValueError(
            f"A {type(task).__name__} takes no texts as labels. Pass pairs of texts as a tuple: "
            "`fit((first, second))`, or a dataset of `((first, second),)`."
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


def batches_of_columns(task, columns, group_by_length, batch_size, max_tokens, shuffle=False):
    """Makes a dataset of batches, of texts of similar length if asked."""
    if not group_by_length and max_tokens is None:
        return batched(columns, batch_size, shuffle)
    if not task.are_texts(columns[0]):
        raise ValueError(
            "`group_by_length` and `max_tokens_per_batch` need texts, and a model with a "
            "preprocessor. Received: model inputs"
        )
    lengths = count_tokens(task.preprocessor, columns[0])
    return grouped(columns, lengths, batch_size, max_tokens, shuffle)


def grouped_batches(task, dataset, batch_size, max_tokens):
    """Makes batches of similar length from a dataset of batches of texts."""
    if not task.are_texts(dataset):
        raise ValueError(
            "`group_by_length` needs batches of texts, and a model with a preprocessor. "
            f"Received: a dataset of {dataset.element_spec}"
        )
    return grouped_windows(dataset, task.preprocessor, batch_size, max_tokens)


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


def in_one_go(task, dataset, steps, epochs=1):
    """Returns a dataset for all epochs, and the steps of each."""
    # Keras makes two iterators for each epoch of a dataset whose length it knows, and does not use
    # one. Under a strategy and on other backends it takes a batch before it starts again.
    looks_ahead = keras.backend.backend() != "tensorflow" or task._distribute_strategy is not None
    if steps is not None or task.steps_per_execution > 1 or looks_ahead:
        return dataset, steps
    return of_unknown_length(dataset.repeat(epochs)), int(dataset.cardinality())
