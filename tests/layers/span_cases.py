"""Span layers and the conditional random field in float64 NumPy: loops over rows and spans."""

from functools import partial

import numpy as np

from roformer_tf import layers
from tests.layers.harness import Case
from tests.oracles.numpy_roformer import dense, rotary_interleaved

BATCH, LENGTH, WIDTH, HEADS, HEAD_DIM, TAGS = 2, 6, 16, 3, 8, 4
X = np.random.default_rng(8373).normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
EMISSIONS = np.random.default_rng(7196).normal(size=(BATCH, LENGTH, TAGS)).astype("float32")


def product(query, key, start, end, use_rope):
    if use_rope:
        pair = np.stack([query, key])[None, :, None]
        query, key = rotary_interleaved(pair, [start, end])[0, :, 0]
    return query @ key / len(query) ** 0.5


def span_oracle(use_rope=True, efficient=False):
    def scores(weights, x):
        outputs = np.zeros((BATCH, HEADS, LENGTH, LENGTH))
        for b, head, m, n in np.ndindex(outputs.shape):
            if efficient:
                z_start, z_end = (dense(x[b, i], weights, "p_dense") for i in (m, n))
                outputs[b, head, m, n] = (
                    product(z_start[::2], z_end[1::2], m, n, use_rope)
                    + dense(z_end, weights, "q_dense")[2 * head] / 2
                    + dense(z_start, weights, "q_dense")[2 * head + 1] / 2
                )
            else:
                query, key = (
                    dense(x[b, i], weights, "dense").reshape(HEADS, 2, HEAD_DIM)[head, part]
                    for part, i in enumerate((m, n))
                )
                outputs[b, head, m, n] = product(query, key, m, n, use_rope)
        return outputs

    return scores


def field_oracle(weights, x, factor=1):
    outputs = np.repeat(x[:, :, None].astype("float64"), TAGS, axis=2)
    outputs[:, 1:] += factor * weights["transitions"]
    return outputs


def pointer(cls, **options):
    return partial(cls, HEADS, HEAD_DIM, tril_mask=False, **options)


# Masked spans are minus infinity, for which `test_span_layers.py` is.
SPAN_CASES = [
    Case(name, make, {"x": X}, oracle, noise=2e-6, roundings=6, output_dtype="float32", rounds=True)
    for name, make, oracle in (
        ("global_pointer", pointer(layers.GlobalPointer), span_oracle()),
        (
            "global_pointer_without_rope",
            pointer(layers.GlobalPointer, use_rope=False, use_bias=False),
            span_oracle(use_rope=False),
        ),
        (
            "efficient_global_pointer",
            pointer(layers.EfficientGlobalPointer),
            span_oracle(efficient=True),
        ),
        (
            "efficient_global_pointer_without_rope",
            pointer(layers.EfficientGlobalPointer, use_rope=False, use_bias=False),
            span_oracle(use_rope=False, efficient=True),
        ),
    )
]
SPAN_CASES += [
    Case(
        f"conditional_random_field_{factor}",
        partial(layers.ConditionalRandomField, factor),
        {"x": EMISSIONS},
        partial(field_oracle, factor=factor),
        output_dtype="float32",
        noise=2e-6,
    )
    for factor in (1, 10)
]
