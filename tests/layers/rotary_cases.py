"""Rotary positions in every form, in float64 NumPy: loops over rows, heads, positions and pairs."""

import math

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case, rotary_context, rotary_tables
from tests.oracles import numpy_roformer as oracle

HEADS, HEAD_DIM, WIDTH, LENGTH, TRAINED = 2, 8, 16, 6, 4
X = np.random.default_rng(2021_0420).normal(size=(2, LENGTH, WIDTH)).astype("float32")
IDS = np.zeros((2, LENGTH), "int32")
PADDING = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], "int32")
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [-3.5, 0.25, 2, 7, 8, 8]], "float32")
PADDED = np.where(PADDING[:, None, None] == 1, 0, -1e9).astype("float32")
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "truncate": False,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": TRAINED}


def frequencies(dim, base=10000.0):
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def yarn_frequencies(dim):
    """Section 3.2, with the ramp between the pairs that turn 8 times and once in 64 positions."""
    ends = [dim * math.log(64 / (2 * math.pi * t)) / (2 * math.log(10000)) for t in (8, 1)]
    ends = [max(ends[0], 0), min(ends[1], dim - 1)]
    thetas = []
    for i, theta in enumerate(frequencies(dim)):
        slow = min(max((i - ends[0]) / (ends[1] - ends[0]), 0), 1)
        thetas.append(slow * theta / 4 + (1 - slow) * theta)
    return thetas


def rotated(vector, position, theta):
    """R_m x, equation 34, of the first features, in pairs (i, i + k); the others stay."""
    result = np.array(vector, "float64")
    for i, frequency in enumerate(theta):
        a, b = vector[i], vector[i + len(theta)]
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        result[i], result[i + len(theta)] = a * cos - b * sin, a * sin + b * cos
    return result


def tables_oracle(theta_of_row):
    """`theta_of_row(weights, positions of a row, its padding mask)` -> frequencies."""

    def make(weights, token_ids, position_ids=None, padding_mask=None):
        positions = np.arange(LENGTH)[None] if position_ids is None else position_ids
        if padding_mask is not None:
            positions = np.broadcast_to(positions, token_ids.shape)
        masks = [None] * len(positions) if padding_mask is None else padding_mask
        rows = [
            rotary_tables(row[None], HEAD_DIM, theta_of_row(weights, row, mask))
            for row, mask in zip(positions, masks)
        ]
        return tuple(np.concatenate(part) for part in zip(*rows))

    return make


def dynamic_frequencies(weights, row, mask):
    real = [position for position, is_real in zip(row, mask) if is_real]
    length = max(real) - min(real) + 1
    base = 10000.0
    if length > TRAINED:
        base *= (2 * length / TRAINED - 1) ** (HEAD_DIM / (HEAD_DIM - 2))
    return frequencies(HEAD_DIM, base)


def attention_oracle(theta, factor=1.0, on_values=False):
    """Equation 2 with q_m R_{n - m} k_n, and R_{n - m} v_n if `on_values`."""

    def attend(weights, x, attention_bias, position):
        qkv = x.astype("float64") @ weights["qkv/kernel"] + weights["qkv/bias"]
        output = np.zeros(x.shape)
        for b in range(len(x)):
            for h in range(HEADS):
                q, k, v = (
                    qkv[b, :, n * WIDTH + h * HEAD_DIM : n * WIDTH + (h + 1) * HEAD_DIM]
                    for n in range(3)
                )
                for i, m in enumerate(POSITIONS[b]):
                    scores = np.zeros(LENGTH)
                    for j, n in enumerate(POSITIONS[b]):
                        key = rotated(k[j], n - m, theta)
                        key[: 2 * len(theta)] *= factor**2
                        scores[j] = q[i] @ key / math.sqrt(HEAD_DIM) + attention_bias[b, 0, 0, j]
                    share = oracle.softmax(scores)
                    for j, n in enumerate(POSITIONS[b]):
                        value = rotated(v[j], n - m, theta) if on_values else v[j]
                        output[b, i, h * HEAD_DIM : (h + 1) * HEAD_DIM] += share[j] * value
        return output @ weights["output_dense/kernel"] + weights["output_dense/bias"]

    return attend


def rotary(**options):
    return lambda **kwargs: layers.RotaryPosition(HEAD_DIM, **options, **kwargs)


def attention(**options):
    scheme = layers.RotaryPosition(HEAD_DIM, **options)
    return lambda **kwargs: layers.SelfAttention(HEADS, HEAD_DIM, position_scheme=scheme, **kwargs)


def scheme_case(name, options, theta_of_row, **inputs):
    return Case(
        name,
        rotary(**options),
        {"token_ids": IDS, **inputs},
        tables_oracle(theta_of_row),
        output_dtype="float32",
    )


def attention_case(name, options, theta, **of_oracle):
    return Case(
        name,
        attention(**options),
        {"x": X, "attention_bias": PADDED, "position": rotary_context(POSITIONS, HEAD_DIM, theta)},
        attention_oracle(theta, **of_oracle),
        noise=2e-6,
    )


PARTIAL, WHOLE = frequencies(4), frequencies(HEAD_DIM)
YARN_THETA = yarn_frequencies(HEAD_DIM)
YARN_FACTOR = 0.1 * math.log(4) + 1

ROTARY_CASES = [
    scheme_case("rotary_partial", {"rotary_dim": 4}, lambda *_: PARTIAL, position_ids=POSITIONS),
    scheme_case(
        "rotary_learned",
        {"learned": True},
        lambda weights, *_: weights["theta"],
        position_ids=POSITIONS,
    ),
    scheme_case(
        "rotary_learned_partial_linear",
        {"learned": True, "rotary_dim": 4, "rope_scaling": {"type": "linear", "factor": 3}},
        lambda weights, *_: weights["theta"] / 3,
    ),
    scheme_case(
        "rotary_yarn", {"rope_scaling": YARN}, lambda *_: YARN_THETA, position_ids=POSITIONS
    ),
    scheme_case(
        "rotary_dynamic", {"rope_scaling": DYNAMIC}, dynamic_frequencies, padding_mask=PADDING
    ),
    scheme_case(
        "rotary_dynamic_given",
        {"rope_scaling": DYNAMIC},
        dynamic_frequencies,
        position_ids=POSITIONS,
        padding_mask=PADDING,
    ),
    attention_case("attention_rotary_partial", {"rotary_dim": 4}, PARTIAL),
    attention_case("attention_rotary_on_values", {"on_values": True}, WHOLE, on_values=True),
    attention_case(
        "attention_rotary_partial_on_values_yarn",
        {"rotary_dim": 4, "on_values": True, "rope_scaling": YARN},
        yarn_frequencies(4),
        factor=YARN_FACTOR,
        on_values=True,
    ),
    attention_case("attention_rotary_yarn", {"rope_scaling": YARN}, YARN_THETA, factor=YARN_FACTOR),
]
