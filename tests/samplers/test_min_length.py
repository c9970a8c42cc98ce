"""No stop token before the minimum length, whatever the sampler and however long the prompts."""

import keras_hub
import numpy as np
import pytest
from keras import ops

from roformer_tf.samplers import with_min_length
from tests.layers.harness import numpy

LENGTHS, LENGTH, VOCABULARY = (1, 3, 4), 6, 5
MASK = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
LOGITS = np.random.default_rng(4).normal(size=(6, VOCABULARY)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits(dtype):
    """Logits of stop tokens are minus infinity up to 2 new tokens, for both beams."""

    def next(prompt, cache, index):
        return ops.cast(LOGITS, dtype), "hidden", cache + 1

    wrapped = with_min_length(next, 2, (1, 4), ops.convert_to_tensor(MASK))
    prompt = np.zeros((6, LENGTH), "int32")
    for index in range(1, LENGTH):
        logits, hidden_states, cache = wrapped(prompt, 6, ops.convert_to_tensor(index))
        made = np.maximum(index - np.array(LENGTHS).repeat(2), 0)
        expected = numpy(ops.cast(LOGITS, dtype)).copy()
        for row in range(6):
            if made[row] < 2:
                expected[row, [1, 4]] = -np.inf
        assert logits.dtype == ops.cast(LOGITS, dtype).dtype
        assert numpy(logits).tolist() == expected.tolist()
        assert (hidden_states, cache) == ("hidden", 7)


def test_nothing_to_forbid():
    def next(prompt, cache, index):
        raise NotImplementedError

    assert with_min_length(next, 0, [3], MASK) is next
    assert with_min_length(next, 3, None, MASK) is next
    with pytest.raises(
        ValueError, match="`min_length` must not be negative. Received: min_length=-1"
    ):
        with_min_length(next, -1, [3])


@pytest.mark.parametrize(
    "sampler",
    [
        keras_hub.samplers.GreedySampler(),
        keras_hub.samplers.RandomSampler(seed=1),
        keras_hub.samplers.TopKSampler(k=5, seed=1),
        keras_hub.samplers.TopPSampler(p=0.9, seed=1),
        keras_hub.samplers.BeamSampler(2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_samplers_of_keras_hub(sampler):
    """The stop token is always the likeliest, and comes as soon as allowed."""

    def next(prompt, cache, index):
        return ops.one_hot(0 * prompt[:, 0] + 3, VOCABULARY) * 20, None, cache

    prompt = np.where(MASK, 4, 0)
    for mask in (MASK, MASK[:1]):
        given = {"index": 1, "mask": mask, "stop_token_ids": [3]}
        rows = prompt[: len(mask)]
        tokens = numpy(sampler(with_min_length(next, 2, [3], mask), rows, **given))
        for row, length in zip(tokens, LENGTHS):
            assert 3 not in row[: length + 2]
            assert row[length + 2 : length + 3].tolist() == [3][: LENGTH - length - 2]
    tokens = numpy(sampler(with_min_length(next, 2, [3]), 0 * prompt, stop_token_ids=[3]))
    assert (tokens == 3).argmax(axis=1).tolist() == [2, 2, 2]
