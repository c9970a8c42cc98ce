"""Linear attention in float64 NumPy, in loops straight from equations 17 to 19."""

from functools import partial

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case, rotary_context
from tests.oracles import numpy_roformer as oracle

HEADS, HEAD_DIM, WIDTH, FAVOR_FEATURES = 2, 8, 16, 12
_rng = np.random.default_rng(2006_16236)
X = _rng.normal(size=(2, 6, WIDTH)).astype("float32")
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [-3.5, 0.25, 7, 100, 101, 102]], "float32")
PADDED = np.where([[[[1, 1, 1, 1, 1, 0]]], [[[1] * 6]]], 0, -1e9).astype("float32")

MAPS = {
    "elu": layers.EluFeatureMap,
    "softmax": layers.SoftmaxFeatureMap,
    "softmax_normalized": partial(layers.SoftmaxFeatureMap, normalize_keys=True),
    "favor": partial(layers.FavorFeatureMap, FAVOR_FEATURES, seed=1),
    "favor_inputs": partial(layers.FavorFeatureMap, FAVOR_FEATURES, seed=1, rotate_inputs=True),
    "cosine": layers.CosineFeatureMap,
    "cosine_inputs": partial(layers.CosineFeatureMap, rotate_inputs=True),
}


def features_of(name, weights, query, key, visible):
    """Returns phi(q) and phi(k) of one head, and the number of features that are not rotated."""
    if name == "elu":
        return *(np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)), 0
    if name.startswith("softmax"):
        query, key = np.array([oracle.softmax(row) for row in query]), np.exp(key)
        if name == "softmax_normalized":
            key = np.where(visible[:, None], key, 0)
            key = key / key.sum(0)
        return query, key, 0
    if name.startswith("favor"):
        projection = weights["feature_map/projection"]

        def random_features(x):
            y = x / HEAD_DIM**0.25
            exponents = y @ projection.T - (y**2).sum(-1, keepdims=True) / 2
            return np.exp(exponents) / np.sqrt(len(projection))

        return random_features(query), random_features(key), 0
    ones = np.ones((len(query), 1))
    return (
        *(
            np.concatenate([ones, x / np.linalg.norm(x, axis=-1, keepdims=True)], -1)
            for x in (query, key)
        ),
        1,
    )


def rotation(position, size, unrotated=0):
    """R of equation 15 for pairs (i, i + size / 2), after some features that it leaves alone."""
    matrix = np.eye(unrotated + size)
    for i in range(size // 2):
        angle = position * 10000.0 ** (-2 * i / size)
        a, b = unrotated + i, unrotated + i + size // 2
        matrix[a, a] = matrix[b, b] = np.cos(angle)
        matrix[b, a] = np.sin(angle)
        matrix[a, b] = -matrix[b, a]
    return matrix


def linear_oracle(name, causal, rotary):
    """Equation 18, or 19 if `rotary`. Maps `..._inputs` rotate queries and keys first."""

    def attend(weights, x, attention_bias=None, position=None):
        batch, length, _ = x.shape
        qkv = x.astype("float64") @ weights["qkv/kernel"] + weights.get("qkv/bias", 0)
        output = np.zeros((batch, length, WIDTH))
        for b in range(batch):
            visible = np.ones(length, bool)
            if attention_bias is not None:
                visible = attention_bias[b, 0, 0] == 0
            for h in range(HEADS):
                query, key, value = (
                    qkv[b, :, n * WIDTH + h * HEAD_DIM : n * WIDTH + (h + 1) * HEAD_DIM]
                    for n in range(3)
                )
                if rotary and name.endswith("inputs"):
                    turns = [rotation(m, HEAD_DIM) for m in POSITIONS[b]]
                    query, key = (
                        np.array([r @ v for r, v in zip(turns, x, strict=True)])
                        for x in (query, key)
                    )
                query, key, unrotated = features_of(name, weights, query, key, visible)
                size = query.shape[1] - unrotated
                turns = [np.eye(query.shape[1])] * length
                if rotary and not name.endswith("inputs"):
                    turns = [rotation(m, size, unrotated) for m in POSITIONS[b]]
                for m in range(length):
                    numerator, denominator = np.zeros(HEAD_DIM), 0.0
                    for n in range(m + 1 if causal else length):
                        if visible[n]:
                            numerator += (turns[m] @ query[m]) @ (turns[n] @ key[n]) * value[n]
                            denominator += query[m] @ key[n]
                    output[b, m, h * HEAD_DIM : (h + 1) * HEAD_DIM] = numerator / denominator
        return output @ weights["output_dense/kernel"] + weights.get("output_dense/bias", 0)

    return attend


def linear(name, rotary=False, **options):
    """A `LinearAttention` with the map of this name."""
    feature_map = MAPS[name](name="feature_map")
    if rotary:
        options["position_scheme"] = layers.RotaryPosition(feature_map.rotated_dim(HEAD_DIM))
    return layers.LinearAttention(HEADS, HEAD_DIM, feature_map, **options)


def case(name, causal, rotary):
    inputs = {"x": X, "attention_bias": PADDED}
    if rotary:
        inputs["position"] = rotary_context(POSITIONS, MAPS[name]().rotated_dim(HEAD_DIM))
    # chunks that do not divide the length; and a bias in the projections or none, now and then
    options = {"causal": causal, "chunk_size": 4, "use_bias": name != "cosine"}
    return Case(
        f"linear_{name}{'_causal' * causal}{'_rotary' * rotary}",
        lambda **kwargs: linear(name, rotary, **options, **kwargs),
        inputs,
        linear_oracle(name, causal, rotary),
        # an exponential of size e^5 carries five times the relative noise of its exponent
        noise=1e-5 if name.startswith(("favor", "softmax")) else 3e-6,
        # and rounded queries and keys that of their rounding
        roundings=16 if name.startswith(("favor", "softmax")) else 8,
    )


# every map, both directions, with RoPE and without
LINEAR_CASES = [
    case(name, causal, rotary)
    for name in MAPS
    for causal in (False, True)
    for rotary in (False, True)
    if not (causal and name == "softmax_normalized")
    and not (name.endswith("inputs") and not rotary)
]

# those that `test_every_layer.py` takes through everything
TYPICAL_CASES = [
    case
    for case in LINEAR_CASES
    if case.name
    in {
        "linear_elu_rotary",
        "linear_softmax_causal_rotary",
        "linear_softmax_normalized",
        "linear_favor",
        "linear_favor_causal_rotary",
        "linear_cosine_causal",
    }
]
