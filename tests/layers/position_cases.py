"""The position schemes of the paper's baselines, in float64 NumPy from their equations."""

from functools import partial

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case
from tests.layers.positioned_attention import positioned
from tests.oracles import numpy_positions as oracle

HEADS, HEAD_DIM, WIDTH, LENGTH = 2, 8, 16, 6
X = np.random.default_rng(1909_00204).normal(size=(2, LENGTH, WIDTH)).astype("float32")
IDS = np.zeros((2, LENGTH), "int32")
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 0, 1, 1, 7]], "int32")
FRACTIONS = np.array([[0, 0.5, 1, 1000, 1000.25, 4], [-3, 4, 9.5, 1, 1, 7]], "float32")
PADDED = np.where([[[[1, 1, 1, 1, 1, 0]]], [[[1] * 6]]], 0, -1e9).astype("float32")
CAUSAL = np.where(np.tri(LENGTH)[None, None], PADDED, -1e9).astype("float32")
MASKS = {"padded": PADDED, "causal": CAUSAL}

# scheme, its oracle, class attributes of the oracle
SCHEMES = {
    "relative": (partial(layers.RelativePosition, HEAD_DIM, 2), oracle.Relative, {}),
    # distances that do not occur
    "relative_far": (partial(layers.RelativePosition, HEAD_DIM, 9), oracle.Relative, {}),
    "relative_on_keys": (
        partial(layers.RelativePosition, HEAD_DIM, 2, on_values=False),
        oracle.Relative,
        {},
    ),
    "nezha": (partial(layers.SinusoidalRelativePosition, HEAD_DIM, 2), oracle.Nezha, {}),
    "transformer_xl": (
        partial(layers.TransformerXLPosition, HEADS, HEAD_DIM),
        oracle.TransformerXL,
        {},
    ),
    "t5": (partial(layers.T5RelativeBias, HEADS, 8, 5), oracle.T5, {}),
    "t5_causal": (
        partial(layers.T5RelativeBias, HEADS, 4, 5, bidirectional=False),
        oracle.T5,
        {"options": {"max_distance": 5, "bidirectional": False}},
    ),
    "tupe": (partial(layers.TupePosition, 9, HEADS, HEAD_DIM), oracle.Tupe, {}),
    "tupe_absolute": (
        partial(layers.TupePosition, 9, HEADS, HEAD_DIM, relative_bias=False),
        oracle.Tupe,
        {},
    ),
    "tupe_untied": (
        partial(layers.TupePosition, 9, HEADS, HEAD_DIM, untie_cls=True),
        oracle.Tupe,
        {"options": {"untie_cls": True}},
    ),
    "deberta": (partial(layers.DebertaPosition, WIDTH, 2), oracle.Deberta, {}),
}
# given positions; only a few, as each case is run in many ways
GIVEN = {
    "relative": POSITIONS,
    "nezha": POSITIONS,
    "transformer_xl": FRACTIONS,
    "t5": POSITIONS,
    "tupe_untied": POSITIONS,
    "deberta": POSITIONS,
}


def attention_oracle(scheme, options):
    def attend(weights, x, attention_bias, position_ids=None):
        weights = {path.removeprefix("attention/"): w for path, w in weights.items()}
        return oracle.attention(scheme, weights, x, HEADS, position_ids, attention_bias, **options)

    return attend


def attention_case(name, mask, positions=None):
    make, scheme, options = SCHEMES[name]
    inputs = {"x": X, "attention_bias": MASKS[mask]}
    if positions is not None:
        inputs["position_ids"] = positions
    kind = mask if positions is None else f"{mask}_given"
    return Case(
        f"attention_{name}_{kind}",
        positioned(make, HEADS, HEAD_DIM),
        inputs,
        attention_oracle(scheme, options),
        noise=4e-6,
        roundings=8,
    )


def counted(positions):
    return np.arange(LENGTH)[None] if positions is None else positions


def learned_oracle(weights, token_ids, position_ids=None):
    return weights["position_embedding/embeddings"][counted(position_ids)]


def sinusoidal_oracle(weights, token_ids, position_ids=None):
    positions = counted(position_ids)
    return np.array([[oracle.sinusoid(m, WIDTH) for m in row] for row in positions])


def rows_oracle(weights, token_ids, position_ids):
    return oracle.by_pairs(position_ids, lambda m, n: oracle.clip(n - m, 2) + 2)


def t5_oracle(weights, token_ids, position_ids=None):
    return oracle.t5_bias(weights["relative_bias"], counted(position_ids), max_distance=5)


def transformer_xl_oracle(weights, token_ids, position_ids=None):
    positions = position_ids
    if position_ids is None:
        positions = [np.arange(LENGTH - 1, -LENGTH, -1)]
    vectors = np.array([[oracle.sinusoid(m, WIDTH) for m in row] for row in positions])
    vectors = np.concatenate([vectors[..., ::2], vectors[..., 1::2]], axis=-1)
    return vectors[0] if position_ids is None else vectors


def context_cases(name, make, expected, positions, **options):
    """The context of a scheme, of counted and of given positions."""
    given = {"token_ids": IDS, "position_ids": positions}
    return [
        Case(name, make, {"token_ids": IDS}, expected, **options),
        Case(f"{name}_given", make, given, expected, **options),
    ]


POSITION_CASES = [
    *context_cases(
        "learned_position",
        partial(layers.LearnedPosition, 9, WIDTH),
        learned_oracle,
        POSITIONS,
        roundings=1,
    ),
    *context_cases(
        "sinusoidal_position",
        partial(layers.SinusoidalPosition, WIDTH),
        sinusoidal_oracle,
        FRACTIONS,
        roundings=1,
        noise=2e-6,  # of an angle
    ),
    Case(
        "relative_rows_given",
        SCHEMES["relative"][0],
        {"token_ids": IDS, "position_ids": POSITIONS},
        rows_oracle,
        output_dtype="int32",
    ),
    *context_cases("t5_bias", SCHEMES["t5"][0], t5_oracle, POSITIONS, output_dtype="float32"),
    *context_cases(
        "transformer_xl_position",
        SCHEMES["transformer_xl"][0],
        transformer_xl_oracle,
        FRACTIONS,
        output_dtype="float32",
        noise=2e-6,
    ),
    *(
        attention_case(name, "causal" if i % 2 or "causal" in name else "padded")
        for i, name in enumerate(SCHEMES)
    ),
    *(
        attention_case(name, "padded" if i % 2 else "causal", positions)
        for i, (name, positions) in enumerate(GIVEN.items())
    ),
]
