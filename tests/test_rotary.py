"""The mathematics of RoPE against float64 NumPy: angles, rotations, layouts, gradients, errors."""

import cmath

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from roformer_tf import rotary
from tests.layers.harness import compiled, gradients, numpy
from tests.oracles import numpy_roformer as oracle

HEAD_DIM = 64
# All of them are float32 numbers: positions are float32, so beyond 2^23 there are no halves.
POSITIONS = {
    "whole": np.arange(0, 1200),
    "fractional": np.arange(0, 100, 0.375),
    "negative": -np.arange(0, 3000, 7.25),
    "large": np.array([4095, 4096, 65_535, 123_456.5, 999_999, 1_000_000, -1_000_000]),
    "largest": np.array([2**24, 2**24 - 1, -(2**24), 2**22 + 0.5]),
}
ROTATIONS = {"half": oracle.rotary_half, "interleaved": oracle.rotary_interleaved}


def difference(angle, expected):
    """Of two angles, whatever number of whole turns lies between them."""
    turns = (np.asarray(angle, "float64") - expected) / (2 * np.pi)
    return np.abs(turns - np.round(turns)) * 2 * np.pi


def rotated(x, positions, layout="half", base=10000.0, function=rotary.rotate):
    """`x` (..., t, d) rotated by the angles of `positions` (t,)."""
    tables = rotary.tables(positions, rotary.frequencies(x.shape[-1], base))
    return function(x, *tables, layout=layout)


def exactly(x, positions, layout="half", base=10000.0):
    """The same in float64; the oracle wants (b, t, h, d)."""
    x = np.asarray(x, "float64")
    return ROTATIONS[layout](x[None, :, None], positions, base)[0, :, 0]


@pytest.mark.parametrize("head_dim", [2, 4, 64, 128, 10])
@pytest.mark.parametrize("base", [10000.0, 500.0, 1e6])
def test_frequencies(head_dim, base):
    expected = [base ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    np.testing.assert_allclose(rotary.frequencies(head_dim, base), expected, rtol=1e-15)


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("base", [10000.0, 1e6])
def test_angles_are_exact(kind, base):
    theta = rotary.frequencies(HEAD_DIM, base)
    angle = numpy(rotary.angles(POSITIONS[kind], theta))
    assert angle.dtype == np.float32
    # float32 near pi is exact to 2.4e-7; a plain float32 product is off by 0.06 at 1,000,000
    assert difference(angle, POSITIONS[kind][:, None] * theta).max() < 1e-6


def test_angles_are_exact_when_compiled():
    """A compiler that reordered the sums would undo the trick."""
    theta = rotary.frequencies(HEAD_DIM)
    for positions in POSITIONS.values():
        angle = numpy(compiled(lambda p: rotary.angles(p, theta))(positions.astype("float32")))
        assert difference(angle, positions[:, None] * theta).max() < 1e-6


@pytest.mark.parametrize("kind", POSITIONS)
def test_angles_of_frequencies_in_a_tensor(kind):
    """As exact as fixed ones, for frequencies rounded to float32 turns per position."""
    theta = rotary.frequencies(HEAD_DIM).astype("float32")
    rounded = (theta * np.float32(0.5 / np.pi)).astype("float64") * 2 * np.pi
    np.testing.assert_allclose(rounded, theta, rtol=2e-7)
    angle = numpy(rotary.angles(POSITIONS[kind], ops.convert_to_tensor(theta)))
    assert difference(angle, POSITIONS[kind][:, None] * rounded).max() < 1e-6


@pytest.mark.parametrize("function", [rotary.angles, compiled(rotary.angles)])
@pytest.mark.parametrize("kind", POSITIONS)
def test_frequencies_in_a_tensor_are_the_same_at_all_positions(kind, function):
    """Compilers may round them differently, but once for all: twice as far is twice the angle."""
    theta = ops.convert_to_tensor(rotary.frequencies(HEAD_DIM).astype("float32"))
    positions = POSITIONS[kind].astype("float32")
    angle, half = (numpy(function(p, theta)).astype("float64") for p in (positions, positions / 2))
    assert difference(angle, 2 * half).max() < 3e-6


def test_frequencies_of_each_row():
    positions = np.arange(12, dtype="float32").reshape(2, 6)
    theta = np.float32([[[1.0, 0.1]], [[0.5, -0.02]]])
    angle = numpy(rotary.angles(positions, ops.convert_to_tensor(theta)))
    assert angle.shape == (2, 6, 2)
    assert difference(angle, positions[..., None].astype("float64") * theta).max() < 5e-6


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_gradients_by_frequencies_are_the_positions(scale):
    theta = np.float32([1.0, 0.1, 0.003])
    positions = scale * np.float32([0, 1, 2.5, -7])
    cotangent = np.arange(12, dtype="float32").reshape(4, 3)
    _, (gradient,) = gradients(lambda t: rotary.angles(positions, t), [theta], cotangent)
    np.testing.assert_allclose(gradient, positions @ cotangent, rtol=1e-6)


def test_tables():
    positions = np.array([[0, 3.5, -2], [1, 2, 1000]])
    theta = rotary.frequencies(8)
    cos, sin = map(numpy, rotary.tables(positions, theta))
    angle = positions[..., None] * theta
    np.testing.assert_allclose(cos, np.cos(np.concatenate([angle, angle], -1)), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(np.concatenate([-angle, angle], -1)), atol=1e-6)


# One unit in the last place, as a share of the largest number with the same exponent.
LAST_PLACE = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NUMPY_DTYPE = {"float32": "float32", "float16": "float16", "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", LAST_PLACE)
@pytest.mark.parametrize("layout", rotary.LAYOUTS)
@pytest.mark.parametrize("kind", POSITIONS)
def test_rotation_is_rounded_once(rng, dtype, layout, kind):
    positions = POSITIONS[kind]
    x = rng.normal(size=(len(positions), HEAD_DIM)).astype(NUMPY_DTYPE[dtype])
    result = rotated(ops.convert_to_tensor(x), positions, layout)
    assert keras.backend.standardize_dtype(result.dtype) == dtype
    result = numpy(ops.cast(result, "float32")).astype("float64")
    expected = exactly(x, positions, layout)
    exponent = np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-14)))
    half_a_place = 0.5 * LAST_PLACE[dtype] * 2.0**exponent
    # float32 before the rounding: 1e-6 in the angle, and the roundings of two products and a sum
    noise = 2e-6 * np.abs(x.astype("float64")).max()
    assert (np.abs(result - expected) - half_a_place).max() < noise


@pytest.mark.parametrize("layout", rotary.LAYOUTS)
def test_against_the_oracle_of_another_base(rng, layout):
    x = rng.normal(size=(7, 12)).astype("float32")
    positions = rng.normal(size=7) * 100
    result = numpy(rotated(x, positions, layout, base=300.0))
    positions = positions.astype("float32")  # positions are float32
    np.testing.assert_allclose(result, exactly(x, positions, layout, 300.0), atol=5e-6)


@pytest.mark.parametrize("layout", rotary.LAYOUTS)
def test_single_tokens(rng, layout):
    """As in generation: the last of a text, by itself."""
    x = rng.normal(size=(7, HEAD_DIM)).astype("float32")
    one_by_one = [rotated(x[m : m + 1], np.array([m]), layout) for m in range(len(x))]
    together = numpy(rotated(x, np.arange(len(x)), layout))
    # the same products and sums, which a compiler may fuse otherwise
    np.testing.assert_allclose(np.concatenate([*map(numpy, one_by_one)]), together, atol=1e-6)


@pytest.mark.parametrize("layout", rotary.LAYOUTS)
def test_norms_are_kept(rng, layout):
    x = rng.normal(size=(5, HEAD_DIM)).astype("float32")
    result = numpy(rotated(x, POSITIONS["large"][:5], layout))
    np.testing.assert_allclose(
        np.linalg.norm(result, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6
    )


@pytest.mark.parametrize("m, n", [(0, 5), (12, 3), (1.5, -0.25), (1_000_000, 999_990)])
def test_product_of_two_rotations_is_the_rotation_by_the_distance(m, n):
    """R_m^T R_n = R_{n - m}, as matrices: the rows are the rotated unit vectors."""
    unit = np.eye(16, dtype="float32")
    r_m, r_n, r_distance = (numpy(rotated(unit, np.full(16, p))).T for p in (m, n, n - m))
    np.testing.assert_allclose(r_m.T @ r_n, r_distance, atol=2e-6)


@pytest.mark.parametrize("shift", [1, 1000, 999_000, -77.5])
def test_shifting_all_positions_changes_no_score(rng, shift):
    query, key = rng.normal(size=(2, 20, HEAD_DIM)).astype("float32")
    positions = np.arange(20)

    def scores(positions):
        return numpy(rotated(query, positions)) @ numpy(rotated(key, positions)).T

    # a score is a sum of 64 products of size 1, each off by some 1e-6
    np.testing.assert_allclose(scores(positions + shift), scores(positions), atol=4e-5)


def test_layouts_are_permutations_of_each_other(rng):
    for head_dim in (2, 6, 64):
        to_half = rotary.interleaved_to_half(head_dim)
        back = rotary.half_to_interleaved(head_dim)
        np.testing.assert_array_equal(to_half[back], np.arange(head_dim))
        np.testing.assert_array_equal(back[to_half], np.arange(head_dim))
        x = rng.normal(size=(9, head_dim)).astype("float32")
        interleaved = numpy(rotated(x, np.arange(9) * 1.5, "interleaved"))
        half = numpy(rotated(x[:, to_half], np.arange(9) * 1.5, "half"))
        np.testing.assert_array_equal(interleaved[:, to_half], half)
    assert rotary.interleaved_to_half(8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("layout", rotary.LAYOUTS)
def test_inverse(rng, layout):
    x = rng.normal(size=(7, HEAD_DIM)).astype("float32")
    positions = POSITIONS["large"]
    tables = rotary.tables(positions, rotary.frequencies(HEAD_DIM))
    back = rotary.rotate_inverse(rotary.rotate(x, *tables, layout), *tables, layout)
    np.testing.assert_allclose(numpy(back), x, atol=2e-6)
    inverse = rotated(x, positions, layout, function=rotary.rotate_inverse)
    np.testing.assert_allclose(numpy(inverse), exactly(x, -positions, layout), atol=5e-6)


@pytest.mark.parametrize("layout", rotary.LAYOUTS)
def test_gradient_is_the_inverse_rotation(rng, layout):
    """A rotation's Jacobian is R, so the gradient of <c, R x> is R^T c."""
    x, cotangent = rng.normal(size=(2, 7, HEAD_DIM)).astype("float32")
    positions = POSITIONS["large"]
    _, (gradient,) = gradients(lambda x: rotated(x, positions, layout), [x], cotangent)
    np.testing.assert_allclose(gradient, exactly(cotangent, -positions, layout), atol=5e-6)


@pytest.mark.parametrize("head_dim, base", [(128, 10000.0), (64, 10000.0), (6, 500.0)])
def test_decay_bound(head_dim, base):
    """Section 3.4.3 in loops: the mean of |S_i|, i = 1 … d/2."""
    distances = [0, 1, 2.5, 17, 100, 1000, 123_456]
    expected = []
    for distance in distances:
        total, s = 0.0, 0j
        for i in range(head_dim // 2):
            s += cmath.exp(1j * distance * base ** (-2 * i / head_dim))  # S_{i + 1}
            total += abs(s)
        expected.append(total / (head_dim / 2))
    bound = rotary.decay_bound(distances, rotary.frequencies(head_dim, base))
    np.testing.assert_allclose(bound, expected, rtol=1e-9)
    assert bound[0] == (head_dim / 2 + 1) / 2  # at distance 0, S_i = i


def test_decay_bound_holds(rng):
    """Equation 37: no product of a rotated query and a rotated key is above it."""
    theta = rotary.frequencies(16)
    for distance in (0, 3, 50, 700):
        query, key = rng.normal(size=(2, 100, 16))
        scores = (query * exactly(key, np.full(100, distance), "interleaved")).sum(-1)
        pairs = (query[:, ::2] + 1j * query[:, 1::2]) * (key[:, ::2] - 1j * key[:, 1::2])
        steps = np.abs(np.diff(pairs, axis=-1, append=0)).max(-1)
        assert (np.abs(scores) <= steps * 8 * rotary.decay_bound(distance, theta)).all()


@pytest.mark.parametrize("head_dim", [0, -2, 3, 4.0, "8"])
def test_head_dim_must_be_even_and_positive(head_dim):
    for function in (rotary.frequencies, rotary.interleaved_to_half, rotary.half_to_interleaved):
        with pytest.raises(
            ValueError, match=r"`head_dim` must be a positive even integer.*Received"
        ):
            function(head_dim)


@pytest.mark.parametrize("base", [0, -1.0, float("nan"), float("inf")])
def test_base_must_be_positive_and_finite(base):
    with pytest.raises(ValueError, match="`base` must be positive and finite. Received: base="):
        rotary.frequencies(4, base)


def test_unknown_layout():
    with pytest.raises(ValueError, match="`layout` must be one of .* Received: layout='neox'"):
        rotated(np.ones((1, 4), "float32"), np.arange(1), "neox")
