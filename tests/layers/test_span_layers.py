"""Span layers, their losses and the conditional random field, beside bert4keras and NumPy."""

import itertools
import sys

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import (
    ConditionalRandomField,
    ConditionalRandomFieldLoss,
    EfficientGlobalPointer,
    GlobalPointer,
    MultilabelSpanCrossentropy,
    SpanCrossentropy,
    multilabel_categorical_crossentropy,
    sparse_multilabel_categorical_crossentropy,
    tag_probabilities,
    viterbi_decode,
)
from tests.layers.harness import built, compiled, gradients, numpy
from tests.processes import run_program

BATCH, LENGTH, WIDTH, TYPES = 3, 9, 16, 4
MASK = np.arange(LENGTH) < np.array([[9], [6], [1]])
INFINITY = float("inf")


def log_sum(x):
    """log(1 + sum of e^x) in float64."""
    x = np.concatenate([[0.0], np.ravel(x)])
    return np.log(np.exp(x - x.max()).sum()) + x.max()


def expected_loss(scores, is_true):
    """The multilabel loss of one example: 1-D scores and booleans."""
    scores = np.asarray(scores, "float64")
    finite = scores > -INFINITY
    return log_sum(scores[finite & ~is_true]) + log_sum(-scores[finite & is_true])


@pytest.mark.oracle
@pytest.mark.parametrize("use_rope", [True, False])
@pytest.mark.parametrize("cls", [GlobalPointer, EfficientGlobalPointer])
def test_spans_equal_bert4keras(original, rng, cls, use_rope):
    """Weights of bert4keras give its scores; the same spans are masked."""
    x = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    for use_bias, tril_mask, mask in itertools.product([True, False], [True, False], [MASK, None]):
        layer = cls(TYPES, 8, use_rope=use_rope, use_bias=use_bias, tril_mask=tril_mask)
        built(layer, x.shape)
        arguments = {
            "heads": TYPES,
            "head_size": 8,
            "RoPE": use_rope,
            "use_bias": use_bias,
            "tril_mask": tril_mask,
        }
        want = original.span_scores(cls.__name__, arguments, x, mask, layer.get_weights())
        found = numpy(layer(x, padding_mask=mask))
        # float32 rounds the sums of 16 products, and bert4keras its angles
        np.testing.assert_allclose(found, want, atol=1e-5)


def test_spans_depend_on_distance_and_not_on_padding(rng):
    x = np.tile(rng.normal(size=(1, 1, WIDTH)), (1, LENGTH, 1)).astype("float32")
    for cls in (GlobalPointer, EfficientGlobalPointer):
        layer = built(cls(TYPES, 8), x.shape)
        scores = numpy(layer(x))
        for distance in range(LENGTH):
            same = np.diagonal(scores, distance, axis1=2, axis2=3)
            np.testing.assert_allclose(
                same, np.repeat(same[..., :1], same.shape[-1], -1), atol=1e-6
            )
        padded = np.concatenate([x, np.ones_like(x)], axis=1)
        mask = np.arange(2 * LENGTH)[None] < LENGTH
        found = numpy(layer(padded, padding_mask=mask))
        assert (found[:, :, LENGTH:] == -INFINITY).all()
        assert (found[:, :, :, LENGTH:] == -INFINITY).all()
        np.testing.assert_allclose(found[:, :, :LENGTH, :LENGTH], scores, atol=1e-6)


def test_keras_mask_is_used():
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(5, WIDTH, mask_zero=True)(inputs)
    model = keras.Model(inputs, GlobalPointer(1, 8)(x))
    scores = model.predict(np.array([[1, 2, 0, 0, 0, 0, 0, 0, 0]]), verbose=0)
    assert np.isfinite(scores).sum() == 3


class Named(EfficientGlobalPointer):
    def __init__(self, *args, scale=1.0, **options):
        super().__init__(*args, **options)
        self._scale = scale


def test_a_subclass_keeps_all_arguments():
    config = Named(num_heads=2, head_dim=8, scale=2.0).get_config()
    again = Named.from_config(config)
    assert again._scale == 2.0 and again.head_dim == 8 and again.get_config() == config
    assert Named.from_config(Named(2, 8, False).get_config()).use_rope is False


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="`head_dim` must be even. Received: head_dim=7"):
        GlobalPointer(2, 7)
    with pytest.raises(ValueError, match="num_heads=0"):
        EfficientGlobalPointer(0, 8)
    with pytest.raises(ValueError, match="lr_multiplier=-1"):
        ConditionalRandomField(-1)


# -- losses


def scores_and_labels(rng, scale):
    scores = (scale * rng.normal(size=(5, 40))).astype("float32")
    scores[:, ::7] = -INFINITY
    labels = np.zeros((5, 40), bool)
    for row in range(4):  # the last has no true class
        finite = np.flatnonzero(np.isfinite(scores[row, 1:])) + 1
        labels[row, rng.choice(finite, row + 1, replace=False)] = True
    return scores, labels


def as_list(labels):
    """The true classes of each row, padded with 0."""
    lists = [np.flatnonzero(row) for row in labels]
    return np.array([[*found, *[0] * (4 - len(found))] for found in lists])


@pytest.mark.oracle
def test_multilabel_losses_equal_bert4keras(original, rng):
    scores, labels = scores_and_labels(rng, 3)
    name = "multilabel_categorical_crossentropy"
    want = original.multilabel_loss(name, labels.astype("float32"), scores)
    np.testing.assert_allclose(
        multilabel_categorical_crossentropy(labels, scores), want, rtol=1e-6, atol=1e-6
    )
    finite = np.where(np.isfinite(scores), scores, -50).astype("float32")
    want = original.multilabel_loss(f"sparse_{name}", as_list(labels), finite, mask_zero=True)
    nan = np.full_like(finite, np.nan)
    assert np.isnan(multilabel_categorical_crossentropy(labels, nan)).all()
    found = sparse_multilabel_categorical_crossentropy(as_list(labels), finite, mask_zero=True)
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=1e-5)  # its epsilon is 1e-7
    one = np.array([[3], [5], [7], [9], [11]])
    want = original.multilabel_loss(f"sparse_{name}", one, finite)
    found = sparse_multilabel_categorical_crossentropy(one, finite)
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=1e-5)
    true = np.take_along_axis(finite, one, 1)[:, 0]
    more = np.log1p(2 * np.exp(-true)) - np.log1p(np.exp(-true))
    twice = sparse_multilabel_categorical_crossentropy(np.repeat(one, 2, 1), finite)
    np.testing.assert_allclose(twice, found + more, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 3, 100, 1e4])
def test_multilabel_losses(rng, scale):
    """Dense, sparse and the float64 formula agree; gradients are finite, whatever the scores."""
    scores, labels = scores_and_labels(rng, scale)
    scores[:, 0] = -INFINITY  # the sparse form takes 0 for padding
    expected = [expected_loss(row, true) for row, true in zip(scores, labels, strict=True)]
    dense = multilabel_categorical_crossentropy(labels, scores)
    sparse = sparse_multilabel_categorical_crossentropy(as_list(labels), scores, mask_zero=True)
    np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sparse, expected, rtol=1e-6, atol=1e-6)

    def softmax(x):
        powers = np.exp(x - max(0, x.max(initial=0)))
        return powers / (powers.sum() + np.exp(-max(0, x.max(initial=0))))

    want = np.zeros_like(scores, "float64")
    for row, x, true in zip(want, scores.astype("float64"), labels, strict=True):
        false = ~true & np.isfinite(x)
        row[false] = softmax(x[false])
        row[true] = -softmax(-x[true])
    for loss, y_true in (
        (multilabel_categorical_crossentropy, labels.astype("float32")),
        (
            lambda y, s: sparse_multilabel_categorical_crossentropy(y, s, mask_zero=True),
            as_list(labels),
        ),
    ):
        _, (found,) = gradients(lambda s, f=loss, y=y_true: f(y, s), [scores], np.ones(5))
        np.testing.assert_allclose(found, want, atol=2e-6)


def test_probabilities_as_labels():
    """A label of 0.5 counts half on both sides."""
    loss = multilabel_categorical_crossentropy(np.float32([[0.5]]), np.float32([[2.0]]))
    expected = np.log(1 + 0.5 * np.exp(2)) + np.log(1 + 0.5 * np.exp(-2))
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_span_losses(rng):
    scores = (3 * rng.normal(size=(2, 2, 5, 5))).astype("float32")
    scores[..., ~np.triu(np.ones((5, 5), bool))] = -INFINITY
    spans = np.full((2, 3, 3), -1)
    spans[0, 0], spans[0, 2], spans[1, 1] = (0, 0, 0), (1, 3, 0), (2, 2, 1)
    expected = 0
    for b, t in np.ndindex(2, 2):
        true = np.zeros((5, 5), bool)
        for start, end, kind in spans[b]:
            true[start, end] |= kind == t
        expected += expected_loss(scores[b, t].ravel(), true.ravel()) / 4
    loss = MultilabelSpanCrossentropy()
    np.testing.assert_allclose(loss(spans, scores), expected, rtol=1e-6)
    np.testing.assert_allclose(compiled(loss)(spans, scores), expected, rtol=1e-6)

    true, scores = np.array([[1, 3], [0, 0]]), scores[:, 0].astype("float64")
    of_spans = [np.log(np.exp(s).sum()) - s[m, n] for s, (m, n) in zip(scores, true, strict=True)]
    loss = SpanCrossentropy()
    np.testing.assert_allclose(loss(true, scores.astype("float32")), np.mean(of_spans), rtol=1e-6)
    ends = rng.normal(size=(2, 5, 2)).astype("float32")
    pairs = ends[:, :, None, 0] + ends[:, None, :, 1]  # the same as all their sums
    np.testing.assert_allclose(loss(true, ends), loss(true, pairs), rtol=1e-6)


def test_losses_in_mixed_bfloat16(rng):
    """Scores and losses are float32: a span of 512 tokens × 10 types has finite gradients."""
    layer = EfficientGlobalPointer(10, 16, dtype="mixed_bfloat16")
    x = (30 * rng.normal(size=(1, 128, WIDTH))).astype("float32")
    built(layer, x.shape)
    spans = np.array([[[2, 9, 3], [-1, -1, -1]]])

    def loss(x):
        return MultilabelSpanCrossentropy()(spans, layer(x))

    (value,), found = gradients(loss, [x], np.ones(()), layer)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in found)
    assert keras.backend.standardize_dtype(layer(x).dtype) == "float32"


# -- conditional random field


def paths(length, tags):
    return itertools.product(range(tags), repeat=length)


def path_score(emissions, transitions, path):
    pairs = zip(path[:-1], path[1:], strict=True)
    return emissions[range(len(path)), path].sum() + sum(transitions[i, j] for i, j in pairs)


@pytest.mark.parametrize("factor", [1, 100])
def test_field_equals_all_paths(rng, factor):
    """Loss and best tags equal those of a search through all sequences of tags of real tokens."""
    mask = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 1, 0, 1], [0, 0, 1, 0, 1]]
    mask = np.array(mask, "bool")
    emissions = (2 * rng.normal(size=(*mask.shape, 3))).astype("float32")
    weights = (rng.normal(size=(3, 3)) / factor).astype("float32")
    tags = np.where(mask, rng.integers(0, 3, mask.shape), -1)
    layer = ConditionalRandomField(factor)
    layer.build(emissions.shape)
    layer.set_weights([weights])
    scores = ops.stop_gradient(layer(emissions, padding_mask=mask))
    losses, best, shares = [], [], []
    for row, real, true in zip(emissions.astype("float64"), mask, tags, strict=True):
        found = {
            path: path_score(row[real], factor * weights.astype("float64"), path)
            for path in paths(real.sum(), 3)
        }
        values = np.array(list(found.values()))
        total = np.log(np.exp(values - values.max()).sum()) + values.max()
        losses.append(total - found[tuple(true[real])])
        best.append(max(found, key=found.get))
        shares.append(np.zeros((real.sum(), 3)))
        for path, value in found.items():
            shares[-1][range(len(path)), path] += np.exp(value - total)
    loss = ConditionalRandomFieldLoss(reduction=None)
    np.testing.assert_allclose(numpy(loss(tags, scores)), losses, rtol=1e-5, atol=1e-5)
    # tags of -1 suffice where the first token is real
    np.testing.assert_allclose(numpy(loss(tags, layer(emissions)))[:4], losses[:4], rtol=1e-5)
    np.testing.assert_allclose(
        numpy(tag_probabilities(scores))[mask], np.concatenate(shares), atol=2e-6
    )
    decoded = numpy(viterbi_decode(scores))
    for row, real, path in zip(decoded, mask, best, strict=True):
        # padding repeats the tag before
        assert row.tolist() == [(0, *path)[count] for count in np.cumsum(real)]
    np.testing.assert_array_equal(numpy(compiled(viterbi_decode)(scores)), decoded)

    def loss_of(x):
        return loss(tags, layer(x, padding_mask=mask))

    _, (gradient, _) = gradients(loss_of, [emissions], np.ones(5), layer)
    wanted = np.concatenate(shares) - np.eye(3)[tags[mask]]
    np.testing.assert_allclose(gradient[mask], wanted, atol=2e-6)
    assert (gradient[~mask] == 0).all()


@pytest.mark.oracle
@pytest.mark.parametrize("factor", [1, 100])
def test_field_equals_bert4keras(original, rng, factor):
    tags_count = 5
    x = rng.normal(size=(BATCH, LENGTH, tags_count)).astype("float32")
    weights = (rng.normal(size=(tags_count, tags_count)) / factor).astype("float32")
    tags = rng.integers(0, tags_count, (BATCH, LENGTH)).astype("int32")
    want, (of_x, of_weights), best = original.conditional_random_field(
        x, MASK, weights, factor, tags
    )
    layer = ConditionalRandomField(factor)
    layer.build(x.shape)
    layer.set_weights([weights])
    y_true = np.where(MASK, tags, -1)

    def loss(x):
        return ConditionalRandomFieldLoss(reduction=None)(y_true, layer(x, padding_mask=MASK))

    (found,), (x_gradient, weights_gradient) = gradients(loss, [x], np.ones(BATCH), layer)
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(x_gradient, of_x, atol=2e-6)
    np.testing.assert_allclose(weights_gradient, of_weights, rtol=5e-6, atol=2e-6 * factor)

    scores = numpy(layer(x, padding_mask=MASK))
    scores[:, 0, :, 1:] = -INFINITY  # ViterbiDecoder(starts=[0], ends=[0])
    for row, length in zip(scores, MASK.sum(1), strict=True):
        row[length - 1, :, 1:] = -INFINITY
    decoded = numpy(viterbi_decode(scores))
    for row, path in zip(decoded, best, strict=True):
        np.testing.assert_array_equal(row[: len(path)], path)


@pytest.mark.tensorflow("PyTorch cannot scan empty tensors")
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_texts_and_no_tokens(shape):
    scores = np.zeros((*shape, 2, 2), "float32")
    assert viterbi_decode(scores).shape == shape
    assert tag_probabilities(scores).shape == (*shape, 2)
    loss = ConditionalRandomFieldLoss(reduction=None)(np.zeros(shape, "int32"), scores)
    assert numpy(loss).tolist() == [0] * shape[0]


def test_forbidden_tags_are_never_chosen(rng):
    layer = ConditionalRandomField()
    scores = numpy(layer(rng.normal(size=(4, 7, 3)).astype("float32"))).copy()
    scores[:, 1:, 0, 2] = -INFINITY
    tags = numpy(viterbi_decode(ops.convert_to_tensor(scores)))
    assert not ((tags[:, :-1] == 0) & (tags[:, 1:] == 2)).any()


# The peak of `getrusage` is no less than that of the process that started this one: a child takes
# it over. `benchmarks.memory` reads that of the program alone.
MEMORY = """
import keras, numpy as np
from benchmarks.memory import peak
from roformer_tf.layers import GlobalPointer, MultilabelSpanCrossentropy
inputs = keras.Input((512, 768))
model = keras.Model(inputs, GlobalPointer(10, 64)(inputs))
model.compile(keras.optimizers.SGD(0.01), MultilabelSpanCrossentropy(), jit_compile=False)
x = np.random.default_rng(0).normal(size=(16, 512, 768)).astype("float32")
spans = np.array([[[3, 5, 0], [7, 9, 4]]] * 16)
for _ in range(2):
    assert np.isfinite(model.train_on_batch(x, spans))
print(peak() / 1024)
"""


@pytest.mark.slow
@pytest.mark.tensorflow("memory of TensorFlow")
def test_training_takes_less_than_8_gb(repository):
    """A step of 16 texts of 512 tokens with 10 types, the features of a base model given."""
    assert float(run_program(sys.executable, "-c", MEMORY, cwd=repository).stdout) < 8
