"""The default loss of language models is the mean over the tokens that count, whatever the padding."""

import keras
import numpy as np
import pytest

import roformer_tf


@pytest.mark.parametrize("causal", [False, True])
def test_loss_is_the_mean_over_counted_tokens(causal, rng):
    backbone = roformer_tf.RoFormerBackbone(
        vocabulary_size=30,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        masking="causal" if causal else "bidirectional",
    )
    model = (roformer_tf.RoFormerCausalLM if causal else roformer_tf.RoFormerMaskedLM)(backbone)
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
