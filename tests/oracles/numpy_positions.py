"""The position schemes of equations 3 to 10 in float64 NumPy, as loops over queries and keys."""

import math

import numpy as np

from tests.oracles.numpy_roformer import softmax


def clip(distance, max_distance):
    return min(max(round(float(distance)), -max_distance), max_distance)


def sinusoid(position, size):
    """Equation 4: sines at even features, cosines at odd ones."""
    vector = np.zeros(size)
    for t in range(size // 2):
        angle = float(position) / 10000.0 ** (2 * t / size)
        vector[2 * t], vector[2 * t + 1] = math.sin(angle), math.cos(angle)
    return vector


def nezha_vector(distance, size, max_distance):
    """NEZHA, equation 4: the sinusoid of the clipped distance, counted from 0."""
    return sinusoid(clip(distance, max_distance) + max_distance, size)


def t5_bucket(distance, num_buckets, max_distance, bidirectional=True):
    """`_relative_position_bucket` of T5 for one distance `key - query`."""
    bucket, distance = 0, round(float(distance))
    if bidirectional:
        num_buckets //= 2
        bucket = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = -min(distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return bucket + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # rounding of the logarithms must not move an exact integer
    large = exact + math.floor(share * (num_buckets - exact) + 1e-9)
    return bucket + min(large, num_buckets - 1)


def by_pairs(positions, number):
    """Applies `number(query position, key position)` to all pairs: `(batch, query, key, ...)`."""
    return np.array([[[number(m, n) for n in row] for m in row] for row in positions])


def counted(x, position_ids):
    """Returns the given positions, or 0, 1, 2, …"""
    return np.arange(x.shape[1])[None] if position_ids is None else position_ids


def t5_bias(table, positions, **options):
    """Equation 8's `b`: `(batch, head, query, key)`."""
    bias = by_pairs(positions, lambda m, n: table[t5_bucket(n - m, len(table), **options)])
    return bias.transpose(0, 3, 1, 2)


def tupe_bias(weights, positions, heads, bidirectional=True, untie_cls=False):
    """Equation 9 without the first term, divided as in TUPE: `(batch, head, query, key)`."""
    table = weights["learned_position/position_embedding/embeddings"]
    size = table.shape[1] // heads
    queries = table @ weights["query_dense/kernel"]
    keys = table @ weights["key_dense/kernel"]

    def score(m, n, head):
        part = slice(head * size, (head + 1) * size)
        return queries[int(m)][part] @ keys[int(n)][part] / math.sqrt(2 * size)

    bias = by_pairs(positions, lambda m, n: [score(m, n, h) for h in range(heads)])
    bias = bias.transpose(0, 3, 1, 2)
    if "t5_relative_bias/relative_bias" in weights:
        table = weights["t5_relative_bias/relative_bias"]
        bias = bias + t5_bias(table, positions, max_distance=128, bidirectional=bidirectional)
    if untie_cls:
        for b, row in enumerate(positions):
            for i, m in enumerate(row):
                for j, n in enumerate(row):
                    if m == 0:
                        bias[b, :, i, j] = 0
                    elif n == 0:
                        bias[b, :, i, j] = weights["cls_bias"][:, 0, 0]
    return bias


class NoScheme:
    """No position scheme: attention of the tokens alone. Subclasses change scores and values.

    Args:
        weights: The scheme's weights, by path.
        qkv: Function, the block's projection of vectors to queries, keys and values, concatenated.
        heads: Number of heads.
        positions: `(batch, length)`.
    """

    terms = 1

    def __init__(self, weights, qkv, heads, positions):
        self.weights, self.qkv, self.heads, self.positions = weights, qkv, heads, positions

    def distance(self, b, i, j):
        """Key position minus query position."""
        row = self.positions[b % len(self.positions)]
        return row[j] - row[i]

    def score(self, b, h, i, j, q, k):
        """Returns the score before division by `sqrt(terms * head_dim)`."""
        return q @ k

    def added(self, b, h, i, j):
        """Returns what is added to the score after the division."""
        return 0.0

    def value(self, b, i, j, v):
        return v


class Relative(NoScheme):
    """Equation 5, with the vectors after the projections."""

    def vector(self, b, i, j, name):
        table = self.weights.get(name)
        if table is None:
            return 0.0
        max_distance = len(table) // 2
        return table[clip(self.distance(b, i, j), max_distance) + max_distance]

    def score(self, b, h, i, j, q, k):
        return q @ (k + self.vector(b, i, j, "key_table"))

    def value(self, b, i, j, v):
        return v + self.vector(b, i, j, "value_table")


class Nezha(NoScheme):
    """Equation 5 with sinusoids instead of tables."""

    max_distance = 2

    def vector(self, b, i, j, size):
        return nezha_vector(self.distance(b, i, j), size, self.max_distance)

    def score(self, b, h, i, j, q, k):
        return q @ (k + self.vector(b, i, j, len(k)))

    def value(self, b, i, j, v):
        return v + self.vector(b, i, j, len(v))


class TransformerXL(NoScheme):
    """Equation 7, with u and v of Transformer-XL."""

    def score(self, b, h, i, j, q, k):
        u, v = self.weights["content_bias"][h], self.weights["position_bias"][h]
        kernel = self.weights["kernel"]  # rows: all sines, then all cosines
        distance = sinusoid(-self.distance(b, i, j), len(kernel))  # query minus key
        distance = np.concatenate([distance[::2], distance[1::2]])
        projected = (distance @ kernel)[h * len(q) : (h + 1) * len(q)]
        return q @ k + q @ projected + u @ k + v @ projected


class T5(NoScheme):
    """Equation 8."""

    options = {"max_distance": 5}

    def added(self, b, h, i, j):
        table = self.weights["relative_bias"]
        return table[t5_bucket(self.distance(b, i, j), len(table), **self.options)][h]


class Tupe(NoScheme):
    """Equation 9."""

    terms = 2
    options = {}

    def added(self, b, h, i, j):
        if not hasattr(self, "bias"):
            self.bias = tupe_bias(self.weights, self.positions, self.heads, **self.options)
        return self.bias[b % len(self.bias), h, i, j]


class Deberta(NoScheme):
    """Equation 10."""

    terms = 3

    def score(self, b, h, i, j, q, k):
        table = self.weights["distance_table"]
        max_distance = len(table) // 2
        vector = table[clip(self.distance(b, i, j), max_distance) + max_distance]
        width = len(vector)
        query, key, _ = np.split(self.qkv(vector), 3)
        part = slice(h * width // self.heads, (h + 1) * width // self.heads)
        return q @ k + q @ key[part] + query[part] @ k


def attention(scheme, weights, x, heads, position_ids=None, attention_bias=None, **options):
    """Equation 2 with a scheme: `(batch, length, hidden_dim)`.

    Args:
        scheme: One of the classes above. `options` set its class attributes.
        weights: Weights of a `SelfAttention` by path, the scheme's under "position_scheme".
    """
    x = x.astype("float64")
    prefix = "position_scheme/"
    own = {p.removeprefix(prefix): w for p, w in weights.items() if p.startswith(prefix)}

    def qkv(vectors):
        return vectors @ weights["qkv/kernel"] + weights["qkv/bias"]

    scheme = type(scheme.__name__, (scheme,), options)(own, qkv, heads, counted(x, position_ids))
    queries, keys, values = np.split(qkv(x), 3, axis=-1)
    output = np.zeros_like(queries)
    batch, length, width = queries.shape
    for b in range(batch):
        for h in range(heads):
            part = slice(h * width // heads, (h + 1) * width // heads)
            q, k, v = queries[b, :, part], keys[b, :, part], values[b, :, part]
            for i in range(length):
                scores = np.zeros(length)
                for j in range(length):
                    score = scheme.score(b, h, i, j, q[i], k[j])
                    scores[j] = score / math.sqrt(scheme.terms * len(q[i]))
                    scores[j] += scheme.added(b, h, i, j)
                if attention_bias is not None:
                    bias = attention_bias[b, 0]
                    scores[bias[i % len(bias)] < 0] = -np.inf
                share = softmax(scores)
                for j in range(length):
                    output[b, i, part] += share[j] * scheme.value(b, i, j, v[j])
    return output @ weights["output_dense/kernel"] + weights["output_dense/bias"]
