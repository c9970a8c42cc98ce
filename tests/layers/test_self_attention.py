import numpy as np
import pytest

from roformer_tf.layers import AttentionMask, EncoderBlock, RotaryPosition, SelfAttention
from tests.layers.harness import built, compiled, numpy

X = np.random.default_rng(7).normal(size=(2, 6, 16)).astype("float32")
IDS = np.zeros((2, 6), "int32")


def attention(dtype="float32", **kwargs):
    layer = SelfAttention(2, 8, position_scheme=RotaryPosition(8), dtype=dtype, **kwargs)
    return built(layer, X.shape)


def rotated(layer, x=X, **kwargs):
    position = layer.position_scheme(np.zeros(x.shape[:2], "int32"), kwargs.pop("positions", None))
    return numpy(layer(x, position=position, **kwargs)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_rows_that_see_nothing_get_the_mean_of_all_values(dtype):
    layer = attention(dtype)
    bias = AttentionMask()(np.array([[1] * 6, [0] * 6]))
    output = rotated(layer, attention_bias=bias)
    assert np.isfinite(output).all()
    kernel, b = (numpy(w.value).astype("float64") for w in layer.qkv.weights)
    mean = (X[1] @ kernel[:, 32:] + b[32:]).mean(0)
    expected = mean @ numpy(layer.output_dense.kernel.value) + numpy(layer.output_dense.bias.value)
    share = {"float32": 2e-6, "mixed_float16": 4 * 2.0**-11, "mixed_bfloat16": 4 * 2.0**-8}[dtype]
    np.testing.assert_allclose(output[1] - expected, 0, atol=share * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("masking", ["bidirectional", "causal", "unilm"])
def test_hidden_keys_have_no_weight_at_all(dtype, masking):
    """Bit for bit, whatever is hidden, even where half precision would overflow."""
    layer = attention(dtype)
    padding = np.array([[1, 1, 1, 1, 0, 0]] * 2)
    segments = np.array([[0, 0, 1, 1, 0, 0]] * 2)
    bias = AttentionMask(masking)(padding, segments)
    changed = X.copy()
    changed[:, 4:] = 100 * changed[::-1, 4:]
    if masking == "bidirectional":
        real = slice(0, 4)
    else:
        changed[:, 3] += 1  # the last real token is the future of all others
        real = slice(0, 3)
    before, after = (
        rotated(layer, attention_bias=bias),
        rotated(layer, changed, attention_bias=bias),
    )
    assert np.isfinite(after).all()
    np.testing.assert_array_equal(before[:, real], after[:, real])


@pytest.mark.tensorflow("about TensorFlow's kernels")
@pytest.mark.parametrize("masking", ["bidirectional", "causal"])
def test_softmax_of_bfloat16_scores_is_that_in_float32(masking, monkeypatch):
    """Bit for bit, as 1 / sqrt(64) only changes the exponent and a mask adds 0 or hides."""
    import tensorflow as tf

    from roformer_tf.layers import self_attention
    from roformer_tf.layers.self_attention import has_narrow_softmax

    x = np.random.default_rng(0).normal(size=(2, 300, 128)).astype("float32")
    layer = built(SelfAttention(2, 64, dtype="mixed_bfloat16"), x.shape)
    bias = AttentionMask(masking)(np.arange(300) < np.array([[300], [200]]))

    def softmax_dtypes(training):
        graph = tf.function(lambda x: layer(x, bias, training=training))
        graph = graph.get_concrete_function(tf.TensorSpec(x.shape)).graph
        return {op.outputs[0].dtype for op in graph.get_operations() if op.type == "Softmax"}

    narrow = tf.bfloat16 if has_narrow_softmax("bfloat16") else tf.float32
    assert softmax_dtypes(training=False) == {narrow}
    assert softmax_dtypes(training=True) == {tf.float32}  # its gradient would sum in bfloat16
    found = numpy(layer(x, bias))
    monkeypatch.setattr(self_attention, "has_narrow_softmax", lambda dtype: False)
    np.testing.assert_array_equal(found, numpy(layer(x, bias)))


def test_large_scores_do_not_overflow_in_float16():
    """The product of two heads of size 8 with entries near 90 is 65000: float16 ends at 65504."""
    layer = attention("mixed_float16")
    x = (150 * X).astype("float32")
    scores = np.abs(x @ numpy(layer.qkv.kernel.value)[:, :32]).max()
    assert 8 * scores**2 > 65504
    assert np.isfinite(rotated(layer, x)).all()


def test_positions_matter_only_through_the_scheme():
    layer = attention()
    permuted = X[:, ::-1]
    blind = rotated(layer, permuted, positions=IDS)[:, ::-1]
    np.testing.assert_allclose(rotated(layer, positions=IDS), blind, atol=2e-6)
    assert np.abs(rotated(layer) - rotated(layer, permuted)[:, ::-1]).max() > 0.05


def test_dropout_is_for_training_only():
    layer = attention(dropout=0.5)
    exact = rotated(attention())
    np.testing.assert_array_equal(rotated(layer, training=False), exact)
    samples = np.stack([rotated(layer, training=True) for _ in range(100)])
    assert np.abs(samples[0] - exact).max() > 0.05
    # unbiased: the mean of 100 draws is almost always within four standard errors
    error = np.abs(samples.mean(0) - exact) / (samples.std(0) / 10 + 1e-7)
    assert np.quantile(error, 0.99) < 4


@pytest.mark.parametrize("length", [1, 2, 1500])
def test_any_length(length):
    layer = attention()
    x = np.random.default_rng(length).normal(size=(1, length, 16)).astype("float32")
    output = rotated(layer, x)
    assert output.shape == x.shape and np.isfinite(output).all()
    if length == 1:  # a single token sees itself alone: the output is its value
        kernel, b = (numpy(w.value) for w in layer.qkv.weights)
        value = x @ kernel[:, 32:] + b[32:]
        expected = value @ numpy(layer.output_dense.kernel.value)
        expected += numpy(layer.output_dense.bias.value)
        np.testing.assert_allclose(output, expected, atol=2e-6)


def test_block_of_float32_inputs_in_mixed_precision_when_compiled():
    block = built(EncoderBlock(16, 24, 2, dtype="mixed_bfloat16"), X.shape)
    expected = numpy(block(X))
    np.testing.assert_allclose(numpy(compiled(block)(X)), expected, atol=10 * 2.0**-8 * 3)


def test_dropout_of_a_block():
    """With rate 0.5 a unit is dropped or doubled, and norms keep mean 0 and variance 1."""
    block = EncoderBlock(16, 24, 2, dropout=0.5)
    block.build(X.shape)
    outputs = numpy(block(X, training=True))
    assert np.abs(outputs - numpy(block(X, training=False))).max() > 0.05
    np.testing.assert_allclose(outputs.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(outputs.var(-1), 1, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 8), (2, 0), (2.0, 8), (2, -8), ("2", 8)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="must be a positive integer. Received: "):
        SelfAttention(*sizes)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="`num_heads` must divide `hidden_dim`.*num_heads=3"):
        EncoderBlock(hidden_dim=16, intermediate_dim=8, num_heads=3)
    with pytest.raises(ValueError, match="`norm` must be 'layer_norm' or 'rms_norm'"):
        EncoderBlock(hidden_dim=16, intermediate_dim=8, num_heads=2, norm="batch_norm")
    with pytest.raises(ValueError, match="`head_dim` must be a positive even integer"):
        RotaryPosition(head_dim=5)
