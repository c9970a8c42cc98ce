"""Linear attention: chunks, steps, masks, extreme inputs and cost."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import (
    AttentionMask,
    CosineFeatureMap,
    EluFeatureMap,
    EncoderBlock,
    FavorFeatureMap,
    FeatureMap,
    LinearAttention,
    PositionScheme,
    RotaryPosition,
    SinusoidalRelativePosition,
    SoftmaxFeatureMap,
)
from roformer_tf.layers.linear_attention import causal_sums
from roformer_tf.layers.position_schemes import POSITION_SCHEMES
from tests.layers.harness import assert_close, built, compiled, gradients, numpy, weights_by_path
from tests.layers.linear_cases import (
    HEADS,
    LINEAR_CASES,
    TYPICAL_CASES,
    WIDTH,
    linear,
    linear_oracle,
)
from tests.layers.test_every_layer import test_values_and_gradients as check_values_and_gradients

NAMES = ("elu", "softmax", "favor", "cosine")
LENGTH = 45
X = np.random.default_rng(5).normal(size=(2, LENGTH, WIDTH)).astype("float32")


def attention(name, causal=True, rotary=True, **options):
    return built(linear(name, rotary, causal=causal, **options), X.shape)


def positions(layer, start, stop, batch=2):
    """The context of the positions start … stop - 1."""
    ids = np.arange(start, stop)[None].repeat(batch, 0)
    return layer.position_scheme(ids, ids)


def run(layer, x=X, bias=None, start=0):
    stop = start + x.shape[1]
    return numpy(layer(x, attention_bias=bias, position=positions(layer, start, stop)))


@pytest.mark.parametrize("case", [c for c in LINEAR_CASES if c not in TYPICAL_CASES], ids=str)
def test_equations(case, rng):
    """Equations 18 and 19 for every map, both directions, with RoPE and without."""
    check_values_and_gradients(case, rng)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_nothing(name, rotary, rng):
    """Chunks of one token, chunks that do not divide the length, many chunks, one chunk."""
    cotangent = rng.normal(size=X.shape)
    bias = np.where(rng.random((2, 1, 1, LENGTH)) < 0.8, 0, -1e9).astype("float32")
    results = []
    for size in (LENGTH, 1, 7, 16, 1000):
        layer = attention(name, rotary=rotary, chunk_size=size)

        def function(x, layer=layer):
            return layer(x, attention_bias=bias, position=positions(layer, 0, LENGTH))

        outputs, found = gradients(function, [X], cotangent, layer)
        results.append([*outputs, *found])
    for other in results[1:]:
        assert_close(other, results[0], 2e-5)  # float32, of sums that are taken in another order


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_padding_added_changes_nothing(name, causal):
    layer = attention(name, causal)
    expected = run(layer)
    padding = 50 * X[:, ::-1][:, :9]
    longer = np.concatenate([X, padding], 1)
    bias = AttentionMask()(np.array([[1] * LENGTH + [0] * 9] * 2))
    np.testing.assert_allclose(run(layer, longer, bias)[:, :LENGTH], expected, atol=2e-5)
    # and before the text, where a causal query sees hidden keys only; positions are relative
    longer = np.concatenate([padding, X], 1)
    bias = AttentionMask()(np.array([[0] * 9 + [1] * LENGTH] * 2))
    output = run(layer, longer, bias)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output[:, 9:], expected, atol=5e-5)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_future_changes_nothing(name, rotary):
    """Not even by rounding: every sum is relative to the largest weight so far."""
    layer = attention(name, rotary=rotary, chunk_size=16)
    for known in (1, 5, 16, 20, 44):
        changed = X.copy()
        changed[:, known:] = 50 * changed[:, known:][:, ::-1]
        np.testing.assert_array_equal(run(layer, changed)[:, :known], run(layer)[:, :known])


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_step_by_step_equals_whole(name, rotary):
    layer = attention(name, rotary=rotary, chunk_size=8)
    expected = run(layer)
    state = layer.build_cache(2)
    shapes = [tuple(part.shape) for part in state]
    outputs = []
    for start, stop in [(0, 36), *((i, i + 1) for i in range(36, LENGTH))]:  # a prompt first
        output, state = layer.call_with_cache(
            X[:, start:stop], state, start, None, positions(layer, start, stop)
        )
        outputs.append(numpy(output))
        assert [tuple(part.shape) for part in state] == shapes
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=2e-5)
    # and from the first token on, where the earlier ones of one row are padding
    bias = np.zeros((2, 1, 1, LENGTH), "float32")
    bias[1, ..., :3] = -1e9
    expected = run(layer, bias=bias)
    state = layer.build_cache(2)
    for i in range(6):
        here = slice(i, i + 1)
        output, state = layer.call_with_cache(
            X[:, here], state, i, bias[..., here], positions(layer, i, i + 1)
        )
        if i >= 3:
            np.testing.assert_allclose(numpy(output), expected[:, here], atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_large_queries_and_keys(name, causal):
    """Features that float32 cannot hold."""
    layer = attention(name, causal, rotary=False, chunk_size=4)
    assert np.isfinite(numpy(layer(30 * X))).all()
    if name == "softmax":  # exp(300 + ...)
        layer.qkv.bias.assign(
            numpy(layer.qkv.bias.value) + 300 * (np.arange(3 * WIDTH) // WIDTH == 1)
        )
    x = 3 * X[:, :12]
    expected = linear_oracle(name, causal, False)(weights_by_path(layer), x)
    # the rounding of exponents of some hundreds
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_see_nothing_are_finite(name, causal):
    layer = attention(name, causal)
    bias = AttentionMask()(np.array([[1] * LENGTH, [0] * LENGTH]))

    def function(x):
        return layer(x, attention_bias=bias, position=positions(layer, 0, LENGTH))

    outputs, found = gradients(function, [X], np.ones_like(X), layer)
    assert all(np.isfinite(array).all() for array in (*outputs, *found))


@pytest.mark.tensorflow("the other backends cannot infer a size of empty tensors")
@pytest.mark.parametrize("name", NAMES)
def test_no_texts_and_no_tokens(name):
    layer, whole = attention(name), attention(name, causal=False)
    for x in (X[:0], X[:, :0]):
        assert tuple(layer(x).shape) == tuple(whole(x).shape) == x.shape
    _, state = layer.call_with_cache(X, layer.build_cache(2), 0)
    _, same = layer.call_with_cache(X[:, :0], state, LENGTH)
    assert_close(keras.tree.map_structure(numpy, same), keras.tree.map_structure(numpy, state), 0)


def test_only_distance_matters():
    for name in NAMES:
        layer = attention(name)
        # the angles on either side are within 1e-6, and a numerator is a sum of many products
        np.testing.assert_allclose(run(layer, start=1000), run(layer), atol=5e-5)
        assert np.abs(run(layer) - numpy(layer(X, position=positions(layer, 0, 1)))).max() > 1e-2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_sums_are_in_float32(dtype, causal):
    """The features of 3,000 tokens add up to more than float16 holds and bfloat16 can count."""
    layer = attention("elu", causal, rotary=False, dtype=dtype)
    x = np.tile(5 * np.abs(X[:1, :30]), (1, 100, 1))
    output = numpy(layer(x)).astype("float64")
    expected = linear_oracle("elu", False, False)(weights_by_path(layer), x[:, :30])
    rounding = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}[dtype]
    # the same 30 tokens a hundred times have the average of one time
    bound = 8 * rounding * np.abs(expected).max()
    np.testing.assert_allclose(output[0, -30:], expected[0], atol=bound * (4 if causal else 1))


def test_dropout_is_for_training_only():
    layer = attention("elu", causal=False, dropout=0.5)
    exact = run(attention("elu", causal=False))
    np.testing.assert_array_equal(run(layer), exact)
    draws = [
        numpy(layer(X, position=positions(layer, 0, LENGTH), training=True)) for _ in range(100)
    ]
    samples = np.stack(draws)
    assert np.abs(samples[0] - exact).max() > 0.05
    error = np.abs(samples.mean(0) - exact) / (samples.std(0) / 10 + 1e-7)
    assert np.quantile(error, 0.99) < 4  # standard errors


# 9 chunks are one product, 35 are summed in groups
@pytest.mark.parametrize("chunk_size", [2, 8])
@pytest.mark.parametrize("same", [False, True])
def test_causal_sums_are_the_masked_product(same, chunk_size, rng):
    """Compares with the plain computation, with weights that rise and fall by e^100."""
    length, sizes = 70, ((2, 3, 70, 6), (2, 3, 70, 5))
    draw = [np.abs(rng.normal(size=sizes[i > 3])).astype("float32") for i in range(5)]
    log_weight = (40 * rng.normal(size=(2, 3, length))).astype("float32")
    visible = np.tril(np.ones((length, length), bool))

    def split(tensors):
        query, key, rotated_query, rotated_key, value = tensors
        features = query, key
        return features, features if same else (rotated_query, rotated_key), value

    def plain(*tensors):
        ((query, key), (rotated_query, rotated_key), value) = split(tensors)
        difference = np.where(visible, log_weight[:, :, None], -np.inf)
        weight = np.exp(difference - difference.max(-1, keepdims=True))
        weight = ops.convert_to_tensor(weight.astype("float32"))
        scores = ops.matmul(rotated_query, ops.swapaxes(rotated_key, -1, -2)) * weight
        sums = ops.sum(ops.matmul(query, ops.swapaxes(key, -1, -2)) * weight, -1, keepdims=True)
        return ops.matmul(scores, value), sums

    def chunked(*tensors):
        return causal_sums(*split(tensors), ops.convert_to_tensor(log_weight), None, chunk_size)[:2]

    cotangents = rng.normal(size=sizes[1]), rng.normal(size=(2, 3, length, 1))
    expected, wanted = gradients(plain, draw, cotangents)
    outputs, found = gradients(chunked, draw, cotangents)
    for one, other in zip([*outputs, *found], [*expected, *wanted], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


@pytest.mark.tensorflow("reads a graph of TensorFlow")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_grows_with_the_square_of_the_length(name, causal):
    """Of the whole training graph, forward and backward, at 512 and at 2048 tokens."""
    import tensorflow as tf

    layer = attention(name, causal, chunk_size=32)

    def largest(length):
        @tf.function
        def train(x):
            with tf.GradientTape() as tape:
                position = positions(layer, 0, length, batch=1)
                loss = tf.reduce_sum(layer(x, position=position, training=True) ** 2)
            return tape.gradient(loss, layer.trainable_variables)

        graph = train.get_concrete_function(tf.TensorSpec((1, length, WIDTH))).graph
        functions = [graph, *(f.graph for f in graph._functions.values())]
        tensors = [t for g in functions for op in g.get_operations() for t in op.outputs]
        return max(t.shape.num_elements() or 0 for t in tensors)

    short, long = largest(512), largest(2048)
    # 256 chunk states and the matrices of groups of them: a little more than linear
    assert long <= 4.2 * short and long < 2048 * 2048 / 4


@pytest.mark.tensorflow("other backends know the length")
@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_unknown_length(name):
    import tensorflow as tf

    layer = attention(name, chunk_size=4)

    @tf.function(input_signature=[tf.TensorSpec((None, None, WIDTH))])
    def gradient(x):
        position = layer.position_scheme(x[:, :, 0])
        with tf.GradientTape() as tape:
            output = layer(x, position=position)
        return output, tape.gradient(output, layer.qkv.kernel.value)

    for length in (3, LENGTH):
        output, found = gradient(X[:, :length])
        assert np.isfinite(found).all()
        np.testing.assert_allclose(output, run(layer, X[:, :length]), atol=2e-5)


@pytest.mark.tensorflow("`gradients` compiles on JAX as it is")
def test_compiled_training(rng):
    """Gradients through XLA, where loops must have an end that is known."""
    import tensorflow as tf

    layer = attention("favor", chunk_size=4)
    cotangent = rng.normal(size=X.shape).astype("float32")

    def gradient(x):
        with tf.GradientTape() as tape:
            output = layer(x, position=positions(layer, 0, LENGTH), training=True)
            loss = tf.reduce_sum(output * cotangent)
        return tape.gradient(loss, [w.value for w in layer.trainable_variables])

    for one, other in zip(compiled(gradient)(X), gradient(X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"position_scheme": SinusoidalRelativePosition(8)},
            "computes no scores.*SinusoidalRelativePosition",
        ),
        (
            {"feature_map": SoftmaxFeatureMap(normalize_keys=True), "causal": True},
            "must not depend on later keys.*SoftmaxFeatureMap",
        ),
        ({"chunk_size": 0}, "`chunk_size` must be a positive integer. Received: "),
        ({"num_heads": 0}, "`num_heads` must be a positive integer. Received: "),
    ],
)
def test_errors_of_the_layer(options, message):
    with pytest.raises(ValueError, match=message):
        LinearAttention(**{"num_heads": 2, "head_dim": 8, **options})


def test_other_errors():
    with pytest.raises(ValueError, match="`num_features` must be an even positive integer"):
        FavorFeatureMap(7)
    with pytest.raises(ValueError, match="`redraw_every` must be a positive integer or None"):
        FavorFeatureMap(redraw_every=0)
    layer = attention("elu", causal=False)
    with pytest.raises(ValueError, match="Create the layer with `causal=True`"):
        layer.call_with_cache(X[:, :1], layer.build_cache(2))
    padding = np.ones((2, LENGTH), "int32")
    causal = AttentionMask("causal")(padding)
    documents = AttentionMask()(padding, document_ids=padding)
    for bias in (causal, documents):
        with pytest.raises(ValueError, match=r"need softmax attention.*shape \(2, 1, 45, 45\)"):
            run(layer, bias=bias)


def test_yarns_factor_is_of_the_softmax():
    """At position 0 nothing is rotated, so the scaling changes nothing."""
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8}
    outputs = []
    for scaling in (None, yarn):
        scheme = RotaryPosition(8, rope_scaling=scaling)
        layer = LinearAttention(2, 8, position_scheme=scheme)
        layer.build(X.shape)
        for weight, value in zip(
            layer.weights, attention("elu", causal=False).weights, strict=True
        ):
            weight.assign(value)
        position = scheme(np.zeros(X.shape[:2], "int32"), np.zeros(X.shape[:2], "int32"))
        outputs.append(numpy(layer(X, position=position)))
    np.testing.assert_array_equal(*outputs)


def test_schemes_say_whether_they_need_scores():
    for name, scheme in POSITION_SCHEMES.items():
        changes = scheme.apply_to_scores is not PositionScheme.apply_to_scores
        assert scheme.needs_scores or not changes, name


def test_sizes_of_feature_maps():
    for feature_map, features, rotated in (
        (EluFeatureMap(), 64, 64),
        (SoftmaxFeatureMap(), 64, 64),
        (CosineFeatureMap(), 65, 64),
        (CosineFeatureMap(rotate_inputs=True), 65, 64),
        (FavorFeatureMap(), 266, 266),  # 64 log(64)
        (FavorFeatureMap(100), 100, 100),
        (FavorFeatureMap(100, rotate_inputs=True), 100, 64),
    ):
        assert feature_map.feature_dim(64) == features
        assert feature_map.rotated_dim(64) == rotated


class Power(FeatureMap):
    def __init__(self, power, offset=0.1, **kwargs):
        super().__init__(**kwargs)
        self.power, self._offset = power, offset


def test_a_map_of_your_own_keeps_its_arguments():
    config = Power(3, 0.2).get_config()
    assert (config["power"], config["offset"]) == (3, 0.2)
    config = Power(3, dtype=keras.DTypePolicy("float64")).get_config()
    assert Power.from_config(config).compute_dtype == "float64" and config["power"] == 3


def test_block_with_a_feature_map(rng):
    block = EncoderBlock(WIDTH, 24, HEADS, feature_map=FavorFeatureMap(seed=3), causal=True)
    output = numpy(block(X))
    again = EncoderBlock.from_config(block.get_config())
    assert again.get_config() == block.get_config()
    again.build(X.shape)
    again.set_weights(block.get_weights())
    np.testing.assert_array_equal(numpy(again(X)), output)
    changed = X.copy()
    changed[:, 20:] = rng.normal(size=changed[:, 20:].shape)
    np.testing.assert_array_equal(numpy(block(changed))[:, :20], output[:, :20])
    with pytest.raises(ValueError, match="computes no scores.*feature_map=FavorFeatureMap"):
        block(X, return_attention_scores=True)
