"""Keras must not sum gradients over the replicas again if they are already summed.

Keras' optimizers sum all gradients over the replicas. Clipping by the global norm and skipping
steps with NaN need the sums before that, so they replace one private method of the optimizer to
switch Keras' own sum off. These tests fail if a version of Keras no longer calls that method.
"""

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import LayerwiseAdamW, OriginalAdamW, PiecewiseLinear
from roformer_tf.pretraining.strategies import choose_strategy

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow("tf.distribute is TensorFlow's")
STEPS = 6
# Adafactor factorises the second moments of matrices, LAMB has a norm for each weight
SHAPES = {"embeddings": (40, 8), "kernel": (8, 8), "bias": (8,)}
WARMUP = PiecewiseLinear(1e-2, {2: 1.0, 5: 0.1})
OPTIMIZERS = {
    "AdamW": lambda: keras.optimizers.AdamW(WARMUP, weight_decay=0.01),
    "AdamW, EMA": lambda: keras.optimizers.AdamW(1e-2, use_ema=True),
    "Lamb": lambda: keras.optimizers.Lamb(WARMUP, weight_decay=0.01, global_clipnorm=1.0),
    "Adafactor": lambda: keras.optimizers.Adafactor(WARMUP, weight_decay=0.01),
    "LayerwiseAdamW": lambda: LayerwiseAdamW(WARMUP, num_layers=2, layer_decay=0.9),
    "OriginalAdamW": lambda: OriginalAdamW(WARMUP),
    "OriginalAdamW, accumulation": lambda: OriginalAdamW(WARMUP, accumulation_steps=2),
    "SGD": lambda: keras.optimizers.SGD(1e-2),
}


@pytest.fixture(scope="module")
def strategies():
    return {replicas: choose_strategy(replicas) for replicas in (1, 2)}


def trained(strategy, make_optimizer, start, gradients, reduced=True):
    """Returns the weights on each replica and the optimizer, after training on sums of `gradients`.

    `gradients` has an array (2, ...) for each step and weight, one gradient for each replica. A
    single replica adds them up itself.
    """
    with strategy.scope():
        weights = [keras.Variable(value, name=name) for name, value in start.items()]
        optimizer = make_optimizer()
        optimizer.build(weights)
    if reduced:
        optimizer._all_reduce_sum_gradients = lambda gradients_and_weights: list(
            gradients_and_weights
        )

    @tf.function
    def step(halves):
        def on_replica():
            context = tf.distribute.get_replica_context()
            if context.num_replicas_in_sync == 1:
                sums = [half[0] + half[1] for half in halves]
            else:
                mine = [half[context.replica_id_in_sync_group] for half in halves]
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
            optimizer.apply(sums)

        strategy.run(on_replica)

    for row in gradients:
        step([tf.constant(half) for half in row])
    copies = [strategy.experimental_local_results(weight.value) for weight in weights]
    return [[copy.numpy() for copy in on_replicas] for on_replicas in copies], optimizer


@pytest.fixture
def start_and_gradients(rng):
    start = {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    gradients = [
        [rng.normal(size=(2, *shape)).astype("float32") for shape in SHAPES.values()]
        for _ in range(STEPS)
    ]
    return start, gradients


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_replicas_give_the_weights_of_one(name, strategies, start_and_gradients):
    results = {
        count: trained(strategy, OPTIMIZERS[name], *start_and_gradients)
        for count, strategy in strategies.items()
    }
    (one, optimizer), (two, replicated) = results[1], results[2]
    assert [int(o.iterations.numpy()) for o in (optimizer, replicated)] == [STEPS, STEPS]
    for path, start, single, pair in zip(
        SHAPES, start_and_gradients[0].values(), one, two, strict=True
    ):
        assert len(pair) == 2
        np.testing.assert_array_equal(pair[0], pair[1], err_msg=path)
        # the same sums, the same formula: at most roundings, of updates of 1e-2, differ
        np.testing.assert_allclose(pair[0], single[0], rtol=0, atol=1e-7, err_msg=path)
        assert np.abs(single[0] - start).max() > 1e-3
    state = zip(optimizer.variables, replicated.variables, strict=True)
    for ours, theirs in state:
        ours, theirs = (keras.ops.convert_to_numpy(v) for v in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_without_the_method_replaced_keras_sums_again(strategies, start_and_gradients):
    """The test above would see it: SGD goes twice as far."""
    start, gradients = start_and_gradients
    make = OPTIMIZERS["SGD"]
    once, _ = trained(strategies[2], make, start, gradients)
    twice, _ = trained(strategies[2], make, start, gradients, reduced=False)
    for value, single, double in zip(start.values(), once, twice, strict=True):
        np.testing.assert_allclose(double[0] - value, 2 * (single[0] - value), rtol=1e-3, atol=1e-5)
