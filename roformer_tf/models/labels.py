"""Labels of classifiers, numbers of classes or their names, and the order of answers."""

import contextlib
import numbers

import keras
import numpy as np
import tensorflow as tf

UNKNOWN_LABEL = "A label is not among the `labels` of the classifier."


def label_array(y):
    """Returns labels as a NumPy array, or `None` if there are none or they have no such form.

    Raises:
        ValueError: If they are no list or array with an entry for each example, or one is NaN.
    """
    if y is None or hasattr(y, "dtype") and not hasattr(y, "__array__"):
        return None
    try:
        y = keras.ops.convert_to_numpy(y) if keras.ops.is_tensor(y) else np.asarray(y)
    except ValueError:  # lists of different lengths
        y = np.empty((), object)
    if not 1 <= y.ndim <= 2:
        raise ValueError(
            "Labels must be a list or array with one number for each example. Received: "
            f"labels of shape {y.shape} and dtype {y.dtype}"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError(
            "A label is NaN. Expected a number for every example; leave out the others"
        )
    return y


def check_class_labels(y, num_classes, count="num_classes"):
    """Raises `ValueError` if labels of any form are not in `[0, num_classes)`.

    `count` is what the classifier calls their number. Only `num_classes` comes with advice.
    """
    y = label_array(y)
    if y is None:
        return
    wanted = f"Labels must be integers from 0 to `{count}` - 1 = {num_classes - 1}."
    names, regression, more = "", "", ""
    if count == "num_classes":
        names = ". For names make the classifier with `labels`, a list of all of them."
        regression = ". For regression make the model with `num_classes=1`"
        more = ". Pass `num_classes={}`, or correct the labels"
    if y.dtype.kind not in "iufb":
        wrong = next((v for v in y.ravel().tolist() if not isinstance(v, int | float)), None)
        raise ValueError(f"{wanted} Received: labels such as {wrong!r}{names}")
    if y.dtype.kind == "f":
        fractions = y[y != np.floor(y)]
        if fractions.size and y.size in y.shape:
            raise ValueError(f"{wanted} Received: labels such as {fractions[0]}{regression}")
    if y.size and y.dtype.kind in "iu" and (y.min() < 0 or y.max() >= num_classes):
        raise ValueError(
            f"{wanted} Received: labels from {y.min()} to {y.max()}{more.format(y.max() + 1)}"
        )


def class_weights(class_weight, num_classes, labels=None):
    """Returns a weight for each class, 1 if it has none. Keras fails for classes without one.

    Args:
        class_weight: dict from numbers of classes, or their names, to weights.
        num_classes: int. Number of classes.
        labels: list of strings. Names of the classes, if they have any.

    Raises:
        ValueError: If it is no such dictionary, or has a class that does not exist.

    >>> class_weights({"good": 2}, 2, labels=["bad", "good"])
    {0: 1.0, 1: 2.0}
    """
    if not isinstance(class_weight, dict) or not all(
        isinstance(weight, numbers.Real) for weight in class_weight.values()
    ):
        raise ValueError(
            "`class_weight` must be a dictionary with a number for each class, such as "
            f"{{0: 1.0, 1: 2.5}}. Received: class_weight={class_weight!r}"
        )
    weights = dict.fromkeys(range(num_classes), 1.0)
    for key, weight in class_weight.items():
        number = labels.index(key) if key in (labels or ()) else key
        if number not in weights:
            raise ValueError(
                f"`class_weight` must have numbers from 0 to {num_classes - 1}"
                + (f", or names among {labels}" if labels else "")
                + f". Received: {key!r}"
            )
        weights[number] = float(weight)
    return weights


def output_kind(num_classes, activation):
    """Returns what the outputs of a classifier mean.

    `"softmax"`: logits or probabilities of classes that exclude each other; `"sigmoid"`: of classes
    that do not; `"binary"`: one probability; `"scores"`: regression, or any other activation.
    """
    if activation is keras.activations.sigmoid:
        return "binary" if num_classes == 1 else "sigmoid"
    if num_classes > 1 and activation in (keras.activations.softmax, keras.activations.linear):
        return "softmax"
    return "scores"


def softmax(scores):
    """Returns the softmax over the last axis of a NumPy array, in its own precision."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def ranked(answers, scores, most=None):
    """Returns a list of `(answer, score)`, the highest score first.

    Args:
        answers: Sequence of anything, such as labels.
        scores: float array with a number for each of them. Of equal ones the first comes first.
        most: int. How many to return, by default all.

    >>> ranked(["a", "b", "c"], np.array([0.2, 0.5, 0.3]), most=2)
    [('b', 0.5), ('c', 0.3)]
    """
    return [(answers[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")[:most]]


def check_label_names(labels, num_classes, activation):
    """Raises `ValueError` unless `labels` names the classes: different strings of one line each."""
    kind = output_kind(num_classes, activation)
    if kind == "scores":
        raise ValueError(
            "A regression model has no classes to name. Leave `labels` out. "
            f"Received: labels={labels!r}"
        )
    expected = 2 if kind == "binary" else num_classes
    check_names(labels)
    if len(labels) != expected:
        raise ValueError(
            f"`labels` must name {expected} classes, in their order. Received: {len(labels)} "
            f"labels, {labels!r}"
        )


def check_names(labels):
    """Raises `ValueError` unless `labels` are different strings of one line each, at least one."""
    is_list = isinstance(labels, list | tuple) and len(labels) > 0
    if not is_list or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}")
    broken = [label for label in labels if label.splitlines() != [label]]
    if broken or len(set(labels)) != len(labels):
        raise ValueError(
            "Every label must be one line of its own, and differ from the others. "
            f"Received: labels={labels!r}"
        )


def are_names(y):
    """Whether labels are strings, in any form but a column of pandas."""
    if y is None or isinstance(y, dict):
        return False
    if isinstance(y, tuple):  # which may hold tensors
        return all(isinstance(label, str | bytes) for label in y)
    if hasattr(y, "dtype") and not isinstance(y, np.ndarray):
        return "string" in str(y.dtype)
    return np.asarray(y).dtype.kind in "UOS"


def label_numbers(y, labels, one_hot):
    """Replaces names of classes `(batch,)` or `(batch, 1)` by their numbers `(batch,)`.

    If `one_hot`, by float32 0 and 1 for each class. A name that is none of the labels raises an
    error.
    """
    y = tf.convert_to_tensor(y.tolist() if isinstance(y, np.ndarray) else y)
    y = tf.reshape(y, [-1])
    same = tf.equal(y[:, tf.newaxis], tf.constant(labels)[tf.newaxis])
    known = tf.reduce_all(tf.reduce_any(same, axis=1))
    with tf.control_dependencies([tf.debugging.Assert(known, [UNKNOWN_LABEL, y])]):
        numbers = tf.argmax(same, axis=1, output_type=tf.int32)
    return tf.one_hot(numbers, len(labels)) if one_hot else numbers


def multi_hot_labels(y, labels):
    """Converts names of labels, one or several for each example, to 0 and 1 for each label.

    Args:
        y: list with a name, or a list of names, for each example. Anything else is returned as it
            is.
        labels: list of strings, all names in their order.

    Returns:
        float32 array `(examples, len(labels))`.

    Raises:
        ValueError: If a name is not among the labels.

    >>> multi_hot_labels([["b", "a"], [], "b"], ["a", "b"]).tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    """
    rows = [[row] if isinstance(row, str) else row for row in y]
    lists = all(isinstance(row, list | tuple | set) for row in rows)
    if not lists or not all(isinstance(name, str) for row in rows for name in row):
        return y
    numbers = {name: number for number, name in enumerate(labels)}
    array = np.zeros((len(rows), len(labels)), "float32")
    for target, row in zip(array, rows, strict=True):
        for name in row:
            if name not in numbers:
                raise ValueError(
                    f"Labels must be among {list(labels)}, or 0 and 1 for each of them. "
                    f"Received: {name!r}"
                )
            target[numbers[name]] = 1.0
    return array


@contextlib.contextmanager
def name_wrong_labels():
    """Explains the errors for a label of a dataset that is out of range or unknown."""
    try:
        yield
    except Exception as error:
        unknown = next((x for x in str(error).split("\n") if UNKNOWN_LABEL in x), None)
        if unknown is not None and not isinstance(error, ValueError):
            raise ValueError(unknown[unknown.index(UNKNOWN_LABEL) :]) from error
        is_ours = str(error).startswith("A label of the dataset")  # from `evaluate` inside `fit`
        if "outside the valid range" not in str(error) or is_ours:
            raise
        detail = next(x for x in str(error).split("\n") if "outside the valid range" in x)
        raise ValueError(
            "A label of the dataset is out of range: labels must be integers from 0 to the number "
            f"of classes - 1. Received: {detail}"
        ) from error
