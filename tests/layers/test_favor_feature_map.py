"""FAVOR+: what it estimates and how well, and how its features are drawn."""

import keras
import numpy as np
import pytest

from roformer_tf.layers import EncoderBlock, FavorFeatureMap, LinearAttention
from tests.layers.harness import assert_equal, numpy

HEAD_DIM = 16
SHAPE = (None, 2, None, HEAD_DIM)


def qkv(rng, length=40, size=1.0):
    return [(size * rng.normal(size=(1, 2, length, HEAD_DIM))).astype("float32") for _ in range(3)]


def estimate(feature_map, query, key):
    """The similarities but for a factor of each query, as a matrix."""
    query, key, log_scale = (numpy(x).astype("float64") for x in feature_map(query, key))
    return query @ key.swapaxes(-1, -2) * np.exp(log_scale)[..., None, :]


def averaged(weights, value):
    return weights @ value / weights.sum(-1, keepdims=True)


def test_error_falls_with_the_root_of_the_number_of_features(rng):
    """Fits the log-log slope of the error of attention over 32 … 1024 features, ten draws each.

    The relative error of a similarity is exp(|q + k|^2 / (2 sqrt(d))) / sqrt(num_features) (lemma 2
    of the paper). So vectors are small here: where a few features outweigh the others, the error of
    an average is as large as the values and does not fall yet.
    """
    query, key, value = qkv(rng, size=0.35)
    exact = averaged(np.exp(query @ key.swapaxes(-1, -2) / HEAD_DIM**0.5), value)
    numbers = 2 ** np.arange(5, 11)
    errors = []
    for number in numbers.tolist():
        squares = []
        for _ in range(10):
            feature_map = FavorFeatureMap(number, seed=int(rng.integers(2**30)))
            weights = estimate(feature_map, query, key)
            squares.append(np.mean((averaged(weights, value) - exact) ** 2))
        errors.append(np.sqrt(np.mean(squares)))
    slope, _ = np.polyfit(np.log(numbers), np.log(errors), 1)
    print(f"slope {slope:.3f}, errors {np.round(errors, 4).tolist()}")
    assert -0.6 < slope < -0.4
    assert errors[-1] < 0.1 * np.sqrt(np.mean(exact**2))


def test_estimates_have_no_bias(rng):
    """The mean of 100 draws is exp(q . k / sqrt(d)) within five standard errors, almost always."""
    query, key, _ = qkv(rng, length=12, size=0.5)
    exact = np.exp(query @ key.swapaxes(-1, -2) / HEAD_DIM**0.5)
    half = (query.astype("float64") ** 2).sum(-1, keepdims=True) / HEAD_DIM**0.5 / 2
    draws = []
    for seed in range(100):
        feature_map = FavorFeatureMap(32, seed=seed)
        feature_map.build(query.shape, key.shape)
        # the factors of the queries that the layer leaves out
        largest = (query / HEAD_DIM**0.25 @ numpy(feature_map.projection.value).T).max(-1)
        factor = np.exp(largest[..., None] - half) / 32
        draws.append(estimate(feature_map, query, key) * factor)
    error = np.abs(np.mean(draws, 0) - exact) / (np.std(draws, 0) / np.sqrt(len(draws)))
    assert np.quantile(error, 0.99) < 5 and np.median(error) < 1.2


def test_orthogonal_features_err_less(rng):
    """Orthogonal vectors give a lower mean squared error than independent normal vectors."""
    # short vectors: the errors of long ones have so heavy a tail that forty draws do not tell
    query, key, _ = qkv(rng, size=0.3)
    exact = np.exp(query @ key.swapaxes(-1, -2) / HEAD_DIM**0.5)
    exact /= exact.sum(-1, keepdims=True)
    errors = {"orthogonal": [], "independent": []}
    for seed in range(40):
        for kind, found in errors.items():
            feature_map = FavorFeatureMap(HEAD_DIM, seed=seed)
            feature_map.build(query.shape, key.shape)
            if kind == "independent":
                feature_map.projection.assign(rng.normal(size=(HEAD_DIM, HEAD_DIM)))
            weights = estimate(feature_map, query, key)
            found.append(np.mean((weights / weights.sum(-1, keepdims=True) - exact) ** 2))
    assert np.mean(errors["orthogonal"]) < 0.9 * np.mean(errors["independent"])


def test_projections_are_orthogonal_in_blocks(rng):
    feature_map = FavorFeatureMap(4 * HEAD_DIM - 6, seed=int(rng.integers(2**30)))
    feature_map.build(SHAPE, SHAPE)
    rows = numpy(feature_map.projection.value)
    assert rows.shape == (4 * HEAD_DIM - 6, HEAD_DIM)
    products = rows @ rows.T
    for start in range(0, len(rows), HEAD_DIM):
        block = products[start : start + HEAD_DIM, start : start + HEAD_DIM]
        # float32 of products of 16 numbers of size 1 to 3
        np.testing.assert_allclose(block - np.diag(np.diag(block)), 0, atol=3e-5)
    assert np.abs(products[:HEAD_DIM, HEAD_DIM : 2 * HEAD_DIM]).max() > 0.1
    # each row is as long as a normal vector: mean square HEAD_DIM +- sqrt(2 HEAD_DIM / rows)
    assert abs(np.diag(products).mean() - HEAD_DIM) < 5 * np.sqrt(2 * HEAD_DIM / len(rows))
    assert np.diag(products).std() > 1


def test_directions_are_uniform():
    """Every entry of W is a standard normal number over many draws: mean 0, variance 1."""
    entries = []
    for seed in range(100):
        feature_map = FavorFeatureMap(4, seed=seed)
        feature_map.build((1, 1, 1, 4), (1, 1, 1, 4))
        entries.append(numpy(feature_map.projection.value))
    entries = np.array(entries)
    assert np.abs(entries.mean(0)).max() < 5 / np.sqrt(100)
    assert np.abs((entries**2).mean(0) - 1).max() < 6 * np.sqrt(2 / 100)


def drawn(seed=7, **options):
    feature_map = FavorFeatureMap(24, seed=seed, **options)
    feature_map.build(SHAPE, SHAPE)
    return feature_map


def projection(feature_map):
    return numpy(feature_map.projection.value).copy()


def test_redraw_follows_from_the_seed():
    one, same, other = drawn(), drawn(), drawn(seed=8)
    seen = [projection(one)]
    np.testing.assert_array_equal(projection(same), seen[0])
    assert np.abs(projection(other) - seen[0]).max() > 0.1
    for _ in range(3):
        one.redraw()
        same.redraw()
        np.testing.assert_array_equal(projection(one), projection(same))
        assert all(np.abs(projection(one) - earlier).max() > 0.1 for earlier in seen)
        seen.append(projection(one))
    # a config without a seed holds the one that was drawn, and seeds of two layers differ
    again = FavorFeatureMap.from_config(drawn(seed=None).get_config())
    assert isinstance(again.seed, int)
    assert FavorFeatureMap().seed != FavorFeatureMap().seed


def test_redraw_every(rng):
    query, key, _ = qkv(rng, length=3)
    feature_map, by_hand = drawn(redraw_every=3), drawn()
    for step in range(10):
        if step and step % 3 == 0:
            by_hand.redraw()
        feature_map(query, key)  # not a training step
        feature_map(query, key, training=True)
        np.testing.assert_array_equal(projection(feature_map), projection(by_hand))


def model(redraw_every=2):
    keras.utils.set_random_seed(4)
    feature_map = FavorFeatureMap(6, seed=1, redraw_every=redraw_every, name="feature_map")
    layer = LinearAttention(2, 4, feature_map, name="attention")
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(1e-2), loss="mse")
    return model


def of_model(model):
    return projection(model.get_layer("attention").feature_map)


X = np.random.default_rng(3).normal(size=(24, 5, 8)).astype("float32")


@pytest.mark.slow
def test_redraws_in_fit_and_goes_on_after_loading(tmp_path):
    whole = model()
    start = of_model(whole)
    by_hand = whole.get_layer("attention").feature_map
    whole.fit(X, X, batch_size=4, epochs=1, verbose=0, shuffle=False)  # 6 steps: draws 0, 1 and 2
    assert int(numpy(by_hand.draws.value)) == 2 and int(numpy(by_hand.steps.value)) == 6
    assert np.abs(of_model(whole) - start).max() > 0.1

    half = model()
    half.fit(X[:12], X[:12], batch_size=4, verbose=0, shuffle=False)
    half.save(tmp_path / "half.keras")
    half = keras.saving.load_model(tmp_path / "half.keras")
    half.fit(X[12:], X[12:], batch_size=4, verbose=0, shuffle=False)
    np.testing.assert_array_equal(of_model(half), of_model(whole))
    assert_equal(half.weights, whole.weights, atol=1e-6)


@pytest.mark.tensorflow("tf.distribute is TensorFlow's")
@pytest.mark.slow
def test_all_replicas_draw_the_same():
    from roformer_tf.pretraining.strategies import choose_strategy

    alone = model()
    alone.fit(X, X, batch_size=8, verbose=0, shuffle=False)
    with choose_strategy(cpu_replicas=2).scope():
        both = model()
    both.fit(X, X, batch_size=8, verbose=0, shuffle=False)
    values = both.get_layer("attention").feature_map.projection.value.values
    for replica in values:
        np.testing.assert_array_equal(numpy(replica), of_model(alone))
    assert_equal(both.weights, alone.weights, atol=1e-5)


def test_recomputed_activations_are_refused():
    """The backward pass would count and draw once more."""
    feature_map = FavorFeatureMap(redraw_every=2)
    block = EncoderBlock(8, 16, 2, feature_map=feature_map)
    block.recompute_activations = True
    block(X)
    with pytest.raises(ValueError, match="`redraw_every`.*call `redraw`"):
        block(X, training=True)
