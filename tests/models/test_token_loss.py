"""The default loss of language models is the mean over the tokens that count, whatever the padding."""

import keras
import numpy as np
import pytest

from tests.models.builders import task


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm"])
def test_loss_is_the_mean_over_counted_tokens(name, rng):
    model = task(name)
    ids = rng.integers(1, 30, (4, 7)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    labels = rng.integers(0, 30, ids.shape)
    weights = (np.arange(7) < np.array([[7], [1], [3], [0]])).astype("float32")
    logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probability, labels[..., None], -1)[..., 0]
    expected = -(chosen * weights).sum() / weights.sum()
    loss = model.evaluate(inputs, labels, sample_weight=weights, verbose=0)[0]
    np.testing.assert_allclose(loss, expected, rtol=2e-6)  # float32 sums of some 30 terms
