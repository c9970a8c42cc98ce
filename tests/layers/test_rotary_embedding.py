"""Rotated features against float64, KerasHub, bert4keras and Hugging Face."""

import keras
import keras_hub
import numpy as np
import pytest

from roformer_tf.layers import RotaryEmbedding
from tests.layers.harness import check_keras_mask, compiled, numpy, one_program
from tests.oracles.numpy_roformer import rotary_half, rotary_interleaved

SHAPES = {"features": (2, 5, 8), "heads": (2, 5, 3, 8)}
YARN = {"rope_type": "yarn", "scaling_factor": 4.0, "original_max_position_embeddings": 64}


def oracle(x, positions, layout, rotary_dim):
    """Rotates the first features of `(batch, length, ..., features)` in float64."""
    rotate = rotary_half if layout == "half" else rotary_interleaved
    heads = x.reshape(*x.shape[:2], -1, x.shape[-1])
    rotated = rotate(heads[..., :rotary_dim], positions)
    return np.concatenate([rotated, heads[..., rotary_dim:]], -1).reshape(x.shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_equals_the_oracle(shape, layout, rotary_dim, rng):
    x = rng.normal(size=shape).astype("float32")
    layer = RotaryEmbedding(layout=layout, rotary_dim=None if rotary_dim == 8 else rotary_dim)
    positions = np.array([[0, 1, 2.5, -3, 1_000_000], [5, 4, 3, 2, 1]])
    for given, at in (
        ({}, np.arange(5)[None]),
        ({"start_index": 7}, 7 + np.arange(5)[None]),
        ({"start_index": np.int64(7)}, 7 + np.arange(5)[None]),
        ({"positions": positions[1]}, positions[1:]),
        ({"positions": positions}, positions),
    ):
        expected = oracle(x, at, layout, rotary_dim)
        # cosines of angles exact to 2e-6, times features of size 4
        np.testing.assert_allclose(numpy(layer(x, **given)), expected, atol=1e-5)
        back = numpy(layer(layer(x, **given), **given, inverse=True))
        np.testing.assert_allclose(back, x, atol=2e-6)
    expected = oracle(x, np.arange(5), layout, rotary_dim)
    np.testing.assert_allclose(numpy(compiled(layer)(x)), expected, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_wavelength": 500},
        {"scaling_factor": 4.0},
        {"rope_type": "dynamic", "scaling_factor": 2.0},
        YARN,
        {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
        {**YARN, "truncate": False},
        {"denominator_dim": 16},
    ],
    ids=str,
)
def test_is_a_drop_in_for_keras_hub(shape, arguments, rng):
    x = rng.normal(size=shape).astype("float32")
    ours, theirs = RotaryEmbedding(**arguments), keras_hub.layers.RotaryEmbedding(**arguments)
    calls = [{}, {"start_index": 9}, {"positions": np.array([3, 1, 4, 1, 5])}]
    calls.append({"positions": np.arange(10).reshape(2, 5)})
    for given in calls:
        # theirs has float32 powers, and positions below 20
        np.testing.assert_allclose(numpy(ours(x, **given)), numpy(theirs(x, **given)), atol=1e-5)
    assert set(theirs.get_config()) <= set(ours.get_config())


@pytest.mark.parametrize("axes", [(1, -1), (2, -1), (2, 1), (-1, 1), (3, 2)])
def test_axes(axes, rng):
    x = rng.normal(size=(2, 6, 4, 8)).astype("float32")
    ours, theirs = (
        one_program(cls(sequence_axis=axes[0], feature_axis=axes[1]))
        for cls in (RotaryEmbedding, keras_hub.layers.RotaryEmbedding)
    )
    np.testing.assert_allclose(numpy(ours(x)), numpy(theirs(x)), atol=2e-6)


def test_equals_hugging_face(rng):
    """LLaMA rotates halves; RoFormer rotates interleaved pairs, with one table."""
    torch = pytest.importorskip("torch", reason="needs the extra hf: torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    roformer = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    query, key = rng.normal(size=(2, 2, 3, 5, 8)).astype("float32")  # (batch, heads, length, dim)
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    both = torch.tensor(np.concatenate([angles, angles], -1), dtype=torch.float32)[None]
    expected = llama.apply_rotary_pos_emb(
        torch.tensor(query), torch.tensor(key), both.cos(), both.sin()
    )
    layer = RotaryEmbedding(sequence_axis=2)
    for x, want in zip((query, key), expected):
        np.testing.assert_allclose(numpy(layer(x)), want.numpy(), atol=2e-6)

    sinusoids = torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], -1)).float()
    expected = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(
        sinusoids[None, None], torch.tensor(query), torch.tensor(key)
    )
    layer = RotaryEmbedding(sequence_axis=2, layout="interleaved")
    for x, want in zip((query, key), expected):
        np.testing.assert_allclose(numpy(layer(x)), want.numpy(), atol=2e-6)


@pytest.mark.parametrize("dtype", ["mixed_float16", "bfloat16"])
def test_rotates_in_float32_under_every_policy(dtype, rng):
    x = rng.normal(size=(1, 4, 8)).astype("float32")
    layer = RotaryEmbedding(dtype=dtype)
    rounded = keras.ops.cast(x, layer.compute_dtype)
    expected = RotaryEmbedding()(keras.ops.cast(rounded, "float32"), start_index=65_537)
    expected = numpy(keras.ops.cast(expected, layer.compute_dtype))
    positions = 65_537 + np.arange(4, dtype="float32")
    for given in ({"start_index": 65_537}, {"positions": keras.ops.array(positions)}):
        found = layer(x, **given)
        assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
        np.testing.assert_array_equal(numpy(found), expected)


def test_a_start_in_a_tensor_whatever_floatx_is(rng):
    x, start = rng.normal(size=(1, 4, 8)).astype("float32"), keras.ops.array(3, "int32")
    layer = RotaryEmbedding(dtype="float32")
    expected = numpy(layer(x, start_index=3))
    keras.config.set_floatx("float64")
    np.testing.assert_array_equal(numpy(layer(x, start_index=start)), expected)


def test_in_a_functional_model_with_a_mask():
    check_keras_mask(RotaryEmbedding(), 8, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "shape", "message"),
    [
        ({}, (2, 5, 7), "must be even"),
        ({"rotary_dim": 10}, (2, 5, 8), "at most the size of the feature axis"),
        ({"sequence_axis": 3}, (2, 5, 8), "`sequence_axis` and `feature_axis` must be"),
        ({"sequence_axis": 2}, (2, 5, 8), "`sequence_axis` and `feature_axis` must be"),
        ({"layout": "pairs"}, (2, 5, 8), "`layout` must be one of"),
        ({"rope_type": "longrope"}, (2, 5, 8), "`rope_type` must be one of"),
    ],
)
def test_errors(arguments, shape, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(**arguments)(np.ones(shape, "float32"))
