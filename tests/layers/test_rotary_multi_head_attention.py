"""Attention with rotary positions as a drop-in for Keras' own."""

import keras
import numpy as np
import pytest

from roformer_tf.layers import (
    CosineFeatureMap,
    EluFeatureMap,
    FavorFeatureMap,
    LinearAttention,
    RotaryMultiHeadAttention,
    RotaryPosition,
    SoftmaxFeatureMap,
)
from tests.layers.harness import check_keras_mask, numpy, one_program, randomize

WIDTH, LENGTH = 16, 6


def attention(**kwargs):
    layer = RotaryMultiHeadAttention(**{"num_heads": 4, "key_dim": 4, **kwargs})
    layer.build((None, None, WIDTH), (None, None, WIDTH))
    randomize(layer)
    return layer


def rotated(x, positions):
    """Equation 16: each pair (i, i + size) as a complex number, rotated by its angle."""
    size = x.shape[-1] // 2
    angles = np.multiply.outer(positions, 10000.0 ** (-np.arange(size) / size))
    pairs = (x[..., :size] + 1j * x[..., size:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], -1)


def oracle(layer, x, visible):
    """Equation 16 in float64: one head, query and key at a time."""
    w = {v.path.split("/", 1)[1]: numpy(v.value).astype("float64") for v in layer.weights}
    x = x.astype("float64")
    output = np.zeros(x.shape[:2] + (WIDTH,)) + w["attention_output/bias"]
    for b, i, h in np.ndindex(*x.shape[:2], layer.num_heads):
        group = h * layer.num_key_value_heads // layer.num_heads
        query = rotated(x[b, i] @ w["query/kernel"][:, h] + w["query/bias"][h], i)
        seen = [j for j in range(x.shape[1]) if visible[b, i, j]]
        keys = [
            rotated(x[b, j] @ w["key/kernel"][:, group] + w["key/bias"][group], j) for j in seen
        ]
        values = [x[b, j] @ w["value/kernel"][:, group] + w["value/bias"][group] for j in seen]
        scores = np.array(keys) @ query / np.sqrt(layer.key_dim)
        weights = np.exp(scores - scores.max())
        head = weights @ np.array(values) / weights.sum()
        output[b, i] += head @ w["attention_output/kernel"][h]
    return output


def masks(mask):
    """Which keys each query sees, and the arguments of the layer for that."""
    visible, options = np.ones((2, LENGTH, LENGTH), "bool"), {}
    if "causal" in mask:
        visible &= np.tril(visible[0])
        options["use_causal_mask"] = True
    if "padding" in mask:
        options["attention_mask"] = np.arange(LENGTH) < np.array([4, 6])[:, None, None]
        visible &= options["attention_mask"]
    return visible, options


@pytest.mark.parametrize("num_key_value_heads", [None, 2, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "padding and causal"])
def test_equals_the_oracle(num_key_value_heads, mask, rng):
    layer = attention(num_key_value_heads=num_key_value_heads)
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    visible, options = masks(mask)
    if "padding" in mask:
        options["attention_mask"] = visible  # softmax may have one for each query
    # float32 noise of sums of 16 numbers
    np.testing.assert_allclose(numpy(layer(x, x, **options)), oracle(layer, x, visible), atol=2e-5)
    output, scores = layer(x, x, return_attention_scores=True, **options)
    np.testing.assert_allclose(numpy(output), numpy(layer(x, x, **options)), atol=2e-6)
    assert tuple(scores.shape) == (2, 4, LENGTH, LENGTH)
    assert (numpy(scores)[:, 0][~visible] == 0).all()


def test_equals_keras_where_all_positions_are_equal(rng):
    """Rotation by one angle gives `keras.layers.MultiHeadAttention` with the same weights."""
    options = {"num_heads": 4, "key_dim": 4, "value_dim": 6, "output_shape": 5, "dropout": 0.1}
    ours, theirs = RotaryMultiHeadAttention(**options), keras.layers.MultiHeadAttention(**options)
    query = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    value = rng.normal(size=(2, 9, 12)).astype("float32")
    theirs(query, value)
    ours(query, value)
    assert [v.path.split("/", 1)[1] for v in ours.weights] == [
        v.path.split("/", 1)[1] for v in theirs.weights
    ]
    ours.set_weights([rng.normal(size=w.shape) for w in theirs.get_weights()])
    theirs.set_weights(ours.get_weights())
    positions = {"positions": np.full(LENGTH, 3), "key_positions": np.full(9, 3)}
    mask = rng.integers(0, 2, size=(2, LENGTH, 9)).astype("bool")
    mask[..., 0] = True
    for options in ({}, {"attention_mask": mask}):
        found, expected = (
            ours(query, value, **options, **positions),
            theirs(query, value, **options),
        )
        np.testing.assert_allclose(numpy(found), numpy(expected), atol=5e-5)


def in_parts(layer, x, cache, is_causal=lambda count: True):
    """The outputs of three calls with a cache, of 3, 1 and 2 tokens."""
    outputs, start, layer = [], 0, one_program(layer, "use_causal_mask")
    for count in (3, 1, 2):
        part = x[:, start : start + count]
        index = start if start < 4 else np.int64(start)
        options = {"cache": cache, "cache_update_index": index}
        output, cache = layer(part, part, use_causal_mask=is_causal(count), **options)
        outputs.append(numpy(output))
        start += count
    return np.concatenate(outputs, 1)


@pytest.mark.parametrize(("num_key_value_heads", "window"), [(4, None), (2, None), (4, 3)])
def test_cached_equals_uncached(num_key_value_heads, window, rng):
    layer = attention(num_key_value_heads=num_key_value_heads, sliding_window=window)
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    whole = numpy(layer(x, x, use_causal_mask=True))
    cache = layer.build_cache(2, LENGTH + 3)  # with positions that are never written
    assert tuple(cache.shape) == (2, 2, LENGTH + 3, num_key_value_heads, 4)
    # some last places of outputs up to 6
    np.testing.assert_allclose(in_parts(layer, x, cache), whole, atol=4e-6)


@pytest.mark.tensorflow("its graphs have unknown lengths")
@pytest.mark.parametrize("xla", [False, True])
def test_positions_of_keys_in_a_graph_of_any_length(xla, rng):
    import tensorflow as tf

    layer, spec = attention(), tf.TensorSpec((None, None, WIDTH))
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    positions = rng.uniform(0, 9, size=(2, LENGTH)).astype("float32")

    @tf.function(input_signature=[spec, spec], jit_compile=xla)
    def attend(query, value):
        return layer(query, value, positions=positions)

    for value in (x[:, ::-1], x[:, :4], np.tile(x, (1, 2, 1))):
        expected = layer(x, value, positions=positions)
        np.testing.assert_allclose(numpy(attend(x, value)), numpy(expected), atol=5e-6)


def linear_oracle(layer, x, visible):
    """Equation 19 in float64: weights of rotated features, divided by those of plain ones."""
    w = {v.path.split("/", 1)[1]: numpy(v.value).astype("float64") for v in layer.weights}
    query, key, value = (
        np.einsum("btd,dnk->bntk", x.astype("float64"), w[f"{name}/kernel"])
        + w[f"{name}/bias"][None, :, None]
        for name in ("query", "key", "value")
    )
    query, key = (np.where(z > 0, z + 1, np.exp(np.minimum(z, 0))) for z in (query, key))
    groups = layer.num_heads // layer.num_key_value_heads
    key, value = (np.repeat(part, groups, axis=1) for part in (key, value))
    plain = np.einsum("bnik,bnjk->bnij", query, key) * visible[:, None]
    query, key = (rotated(z, np.arange(x.shape[1])) for z in (query, key))
    weights = np.einsum("bnik,bnjk->bnij", query, key) * visible[:, None]
    heads = weights @ value / plain.sum(-1, keepdims=True)
    return (
        np.einsum("bnik,nkd->bid", heads, w["attention_output/kernel"])
        + (w["attention_output/bias"])
    )


@pytest.mark.parametrize("num_key_value_heads", [None, 2])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "padding and causal"])
def test_linear_attention_equals_the_oracle(num_key_value_heads, mask, rng):
    layer = attention(num_key_value_heads=num_key_value_heads, feature_map=EluFeatureMap())
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    visible, options = masks(mask)
    expected = linear_oracle(layer, x, visible)
    # float32 noise of sums of 16 numbers
    np.testing.assert_allclose(numpy(layer(x, x, **options)), expected, atol=2e-5)


@pytest.mark.parametrize(
    "feature_map",
    [
        EluFeatureMap(),
        CosineFeatureMap(),
        SoftmaxFeatureMap(normalize_keys=False),
        FavorFeatureMap(16, seed=1),
        FavorFeatureMap(16, seed=1, rotate_inputs=True),
    ],
    ids=lambda feature_map: type(feature_map).__name__,
)
def test_every_feature_map_gives_the_numbers_of_linear_attention(feature_map, rng):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    scheme = RotaryPosition(feature_map.rotated_dim(4), rope_scaling=yarn)
    linear = LinearAttention(4, 4, feature_map, causal=True, position_scheme=scheme)
    linear.build((None, None, WIDTH))
    randomize(linear)
    for weight in linear.qkv.weights:
        # A key resembles its query: the first position divides by 1 + cos of the two, which is
        # near 0 for opposite ones, and float32 leaves no digits there.
        query, key, value = np.split(numpy(weight), 3, axis=-1)
        weight.assign(np.concatenate([query, query + key / 4, value], axis=-1))
    ours = attention(feature_map=feature_map, rope_scaling=yarn)
    thirds = [np.split(numpy(w), 3, axis=-1) for w in linear.qkv.weights]
    weights = [third[i] for i in range(3) for third in thirds]
    weights += [numpy(w) for w in linear.output_dense.weights]
    own = [w for w in ours.weights if "feature_map" not in w.path]
    for weight, value in zip(own, weights, strict=True):
        weight.assign(value.reshape(weight.shape))
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    whole = numpy(one_program(ours, "use_causal_mask")(x, x, use_causal_mask=True))
    np.testing.assert_allclose(whole, numpy(one_program(linear)(x)), atol=2e-6)

    # one token needs no mask
    found = in_parts(ours, x, ours.build_cache(2, None), is_causal=lambda count: count > 1)
    np.testing.assert_allclose(found, whole, atol=5e-6)


@pytest.mark.parametrize(
    "feature_map",
    [None, EluFeatureMap(), FavorFeatureMap(16, seed=1, rotate_inputs=True)],
    ids=["softmax", "elu", "favor"],
)
@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        ("mixed_float16", 2.0**-11),
        ("mixed_bfloat16", 2.0**-8),
        pytest.param("float64", 2.0**-22, marks=pytest.mark.tensorflow("JAX has no float64")),
    ],
)
def test_positions_and_linear_sums_are_in_float32(feature_map, dtype, rounding, rng):
    """So are the sums in a cache, which no step rounds."""
    if feature_map is None and dtype == "mixed_float16" and keras.backend.backend() == "jax":
        pytest.skip("JAX computes no such attention in float16 on a CPU")
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    exact, layer = (attention(feature_map=feature_map, dtype=name) for name in ("float32", dtype))
    positions = 2048.5 + np.arange(LENGTH, dtype="float32")
    for options in ({}, {"positions": positions}, {"use_causal_mask": True}):
        expected = numpy(exact(x, x, **options))
        found = numpy(layer(x, x, **options)).astype("float64")
        # a dozen roundings: of inputs, weights, projections, scores, softmax and outputs
        np.testing.assert_allclose(found, expected, atol=12 * rounding * np.abs(expected).max())
    found = in_parts(layer, x, layer.build_cache(2, LENGTH)).astype("float64")
    np.testing.assert_allclose(found, expected, atol=12 * rounding * np.abs(expected).max())


@pytest.mark.parametrize("feature_map", [None, EluFeatureMap()], ids=["softmax", "linear"])
def test_masks_that_keras_carries_along(feature_map):
    layer = attention(feature_map=feature_map)
    check_keras_mask(lambda x: layer(x, x), WIDTH, atol=2e-6)


@pytest.mark.parametrize(
    "feature_map",
    [None, pytest.param(EluFeatureMap(), marks=pytest.mark.slow)],
    ids=["softmax", "linear"],
)
def test_trains_saves_and_loads(feature_map, tmp_path, rng):
    inputs = keras.Input((LENGTH, WIDTH))
    outputs = RotaryMultiHeadAttention(
        4,
        4,
        num_key_value_heads=2,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
        feature_map=feature_map,
    )(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    x = rng.normal(size=(8, LENGTH, WIDTH)).astype("float32")
    losses = model.fit(x, x, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
    for name, value in model.layers[-1].get_config().items():
        if name != "feature_map":
            assert again.layers[-1].get_config()[name] == value
    assert type(again.layers[-1].feature_map) is type(feature_map)


def test_errors(rng):
    with pytest.raises(ValueError, match="must divide `num_heads`"):
        RotaryMultiHeadAttention(4, 4, num_key_value_heads=3)
    x = rng.normal(size=(1, 2, WIDTH)).astype("float32")
    with pytest.raises(ValueError, match="Pass both `cache` and `cache_update_index`"):
        attention()(x, x, cache_update_index=0)
    layer = attention()
    with pytest.raises(ValueError, match="holds 4 tokens.*index=3 and 2 more tokens"):
        layer(x, x, cache=layer.build_cache(1, 4), cache_update_index=3)
    with pytest.raises(ValueError, match="one sequence axis"):
        RotaryMultiHeadAttention(4, 4)(x[None], x[None])
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
    with pytest.raises(ValueError, match="does not depend on the length"):
        attention(rope_scaling=dynamic).build_cache(1, 4)
    with pytest.raises(ValueError, match="must be a `FeatureMap`"):
        attention(feature_map="elu")
    linear = attention(feature_map=EluFeatureMap())
    for options, message in (
        ({"return_attention_scores": True}, "computes no scores"),
        ({"attention_mask": np.ones((1, 2, 2))}, "the same for all queries"),
        (
            {"cache": linear.build_cache(1, 4), "cache_update_index": 0},
            "pass `use_causal_mask=True`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            linear(x, x, **options)
    with pytest.raises(ValueError, match="as many keys as queries"):
        linear(x, x[:, :1], use_causal_mask=True)
