"""Compares `PairPacker` with the original's loop, which drops one token at a time."""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.text import PairPacker, RoFormerTokenizer

START, END, PAD = 101, 102, 7


def packed_by_popping(segments, maxlen, truncate_from):
    """Does what `TokenizerBase.encode` and `truncate_sequences` of bert4keras 0.11.5 do."""
    rows = [[START, *segment, END] for segment in segments]
    index = {"right": -2, "left": 1}.get(truncate_from, truncate_from)
    if maxlen is not None:
        room = maxlen + len(segments) - 1
        while sum(map(len, rows)) > room:
            rows[int(np.argmax([len(row) for row in rows]))].pop(index)
    ids, segment_ids = rows[0], [0] * len(rows[0])
    for row in rows[1:]:
        ids, segment_ids = ids + row[1:], segment_ids + [1] * (len(row) - 1)
    return ids, segment_ids


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("truncate_from", ["right", "left", 1, 2, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 5, 9, 16, 40])
def test_equals_popping(count, truncate_from, length, rng):
    batch = [
        [rng.integers(0, 50, rng.integers(0, 14)).tolist() for _ in range(60)] for _ in range(count)
    ]
    if truncate_from not in ("right", "left"):  # there must be a token at that index
        batch = [[[1, 2, *row] for row in rows] for rows in batch]
        length = length and max(length, 9)
    packer = PairPacker(START, END, PAD, length, truncate_from)
    outputs = packer(tuple(tf.ragged.constant(rows, tf.int32, ragged_rank=1) for rows in batch))
    expected = [packed_by_popping(row, length, truncate_from) for row in zip(*batch, strict=True)]
    width = length or max(len(ids) for ids, _ in expected)
    for name, value in outputs.items():
        assert value.dtype == tf.int32, name  # not bool: see the class
        assert value.shape == (60, width), name
    for i, (ids, segments) in enumerate(expected):
        rest = width - len(ids)
        assert outputs["token_ids"][i].numpy().tolist() == ids + [PAD] * rest
        assert outputs["segment_ids"][i].numpy().tolist() == segments + [0] * rest
        assert outputs["padding_mask"][i].numpy().tolist() == [1] * len(ids) + [0] * rest


def test_the_mask_depends_on_lengths_not_ids():
    outputs = PairPacker(START, END, PAD, 6)(([[PAD, 5]],))
    assert outputs["token_ids"].numpy().tolist() == [[START, PAD, 5, END, PAD, PAD]]
    assert outputs["padding_mask"].numpy().tolist() == [[1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("length", [None, 6])
def test_one_unbatched_example(length):
    packer = PairPacker(START, END, PAD, length)
    for segment in ([1, 2], np.array([1, 2]), tf.constant([1, 2], tf.int64)):
        outputs = packer((segment, []))
        width = 5 if length is None else 6
        assert outputs["token_ids"].numpy().tolist() == [START, 1, 2, END, END, PAD][:width]
        assert outputs["padding_mask"].shape == (width,)


def test_all_forms_of_a_batch():
    packer = PairPacker(START, END, PAD, 5)
    expected = [[START, 1, 2, END, PAD], [START, 3, 4, END, PAD]]
    for segment in (
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]]),
        tf.constant([[1, 2], [3, 4]]),
        tf.ragged.constant([[1, 2], [3, 4]], tf.int64),
    ):
        assert packer((segment,))["token_ids"].numpy().tolist() == expected


def test_empty_rows_and_batches():
    packer = PairPacker(START, END, PAD)
    assert packer(([[]],))["token_ids"].numpy().tolist() == [[START, END]]
    empty = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int32), [0])
    assert packer((empty, empty))["token_ids"].shape == (0, 0)
    assert PairPacker(START, END, PAD, 8)((empty,))["padding_mask"].shape == (0, 8)


def test_in_tf_data_with_static_shapes():
    tokens = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "a", "b"]
    tokenizer = RoFormerTokenizer(tokens, word_level=False)
    packer = PairPacker(2, 3, 0, sequence_length=8)
    data = tf.data.Dataset.from_tensor_slices((["a b", "", "b b b b"], ["a", "b", "a a a"]))
    batched = data.batch(2).map(lambda x, y: packer((tokenizer(x), tokenizer(y))))
    assert batched.element_spec["token_ids"] == tf.TensorSpec([None, 8], tf.int32)
    ids = [row for batch in batched for row in batch["token_ids"].numpy().tolist()]
    assert ids == [[2, 5, 6, 3, 5, 3, 0, 0], [2, 3, 6, 3, 0, 0, 0, 0], [2, 6, 6, 3, 5, 5, 5, 3]]
    single = data.map(lambda x, y: packer((tokenizer(x), tokenizer(y))))
    assert single.element_spec["token_ids"] == tf.TensorSpec([8], tf.int32)
    assert [x["token_ids"].numpy().tolist() for x in single] == ids


@pytest.mark.parametrize(
    ("arguments", "segments", "message"),
    [
        ({"sequence_length": 1}, None, "at least 2"),
        ({"sequence_length": 8.0}, None, "must be None or an integer"),
        ({"truncate_from": "middle"}, None, "'right', 'left' or an integer"),
        ({"sequence_length": 2}, ([1], [2]), "at least 3"),
        ({}, [[1], [2]], "must be a tuple"),
        ({}, ([1], [2], [3]), "tuple of 3"),
        ({}, ([1], [[2]]), "both unbatched"),
        ({}, (tf.constant([[1.5]]),), "must be integers"),
        ({}, (tf.zeros([1, 1, 1], tf.int32),), "rank 1"),
    ],
)
def test_errors(arguments, segments, message):
    with pytest.raises(ValueError, match=message):
        PairPacker(START, END, PAD, **arguments)(segments)


def test_no_token_at_the_index_to_truncate_from():
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot truncate to 4 tokens"):
        PairPacker(START, END, PAD, 4, truncate_from=-6)(([1, 2, 3, 4],))
