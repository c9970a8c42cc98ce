"""Properties of all rotary positions: only distances matter, padding changes nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import AttentionMask, RotaryPosition, SelfAttention
from roformer_tf.rope_scaling import make_rope_scaling
from tests.layers.harness import assert_equal, built, compiled, flat, numpy, one_program

HEAD_DIM, TRAINED = 8, 8
LENGTHS = (3, 8, 14)  # of three rows: shorter than, as long as, and longer than the trained length
WIDEST = max(LENGTHS)
X = np.random.default_rng(5).normal(size=(3, WIDEST, 16)).astype("float32")
IDS = np.zeros((3, WIDEST), "int32")
PADDING = (np.arange(WIDEST) < np.array(LENGTHS)[:, None]).astype("int32")
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": TRAINED}
SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "dynamic": DYNAMIC,
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
}
FORMS = {
    **{name: {"rope_scaling": scaling} for name, scaling in SCALINGS.items()},
    "partial": {"rotary_dim": 4},
    "learned": {"learned": True},
    "learned_dynamic": {"learned": True, "rope_scaling": DYNAMIC},
    "on_values": {"on_values": True},
    "everything": {
        "rotary_dim": 6,
        "learned": True,
        "on_values": True,
        "rope_scaling": SCALINGS["yarn"],
    },
}
# vector instructions and the plain ones at the end of an array may differ by it
LAST_PLACE = {"rtol": 0, "atol": 1.2e-7}
every_form = pytest.mark.parametrize("form", FORMS)
every_scaling = pytest.mark.parametrize("scaling", SCALINGS)


def scheme(form="default", **kwargs):
    layer = RotaryPosition(HEAD_DIM, **FORMS[form], **kwargs)
    layer.build()
    return layer


def attention(form, dtype="float32"):
    layer = SelfAttention(2, HEAD_DIM, position_scheme=scheme(form, dtype=dtype), dtype=dtype)
    built(layer, X.shape)
    if layer.position_scheme.learned:  # frequencies that are no powers
        theta = layer.position_scheme.theta
        theta.assign(np.linspace(0.9, 0.001, theta.shape[0]).astype("float32"))
    return layer


def attend(layer, rows=slice(None), positions=None, width=WIDEST):
    mask = PADDING[rows, :width]
    position = layer.position_scheme(IDS[rows, :width], positions, mask)
    return numpy(layer(X[rows, :width], AttentionMask()(mask), position)).astype("float32")


@every_form
def test_only_distances_matter(form):
    layer = attention(form)
    positions = np.broadcast_to(np.arange(WIDEST, dtype="float32"), IDS.shape)
    before = attend(layer)
    for shift in (0, 1, -40.5, 1_000_000):
        # the angles on either side are within 1e-6, and a score is a sum of products of size 3
        after = attend(layer, positions=positions + np.float32(shift))
        np.testing.assert_allclose(after, before, atol=3e-5)
    assert np.abs(attend(layer, positions=3 * positions) - before).max() > 0.05


@every_form
def test_padding_and_neighbours_change_nothing(form):
    layer = attention(form)
    together = layer.position_scheme(IDS, None, PADDING)
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        alone = layer.position_scheme(IDS[one, :length], None, PADDING[one, :length])
        unmasked = layer.position_scheme(IDS[one, :length])
        for whole, table, other in zip(together, flat(alone), flat(unmasked)):
            whole = numpy(whole)[one if len(whole) > 1 else slice(0, 1), :, :length]
            np.testing.assert_allclose(whole, table, **LAST_PLACE)
            np.testing.assert_allclose(whole, other, **LAST_PLACE)
        # softmax and products of other widths add in another order
        output = attend(layer, one, width=length)
        np.testing.assert_allclose(output, attend(layer)[one, :length], atol=2e-6)


@every_scaling
def test_norms_are_kept(scaling):
    layer = scheme(scaling)
    query, key = np.random.default_rng(1).normal(size=(2, 3, 2, WIDEST, HEAD_DIM))
    rotated = layer.apply_to_query_key(
        query.astype("float32"), key.astype("float32"), layer(IDS, None, PADDING)
    )
    factor = make_rope_scaling(SCALINGS[scaling]).query_key_factor
    assert (factor == 1) == (scaling != "yarn")
    for x, after in zip((query, key), rotated):
        np.testing.assert_allclose(
            np.linalg.norm(numpy(after), axis=-1), factor * np.linalg.norm(x, axis=-1), rtol=1e-6
        )


@every_form
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_tables_are_float32_under_every_policy(form, dtype):
    positions = np.array([[0, 1, 255.5, 257, 65_537, 999_999] + [1_000_000] * 8] * 3, "float32")
    expected = flat(scheme(form)(IDS, positions, PADDING))
    layer = scheme(form, dtype=dtype)
    tables = layer(IDS, positions, PADDING)
    for table, other in zip(tables, expected):
        assert keras.backend.standardize_dtype(table.dtype) == "float32"
        np.testing.assert_array_equal(numpy(table), other)
    for weight in layer.weights:
        assert keras.backend.standardize_dtype(weight.dtype) == "float32"


def test_features_that_are_not_rotated_stay():
    layer = scheme("partial")
    x = np.random.default_rng(2).normal(size=(3, 2, WIDEST, HEAD_DIM)).astype("float32")
    query, key = layer.apply_to_query_key(x, 2 * x, layer(IDS))
    np.testing.assert_array_equal(numpy(query)[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(numpy(key)[..., 4:], 2 * x[..., 4:])
    assert (np.abs(numpy(query) - x)[:, :, 1:, :4] > 1e-6).any(axis=(0, 1, 2)).all()


def test_values_are_rotated_and_back():
    """The value of a token that sees only itself is unchanged."""
    layer = scheme("on_values")
    value = np.random.default_rng(3).normal(size=(3, 2, WIDEST, HEAD_DIM)).astype("float32")
    context = layer(IDS)
    back = layer.apply_to_output(layer.apply_to_value(value, context), None, context)
    np.testing.assert_allclose(numpy(back), value, atol=1e-6)
    plain = scheme()
    assert plain.apply_to_value(value, context) is value
    assert plain.apply_to_output(value, None, context) is value
    kinds = {False: False, True: True, "absolute": False}
    assert {kind: RotaryPosition(4, on_values=kind).changes_output for kind in kinds} == kinds
    assert RotaryPosition(4, on_values=1).changes_output  # equals True


# Dynamic scaling


def test_dynamic_is_plain_up_to_the_trained_length():
    """Bit for bit, eager and compiled; a longer row in the batch changes nothing for the others."""
    plain, dynamic = scheme(), scheme("dynamic")
    expected = flat(plain(IDS))
    for call in (dynamic, compiled(lambda *inputs: dynamic(*inputs))):
        for table, other in zip(flat(call(IDS, None, PADDING)), expected):
            np.testing.assert_array_equal(table[:2], np.broadcast_to(other, table.shape)[:2])
            assert np.abs(table[2] - other[0]).max() > 0.1
    positions = np.arange(TRAINED, dtype="float32")[None] - 3.5
    assert_equal(dynamic(IDS[:1, :8], positions), plain(IDS, positions))


def test_dynamic_is_ntk_of_the_current_length():
    ntk = RotaryPosition(HEAD_DIM, rope_scaling={"type": "ntk", "factor": 2 * 14 / TRAINED - 1})
    for given in ({"padding_mask": PADDING}, {"current_length": np.array([3, 8, 14])}):
        for table, other in zip(flat(scheme("dynamic")(IDS, **given)), flat(ntk(IDS))):
            np.testing.assert_allclose(table[2], other[0], atol=5e-6)


def test_packed_row_goes_by_its_longest_document():
    positions = np.array([[0, 1, 2, *range(11)], [*range(7), *range(7)]], "float32")
    tables = flat(scheme("dynamic")(IDS[:2], positions, np.ones((2, WIDEST), "int32")))
    alone = flat(scheme("dynamic")(IDS[:1, :11]))
    plain = flat(scheme()(IDS[:2], positions))
    for table, longest, unscaled in zip(tables, alone, plain):
        np.testing.assert_allclose(table[0, :, 3:], longest[0], **LAST_PLACE)
        np.testing.assert_allclose(table[0, :, :3], longest[0, :, :3], **LAST_PLACE)
        np.testing.assert_array_equal(table[1], unscaled[1])


def test_row_of_padding_is_finite():
    tables = flat(scheme("dynamic")(IDS, None, PADDING * 0))
    for table, other in zip(tables, flat(scheme()(IDS))):
        np.testing.assert_array_equal(table, np.broadcast_to(other, table.shape))


@every_form
def test_step_by_step_with_a_cache(form):
    """Each step equals a call for the text so far, whose length decides about a dynamic scale."""
    layer = attention(form)
    step, call = one_program(layer.call_with_cache), one_program(layer, "use_causal_mask")
    cache = layer.build_cache(3, WIDEST + 2)  # with positions that are never written
    for i in range(WIDEST):
        output, cache = step(X[:, i : i + 1], cache, i)
        if i in (0, 1, TRAINED - 1, TRAINED, WIDEST - 1):
            whole = call(X[:, : i + 1], use_causal_mask=True)
            np.testing.assert_allclose(numpy(output)[:, 0], numpy(whole)[:, -1], atol=2e-6)


def test_current_length_of_each_row():
    layer = scheme("dynamic")
    given = flat(layer(IDS, current_length=np.array(LENGTHS, "int32")))
    assert_equal(given, layer(IDS, None, PADDING))


# Learned frequencies


def test_learned_frequencies_start_as_the_fixed_ones():
    # theta is rounded to float32
    assert_equal(scheme("learned")(IDS), scheme()(IDS), atol=5e-6)
    (theta,) = scheme("learned").trainable_weights
    np.testing.assert_allclose(numpy(theta.value), [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_learned_frequencies_in_mixed_precision():
    """The model around it casts weights when they are read; this one must stay as it is."""
    inputs = keras.Input((WIDEST,), dtype="int32")
    layer = RotaryPosition(HEAD_DIM, learned=True, dtype="mixed_bfloat16")
    model = keras.Model(inputs, layer(inputs))
    model.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    layer.theta.assign(np.float32([0.7001, 0.1001, 0.0101, 0.0011]))
    angle = np.arange(WIDEST)[:, None] * numpy(layer.theta.value).astype("float64")
    cos, sin = flat(model(IDS[:1]))
    np.testing.assert_allclose(cos[0, 0, :, :4], np.cos(angle), atol=1e-5)
    np.testing.assert_allclose(sin[0, 0, :, 4:], np.sin(angle), atol=1e-5)


@pytest.mark.parametrize("rotary_dim", [0, 3, 10, -2, 4.0, "4"])
def test_wrong_rotary_dim(rotary_dim):
    with pytest.raises(ValueError, match="`rotary_dim` must be an even integer from 2 to .*=8"):
        RotaryPosition(HEAD_DIM, rotary_dim=rotary_dim)


def test_wrong_scaling():
    with pytest.raises(ValueError, match=r"\['rope_type'\]` must be one of"):
        RotaryPosition(HEAD_DIM, rope_scaling={"rope_type": "su"})


def test_config_is_plain_data():
    layer = RotaryPosition(HEAD_DIM, rope_scaling=DYNAMIC, rotary_dim=4)
    config = layer.get_config()
    assert type(config["rope_scaling"]) is dict and config["rope_scaling"] == DYNAMIC
    assert ops.shape(RotaryPosition.from_config(config)(IDS)[0]) == (1, 1, WIDEST, 4)
