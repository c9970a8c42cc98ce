"""Compares ragged results; the message shows the first texts that differ."""

import numpy as np

from roformer_tf.text.strings import to_string_tensor

BATCH = 2000


def in_batches(function, texts):
    """Returns (values, lengths) of each RaggedTensor that `function` makes of the texts."""
    parts = []
    for i in range(0, len(texts), BATCH):
        outputs = function(to_string_tensor(texts[i : i + BATCH]))
        parts.append(outputs if isinstance(outputs, tuple) else (outputs,))
    return [
        (
            np.concatenate([x.values.numpy() for x in column]),
            np.concatenate([x.row_lengths().numpy() for x in column]),
        )
        for column in zip(*parts, strict=True)
    ]


def assert_same_rows(texts, ours, theirs, what):
    """Asserts that two (values, lengths) are equal, or shows the first texts that differ."""
    if all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)):
        return
    ours, theirs = split_rows(*ours), split_rows(*theirs)
    wrong = [
        (text, a.tolist(), b.tolist())
        for text, a, b in zip(texts, ours, theirs, strict=True)
        if not np.array_equal(a, b)
    ]
    shown = "\n".join(f"{t[:200]!a}\n  ours   {a[:60]}\n  theirs {b[:60]}" for t, a, b in wrong[:5])
    raise AssertionError(f"{what}: {len(wrong)} of {len(texts)} texts differ:\n{shown}")


def split_rows(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])
