"""The position schemes of the paper's baselines, each in float64 NumPy straight from its equation."""

import math

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case
from tests.oracles import numpy_roformer as oracle

HEADS, HEAD_DIM, WIDTH, MAX_DISTANCE = 2, 8, 16, 2
X = np.random.default_rng(1909_00204).normal(size=(2, 6, WIDTH)).astype("float32")
IDS = np.zeros((2, 6), "int32")
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 0, 1, 1, 7]], "int32")
PADDED = np.where([[[[1, 1, 1, 1, 1, 0]]], [[[1] * 6]]], 0, -1e9).astype("float32")


def distance_vector(distance):
    """NEZHA, equation 4: sines at even and cosines at odd features of the clipped distance, counted from 0."""
    shifted = min(max(int(distance), -MAX_DISTANCE), MAX_DISTANCE) + MAX_DISTANCE
    vector = np.zeros(HEAD_DIM)
    for i in range(HEAD_DIM // 2):
        angle = shifted / 10000 ** (2 * i / HEAD_DIM)
        vector[2 * i], vector[2 * i + 1] = math.sin(angle), math.cos(angle)
    return vector


def relative_oracle(weights, token_ids, position_ids=None):
    positions = np.arange(token_ids.shape[1])[None] if position_ids is None else position_ids
    return np.array(
        [[[distance_vector(key - query) for key in row] for query in row] for row in positions]
    )


def nezha_oracle(weights, x, attention_bias, position):
    """Equation 5 of the RoFormer paper without the trained tables: (q_i k_j + q_i a_ij) / sqrt(d), then v_j + a_ij."""
    x = x.astype("float64")
    qkv = x @ weights["qkv/kernel"] + weights["qkv/bias"]
    output = np.zeros_like(x)
    for b in range(len(x)):
        vectors = np.asarray(position, "float64")[b % len(position)]
        for h in range(HEADS):
            q, k, v = (
                qkv[b, :, n * WIDTH + h * HEAD_DIM : n * WIDTH + (h + 1) * HEAD_DIM]
                for n in range(3)
            )
            for i in range(x.shape[1]):
                scores = np.array([q[i] @ (k[j] + vectors[i, j]) for j in range(x.shape[1])])
                scores = scores / math.sqrt(HEAD_DIM)
                scores[attention_bias[b, 0, 0] < 0] = -np.inf
                share = oracle.softmax(scores)
                output[b, i, h * HEAD_DIM : (h + 1) * HEAD_DIM] = sum(
                    share[j] * (v[j] + vectors[i, j]) for j in range(x.shape[1])
                )
    return output @ weights["output_dense/kernel"] + weights["output_dense/bias"]


def relative(**kwargs):
    return layers.SinusoidalRelativePosition(HEAD_DIM, MAX_DISTANCE, **kwargs)


def context(positions):
    return relative_oracle({}, IDS, positions).astype("float32")


POSITION_CASES = [
    Case(
        "learned_position",
        lambda **kwargs: layers.LearnedPosition(9, WIDTH, **kwargs),
        {"token_ids": IDS},
        lambda weights, token_ids: weights["position_embedding/embeddings"][None, :6],
        roundings=1,
    ),
    Case(
        "learned_position_given",
        lambda **kwargs: layers.LearnedPosition(9, WIDTH, **kwargs),
        {"token_ids": IDS, "position_ids": POSITIONS},
        lambda weights, token_ids, position_ids: weights["position_embedding/embeddings"][
            position_ids
        ],
        roundings=1,
    ),
    Case(
        "relative_position",
        relative,
        {"token_ids": IDS},
        relative_oracle,
        output_dtype="float32",
    ),
    Case(
        "relative_position_given",
        relative,
        {"token_ids": IDS, "position_ids": POSITIONS},
        relative_oracle,
        output_dtype="float32",
    ),
    *(
        Case(
            f"attention_relative_{name}",
            lambda **kwargs: layers.SelfAttention(
                HEADS, HEAD_DIM, position_scheme=relative(), **kwargs
            ),
            {"x": X, "attention_bias": PADDED, "position": context(positions)},
            nezha_oracle,
            noise=2e-6,
        )
        for name, positions in (("counted", None), ("given", POSITIONS))
    ),
]
