"""The backbone: float64 NumPy, invariances, files, dtypes, errors."""

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.layers.feature_maps import FEATURE_MAPS
from roformer_tf.layers.position_schemes import POSITION_SCHEMES
from tests.layers.harness import (
    assert_close,
    assert_equal,
    compiled,
    flat,
    gradients,
    numpy,
    slope_at_zero,
    variables,
    weights_by_path,
)
from tests.models.builders import (
    KINDS,
    SIZES,
    V2,
    backbone,
    hidden_states,
    inputs,
    original_names,
    saved_and_loaded,
    sequence,
)
from tests.models.test_position_schemes import OPTIONS

# float32 through two blocks: some 6e-8 each of a dozen sums, relative to outputs of size 3
NOISE = 3e-6


def named_outputs(model, given):
    outputs = model(given)
    return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}


def with_other_token(given, position):
    """The same inputs, with another token at one position of each sequence."""
    token_ids = given["token_ids"].copy()
    token_ids[:, position] = 5 + (token_ids[:, position] - 4) % 35
    return {**given, "token_ids": token_ids}


@pytest.mark.parametrize("kind", [*KINDS, "v1 at positions", "sim at positions", "v2 at positions"])
def test_equals_float64(kind, rng):
    model = backbone(kind.removesuffix(" at positions"))
    given = inputs(rng)
    if kind not in KINDS:
        given["position_ids"] = np.sort(rng.integers(-50, 2000, size=(3, 9)) / 4, axis=1)
    found, expected = named_outputs(model, given), hidden_states(model, given)
    assert_close(flat(found), flat(expected), NOISE, kind)


@pytest.mark.parametrize("kind", ["v1_pooler", "factorised", "sim", "v2_factorised"])
def test_gradients_equal_finite_differences_of_float64(kind, rng):
    model = backbone(kind)
    given = inputs(rng)
    expected = hidden_states(model, given)
    cotangents = {name: rng.normal(size=x.shape) for name, x in expected.items()}

    _, found = gradients(lambda: named_outputs(model, given), [], cotangents, model)
    paths = {id(w): path for path, w in variables(model).items()}
    found = {paths[id(w)]: g for w, g in zip(model.trainable_variables, found, strict=True)}
    assert set(found) == set(paths.values())

    start = weights_by_path(model)
    for path, gradient in found.items():
        direction = rng.normal(size=gradient.shape)

        def oracle_loss(step, path=path, direction=direction):
            moved = original_names(model, {**start, path: start[path] + step * direction})
            outputs = hidden_states(model, given, moved)
            return sum((outputs[name] * c).sum() for name, c in cotangents.items())

        numeric = slope_at_zero(oracle_loss)
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs((gradient * direction).sum() - numeric) < 1e-5 * (size + 1), path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 30])
def test_added_padding_changes_no_real_token(kind, count, rng):
    model = backbone(kind)
    given = inputs(rng)
    outputs = sequence(model(given))
    padded = {k: np.pad(v, [(0, 0), (0, count)]) for k, v in given.items()}
    padded["token_ids"][:, 9:] = rng.integers(0, 40, size=(3, count))  # any tokens
    more = sequence(model(padded))[:, :9]
    real = given["padding_mask"] == 1
    assert np.abs(more - outputs)[real].max() < 1e-5
    if model.pooler is not None:
        np.testing.assert_allclose(
            numpy(model(padded)["pooled_output"]), numpy(model(given)["pooled_output"]), atol=1e-5
        )


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_padding_on_the_left_changes_nothing_either(kind, rng):
    """Only distances matter, so tokens that move together keep their outputs."""
    model = backbone(kind)
    given = inputs(rng, padded=False)
    moved = {k: np.pad(v, [(0, 0), (5, 0)]) for k, v in given.items()}
    # rotations by other angles, each within 1e-6
    np.testing.assert_allclose(sequence(model(moved))[:, 5:], sequence(model(given)), atol=2e-5)


@pytest.mark.parametrize("kind", ["gpt", "v2_causal"])
def test_a_future_token_changes_nothing_under_the_causal_mask(kind, rng):
    model = backbone(kind)
    given = inputs(rng, padded=False)
    before = sequence(model(given))
    for position in range(1, 9):
        after = sequence(model(with_other_token(given, position)))
        # hidden keys have probability exactly 0
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        assert (np.abs(after - before)[:, position:].max(-1) > 1e-4).all()


def test_unilm_source_does_not_see_the_target(rng):
    model = backbone("sim")
    given = inputs(rng, padded=False)  # segment 1 begins at position 4
    before = sequence(model(given))
    for position in range(9):
        after = sequence(model(with_other_token(given, position)))
        difference = np.abs(after - before).max(-1)
        if position < 4:  # every token sees the whole source
            assert (difference > 1e-4).all()
        else:
            assert (difference[:, :position] == 0).all() and (difference[:, position:] > 1e-4).all()


@pytest.mark.parametrize("kind", ["v1", "sim", "v2"])
@pytest.mark.parametrize("shift", [1, -7.5, 1000, 1_000_000])
def test_shifting_all_positions_changes_nothing(kind, shift, rng):
    model = backbone(kind)
    given = inputs(rng)
    positions = np.arange(9)[None] + np.array([[0], [100], [2.5]])
    before = sequence(model({**given, "position_ids": positions}))
    after = sequence(model({**given, "position_ids": positions + shift}))
    # angles are within 1e-6 at any position: scores, of size 5 here, move by some 1e-5
    np.testing.assert_allclose(after, before, atol=3e-5)
    other = sequence(model({**given, "position_ids": 3 * positions}))
    assert np.abs(other - before).max() > 0.05


def test_default_positions_are_counted_from_zero(rng):
    model = backbone()
    given = inputs(rng)
    absent = sequence(model(given))
    for positions in (np.tile(np.arange(9), (3, 1)), np.tile(np.arange(9.0), (3, 1))):
        explicit = {**given, "position_ids": positions}
        # vectorised sines and those of a remainder differ in the last place
        np.testing.assert_allclose(sequence(model(explicit)), absent, atol=5e-6)
        np.testing.assert_allclose(model.predict(explicit, verbose=0), absent, atol=5e-6)


@pytest.mark.parametrize("length", [1, 2, 1100])
def test_any_length(length, rng):
    model = backbone(num_layers=1)
    given = {"token_ids": rng.integers(5, 40, size=(1, length))}
    given["segment_ids"] = 0 * given["token_ids"]
    given["padding_mask"] = 1 + 0 * given["token_ids"]
    output = sequence(model(given))
    assert output.shape == (1, length, 16) and np.isfinite(output).all()
    if length < 1000:
        expected = hidden_states(model, given)["sequence_output"]
        np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["v1", "gpt", "sim", "v2"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_sequence_of_padding_is_finite(kind, dtype, rng):
    given = inputs(rng)
    given["padding_mask"][1] = 0
    assert np.isfinite(sequence(backbone(kind, dtype=dtype)(given))).all()


@pytest.mark.parametrize("kind", ["v1", "sim", "v2"])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(kind, dtype, rng):
    model = backbone(kind, dtype=dtype)
    given = inputs(rng)
    given["position_ids"] = 1_000_000 + np.tile(np.arange(9), (3, 1))
    outputs = named_outputs(model, given)["sequence_output"]
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype.removeprefix("mixed_")
    expected = hidden_states(model, given)["sequence_output"]
    # two blocks of some ten roundings each, on hidden states of size 1, which grow in the products
    rounding = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}[dtype]
    error = np.abs(sequence(model(given)) - expected)
    assert error.max() < 40 * rounding and np.sqrt((error**2).mean()) < 6 * rounding


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_compiled(kind, rng):
    model = backbone(kind)
    given = inputs(rng)
    np.testing.assert_allclose(
        numpy(compiled(lambda x: model(x))(given)), sequence(model(given)), atol=1e-5
    )


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_at_positions(kind, count, rng, monkeypatch):
    """They are those of the whole sequence, and the end of the last block runs at no others."""
    model, given = backbone(kind), inputs(rng)
    positions = np.array([[0, 3, 3], [1, 0, 0], [8, 2, 5]])[:, :count]
    whole, seen = named_outputs(model, given), []

    def watch(layer):
        def call(x):
            seen.append(tuple(x.shape))
            return type(layer).call(layer, x)

        monkeypatch.setattr(layer, "call", call)

    watch(model.encoder_blocks[-1].attention.output_dense)
    watch(model.encoder_blocks[-1].feed_forward)
    found = named_outputs(model, {**given, "output_positions": positions})
    assert seen == [(3 if count == 1 else 27, 16), (3, count, 16)]
    expected = np.take_along_axis(numpy(whole["sequence_output"]), positions[..., None], axis=1)
    assert_close([numpy(found["sequence_output"])], [expected], NOISE, kind)
    if model.pooler is not None:  # of the first of the positions, in the first sequence [CLS]
        pooled = numpy(found["pooled_output"])[0], numpy(whole["pooled_output"])[0]
        np.testing.assert_allclose(*pooled, atol=1e-6)


def test_graphs_of_outputs_at_positions():
    model = backbone("v1_pooler")
    x = {**model.input, "output_positions": keras.Input((4,), dtype="int32")}
    outputs = model(x)
    assert outputs["sequence_output"].shape == (None, 4, 16)
    assert outputs["pooled_output"].shape == (None, 16)
    with pytest.raises(ValueError, match="`output_positions` must hold whole numbers from 0 to 2"):
        model({"token_ids": np.ones((1, 3), int), "output_positions": np.array([[3]])})
    with pytest.raises(ValueError, match="must have a row for each sequence of `token_ids`, 1"):
        model({"token_ids": np.ones((1, 3), int), "output_positions": np.zeros((0, 3), int)})


# family and masking; position scheme; learned frequencies; linear attention
SAVED = [(kind, {}) for kind in KINDS]
SAVED += [
    ("v1", {"position_scheme": scheme, "position_options": OPTIONS.get(scheme)})
    for scheme in POSITION_SCHEMES
]
SAVED += [("v1", {"position_options": {"learned": True}})]
SAVED += [("v1", {"attention": name}) for name in FEATURE_MAPS]
SAVED += [
    ("v1", {"attention": "elu", "position_scheme": scheme})
    for scheme in ("none", "learned", "sinusoidal")
]


@pytest.mark.parametrize(("kind", "options"), SAVED)
def test_config_and_file(kind, options, rng, tmp_path):
    model = backbone(kind, **options)
    given = inputs(rng)
    expected = flat(model(given))
    config = model.get_config()
    for name, value in {**SIZES, **KINDS[kind], **options}.items():
        assert config[name] == value
    again = roformer_tf.RoFormerBackbone.from_config(config)
    assert again.get_config() == config
    again.set_weights(model.get_weights())
    loaded = saved_and_loaded(model, tmp_path)
    assert isinstance(loaded, roformer_tf.RoFormerBackbone) and loaded.get_config() == config
    for other in (again, loaded):
        assert_equal(other(given), expected)


def test_functions_as_activations_are_saved(rng, tmp_path):
    given = inputs(rng)
    for activation, name in ((keras.activations.silu, "silu"), (keras.layers.LeakyReLU(), None)):
        model = backbone("v1", activation=activation)
        loaded = saved_and_loaded(model, tmp_path)
        assert_equal(loaded(given), model(given))
        assert name in (None, loaded.get_config()["activation"])


def test_number_of_weights():
    """Only the original's weights: 12 H^2 in a block and its vectors, none for positions."""
    h, f, v = 16, 32, 48
    block = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h
    assert backbone("v1").count_params() == v * h + 2 * h + 2 * h + 2 * block
    assert backbone("v2").count_params() == v * h + 2 * h + 2 * (4 * h * h + 2 * h * f)
    assert all(w.trainable for w in backbone("v1").weights)


def test_initial_weights():
    """v1: truncated normal of 0.02. v2: of 1 / sqrt(n L), where n is the number of inputs.

    For embeddings it is the number of outputs.
    """
    large = {"hidden_dim": 128, "intermediate_dim": 256, "num_heads": 2, "vocabulary_size": 500}
    model = roformer_tf.RoFormerBackbone(**{**SIZES, **large})
    block = model.encoder_blocks[0]
    for weight in (
        model.token_embedding.embeddings,
        block.attention.qkv.kernel,
        block.feed_forward.output_dense.kernel,
    ):
        # truncated at two standard deviations of the normal it is cut from
        assert 0.016 < numpy(weight.value).std() < 0.021
    model = roformer_tf.RoFormerBackbone(**{**SIZES, **large, **V2})
    block = model.encoder_blocks[0]
    for weight, size in (
        (model.token_embedding.embeddings, 128),
        (block.attention.qkv.kernel, 128),
        (block.feed_forward.output_dense.kernel, 256),
    ):
        assert abs(numpy(weight.value).std() * np.sqrt(size * 2) - 1) < 0.05
    kernels = [numpy(b.attention.qkv.kernel.value) for b in model.encoder_blocks]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01  # no two layers start alike
    assert np.abs(kernels[0][:, :128] - kernels[0][:, 128:256]).max() > 0.01


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "`num_layers` must be a positive integer. Received: num_layers=0"),
        ({"vocabulary_size": "40"}, "`vocabulary_size` must be a positive integer"),
        ({"embedding_dim": 1.5}, "`embedding_dim` must be a positive integer"),
        ({"num_heads": 3}, "`num_heads` must divide `hidden_dim` into heads of even size"),
        ({"num_heads": 16}, "heads of even size. Received: hidden_dim=16, num_heads=16"),
        (
            {"pooler": "relu"},
            "`pooler` must be one of 'tanh', 'linear' or None. Received: pooler='relu'",
        ),
        ({"norm": "batch"}, "`norm` must be 'layer_norm' or 'rms_norm'. Received: norm='batch'"),
        ({"masking": "prefix"}, "`masking` must be one of .* Received: masking='prefix'"),
        ({"activation": "gelo"}, "gelo"),
        ({"position_options": "clipped"}, "must be a dictionary.*position_options='clipped'"),
        ({"max_wavelength": 0}, "`base` must be positive"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        roformer_tf.RoFormerBackbone(**{**SIZES, **options})
