"""Batches of examples of similar length, which need little padding."""

import numpy as np

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.batches import count_rows, take_rows

DEFAULT_BATCH_SIZE = 32
COUNTED_TOGETHER = 1024  # texts
COST_OF_A_BATCH = 128  # tokens
# A batch reads all weights for each token that it generates, however few its texts.
COST_OF_GENERATION = 2**20


def ladder_width(length):
    """Returns the smallest of 16, 24, 32, 48, 64, 96, 128, 192, … that is at least `length`.

    >>> [ladder_width(length) for length in (1, 17, 32, 33, 500)]
    [16, 24, 32, 48, 512]
    """
    width = 16
    while width < length:
        width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
    return width


def ladder(longest):
    """Lists the widths of `ladder_width` for sequences of up to `longest` tokens.

    >>> ladder(40)
    [16, 24, 32, 48]
    """
    widths = [ladder_width(1)]
    while widths[-1] < longest:
        widths.append(ladder_width(widths[-1] + 1))
    return widths


def length_batches(
    lengths, batch_size=None, max_tokens=None, keep_order=False, cost=COST_OF_A_BATCH
):
    """Divides examples into batches of similar length, the longest first.

    Args:
        lengths: int array `(examples,)`. Number of tokens of each.
        batch_size: int, 32 by default, or with `max_tokens` as many as fit.
        max_tokens: int. Maximum number of tokens in a batch, padding included. An example that is
            longer is a batch of its own.
        keep_order: Whether batches take the examples in the order given, whatever their lengths.
        cost: int. What a batch costs beside its tokens, in tokens. A higher cost makes fewer batches.

    Returns:
        List of int arrays: the indices of the examples of each batch.

    >>> [batch.tolist() for batch in length_batches([30, 900, 40, 880], batch_size=3)]
    [[1, 3], [2, 0]]
    """
    most = check_batch_limits(batch_size, max_tokens) or max(len(lengths), 1)
    lengths = np.asarray(lengths)
    order = np.arange(len(lengths)) if keep_order else np.argsort(-lengths, kind="stable")
    lengths = lengths[order]
    starts = []
    if keep_order:
        start = 0
        while start < len(lengths):
            starts.append(start)
            start += _count_that_fits(lengths[start : start + most], max_tokens)
    else:
        starts = _cheapest_starts(lengths, most, max_tokens, cost)
    return np.split(order, starts[1:]) if len(order) else []


def _count_that_fits(lengths, max_tokens):
    if max_tokens is None:
        return len(lengths)
    widths = np.maximum.accumulate(lengths)
    return max(1, int((widths * np.arange(1, len(widths) + 1) <= max_tokens).sum()))


def _cheapest_starts(lengths, most, max_tokens, cost):
    """Returns where batches of examples, the longest first, begin to cost least in all.

    A batch costs its tokens, padding included, and `cost`.
    """
    count = len(lengths)
    costs = np.zeros(count + 1)  # the least cost of the examples from i on
    sizes = np.ones(count, int)
    for i in range(count - 1, -1, -1):
        limit = most if max_tokens is None else min(most, max(1, max_tokens // int(lengths[i])))
        ends = np.arange(i + 1, min(i + limit, count) + 1)
        found = (ends - i) * float(lengths[i]) + cost + costs[ends]
        best = int(np.argmin(found))
        costs[i], sizes[i] = found[best], best + 1
    starts = [0]
    while starts[-1] + sizes[starts[-1]] < count:
        starts.append(starts[-1] + int(sizes[starts[-1]]))
    return starts


def check_batch_limits(batch_size, max_tokens):
    """Returns the batch size, or `None` if `max_tokens` alone decides. Checks both."""
    check_positive_integer("batch_size", batch_size, optional=True)
    if max_tokens is not None:
        check_positive_integer("max_tokens_per_batch", max_tokens)
        return batch_size
    return batch_size or DEFAULT_BATCH_SIZE


def count_tokens(preprocessor, x):
    """Returns the number of tokens of each example: an int array `(examples,)`."""
    count = count_rows(x)
    starts = range(0, count, COUNTED_TOGETHER)
    parts = (take_rows(x, np.arange(i, min(i + COUNTED_TOGETHER, count))) for i in starts)
    return np.concatenate([np.asarray(preprocessor.count_tokens(part)) for part in parts])


def batches_of_texts(
    preprocessor, x, batch_size=None, max_tokens=None, keep_order=False, few_shapes=False
):
    """Divides texts into batches of similar length, also fewer than `batch_size`.

    Args:
        preprocessor: It counts tokens.
        x: string tensor `(examples,)`, or a tuple of two.
        batch_size, max_tokens, keep_order: See `length_batches`.
        few_shapes: Whether XLA compiles a program for each shape of a batch. Lengths are then
            rounded up by `ladder_width`, and texts that fit into one batch are not divided.

    Returns:
        List of int arrays: the indices of the texts of each batch.
    """
    count = count_rows(x)
    most = check_batch_limits(batch_size, max_tokens)
    if count <= 1 or (few_shapes and max_tokens is None and count <= most):
        return [np.arange(count)]
    lengths = count_tokens(preprocessor, x)
    if few_shapes:
        lengths = np.array([ladder_width(length) for length in lengths])
    return length_batches(lengths, batch_size, max_tokens, keep_order)
