import keras
import numpy as np
import pytest

from roformer_tf.layers import AttentionMask
from roformer_tf.layers.attention_mask import bias_of_masks, causal_bias
from tests.layers.harness import numpy
from tests.oracles import numpy_roformer as oracle


@pytest.mark.parametrize("kind", ["int32", "bool", "float32"])
@pytest.mark.parametrize("masking", ["bidirectional", "causal", "unilm"])
def test_equals_loops(rng, masking, kind):
    padding = rng.integers(0, 2, size=(5, 9))
    segments = np.sort(rng.integers(0, 2, size=(5, 9)), axis=1)
    bias = numpy(AttentionMask(masking)(padding.astype(kind), segments))
    application = {"bidirectional": "encoder", "causal": "lm"}.get(masking, masking)
    visible = oracle.attention_mask(padding == 1, application, segments)
    assert bias.dtype == np.float32
    assert bias.shape == (5, 1, 1 if masking == "bidirectional" else 9, 9)
    np.testing.assert_array_equal(np.broadcast_to(bias[:, 0], visible.shape) == 0, visible)
    assert set(np.unique(bias)) <= {0, -1e9}


def test_unilm_of_several_segments():
    """The original's rule holds for any segment ids: only later tokens see a 1."""
    segments = np.array([[0, 0, 1, 0, 1]])
    bias = numpy(AttentionMask("unilm")(np.ones((1, 5)), segments))[0, 0]
    expected = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1] * 5]
    np.testing.assert_array_equal(bias == 0, np.array(expected, bool))


def test_is_float32_whatever_floatx_is():
    """A bias of float64 cannot be added to scores of float32."""
    keras.config.set_floatx("float64")
    x, mask = np.ones((1, 3, 4), "float32"), np.array([[1, 0, 1]])
    parts = bias_of_masks(x, mask), bias_of_masks(x, causal=True)
    for bias in (AttentionMask()(mask), causal_bias(x, 1, 4), *(part["bias"] for part in parts)):
        assert keras.backend.standardize_dtype(bias.dtype) == "float32"


def test_errors():
    with pytest.raises(ValueError, match="`masking` must be one of .*Received: masking='future'"):
        AttentionMask("future")
    with pytest.raises(ValueError, match="`masking='unilm'` needs `segment_ids`"):
        AttentionMask("unilm")(np.ones((1, 3)))
