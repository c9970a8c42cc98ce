"""The original's optimizer chain against its formulas in NumPy, and what all its optimizers share.

`tests/pretraining/test_golden_training.py` compares with the weights of bert4keras itself.
"""

import json

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import (
    OriginalAdaFactor,
    OriginalAdamW,
    OriginalLAMB,
    PiecewiseLinear,
)
from tests.layers.harness import assert_equal

BACKEND = keras.config.backend()
only_tensorflow = pytest.mark.tensorflow("TensorFlow's own")
# the masked language model's output bias decays, and no other bias
PATHS = {"dense/kernel": (5, 3), "dense/bias": (3,), "norm/gamma": (3,), "head/output_bias": (7,)}
DECAYING = {"dense/kernel", "head/output_bias"}
# JAX has no float64 unless told at its start
DTYPE, TOLERANCE = ("float32", 2e-6) if BACKEND == "jax" else ("float64", 1e-8)


def make_weights(rng):
    weights = []
    for path, shape in PATHS.items():
        scope, name = path.split("/")
        with keras.name_scope(scope):
            value = rng.normal(size=shape).astype(DTYPE)
            weights.append(keras.Variable(value, dtype=DTYPE, name=name))
    return weights


def values(weights):
    return [keras.ops.convert_to_numpy(w.value) for w in weights]


def random_gradients(rng, steps):
    # some of the size of epsilon, where it matters where that is added
    scale = 10.0 ** rng.integers(-7, 1, size=(steps, len(PATHS)))
    shapes = PATHS.values()
    return [
        [(s * rng.normal(size=shape)).astype(DTYPE) for s, shape in zip(row, shapes, strict=True)]
        for row in scale
    ]


def apply(optimizer, gradients):
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients])


def original_chain(weights, gradients, rate, factor, k):
    """bert4keras' `_resource_apply_dense`, from the accumulation down to Adam, in float64."""
    weights = [np.array(w, "float64") for w in weights]
    first, second, total = ([np.zeros_like(w) for w in weights] for _ in range(3))
    for iterations, row in enumerate(gradients):
        now = iterations % k == 0
        for i, path in enumerate(PATHS):
            if k == 1:
                gradient = np.float64(row[i])
            else:
                gradient = total[i] / k
                total[i] = (0 if now else total[i]) + row[i]
            if not now:
                continue
            lr = rate * factor(iterations)
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            m = first[i] / (1 - 0.9 ** (iterations + 1))
            v = second[i] / (1 - 0.999 ** (iterations + 1))
            decay = 0.01 * weights[i] if path in DECAYING else 0
            weights[i] = weights[i] - lr * m / (np.sqrt(v) + 1e-6) - lr * decay
    return weights


@pytest.mark.parametrize("way", ["kernel", "formula"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_equals_the_original_formulas(k, way, rng, monkeypatch):
    if way == "formula":  # what JAX and PyTorch use
        monkeypatch.setattr(OriginalAdamW, "uses_kernel", False)
    elif BACKEND != "tensorflow":
        pytest.skip("the kernel is TensorFlow's")
    weights, gradients = make_weights(rng), random_gradients(rng, 11)
    start, last = values(weights), {}
    optimizer = OriginalAdamW(PiecewiseLinear(1e-2, {4: 1.0, 8: 0.1}), accumulation_steps=k)
    optimizer.build(weights)
    for step in (1, 5, 11):
        for row in gradients[int(optimizer.iterations) : step]:
            apply(optimizer, row)
        expected = original_chain(
            start, gradients[:step], 1e-2, lambda i: np.interp(i, [0, 4, 8], [0, 1, 0.1]), k
        )
        for path, ours, theirs in zip(PATHS, values(weights), expected, strict=True):
            # 11 updates of up to 1e-2. The learning rate is float32; on JAX so is all else.
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE, err_msg=path)
        last[step] = values(weights)
    if k > 1:  # the first real update is that of micro-step k
        assert all(np.array_equal(a, b) for a, b in zip(start, last[1], strict=True))


def test_what_the_docstring_says_of_accumulation():
    """Micro-step 0 only decays, micro-step k is the first to move, by 0.55 of Adam's first step."""
    with keras.name_scope("dense"):
        kernel = keras.Variable(np.ones(1), name="kernel")
        bias = keras.Variable(np.ones(1), name="bias")
    optimizer = OriginalAdamW(0.1, accumulation_steps=4)
    optimizer.build([kernel, bias])
    seen = []
    for _ in range(6):
        apply(optimizer, [np.ones(1, "float32")] * 2)
        seen.append(np.concatenate(values([kernel, bias])))
    np.testing.assert_allclose(seen[:4], [[1 - 0.1 * 0.01, 1.0]] * 4, rtol=1e-6)
    step = 0.1 * (0.1 / (1 - 0.9**5)) / np.sqrt(0.001 / (1 - 0.999**5))
    assert step / 0.1 == pytest.approx(0.55, abs=0.005)
    np.testing.assert_allclose(seen[4], [0.999 * (1 - 0.1 * 0.01) - step, 1 - step], rtol=1e-5)
    np.testing.assert_array_equal(seen[5], seen[4])


@only_tensorflow
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager(k, jit_compile, rng):
    import tensorflow as tf

    weights, gradients = make_weights(rng), random_gradients(rng, 8)
    start = values(weights)

    def trained(wrap):
        for weight, value in zip(weights, start, strict=True):
            weight.assign(value)
        optimizer = OriginalAdamW(1e-2, accumulation_steps=k)
        optimizer.build(weights)
        step = wrap(lambda row: optimizer.apply(row))
        for row in gradients:
            step([tf.constant(g) for g in row])
        return values(weights)

    eager = trained(lambda step: step)
    graph = trained(tf.function(jit_compile=jit_compile))
    assert_equal(eager, graph, atol=1e-12)  # float64


@only_tensorflow
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "cls, k", [(OriginalAdamW, 1), (OriginalAdamW, 2), (OriginalLAMB, 1), (OriginalAdaFactor, 1)]
)
def test_sparse_gradients_with_repeated_rows_equal_dense_ones(cls, k, graph, rng):
    import tensorflow as tf

    table = rng.normal(size=(6, 2)).astype("float32")
    ids, rows = np.array([4, 1, 4, 4]), rng.normal(size=(4, 2)).astype("float32")
    dense = np.zeros_like(table)
    np.add.at(dense, ids, rows)
    found = []
    for gradient in (
        tf.constant(dense),
        tf.IndexedSlices(*map(tf.constant, (rows, ids, table.shape))),
    ):
        weight = keras.Variable(table, name="embeddings")
        optimizer = cls(1e-2, accumulation_steps=k)
        optimizer.build([weight])

        def step(gradient, optimizer=optimizer):
            optimizer.apply([gradient])

        step = tf.function(step) if graph else step
        for _ in range(5):
            step(gradient)
        found.append(values([weight])[0])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-7)
    if cls is not OriginalAdaFactor:
        # row 0 has no gradient and no moments: all that happens to it is decay
        assert np.all(np.abs(found[0][0]) < np.abs(table[0]))


def test_config_survives_json():
    optimizer = OriginalAdamW(
        PiecewiseLinear(1e-5, {20000: 1.0}),
        beta_1=0.8,
        beta_2=0.99,
        epsilon=1e-5,
        weight_decay=0.1,
        no_decay=("bias",),
        accumulation_steps=4,
        name="chain",
    )
    text = json.dumps(keras.saving.serialize_keras_object(optimizer))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert again.get_config() == optimizer.get_config()
    assert again.learning_rate == optimizer.learning_rate
    assert (again.accumulation_steps, again.decoupled_weight_decay) == (4, 0.1)
    assert again.no_decay == ("bias",)


def small_model(cls=OriginalAdamW):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    schedule = PiecewiseLinear(1e-2, {3: 1.0})
    model.compile(cls(schedule, accumulation_steps=3), loss="mse")
    return model


@pytest.mark.parametrize("cls", [OriginalAdamW, OriginalLAMB, OriginalAdaFactor])
def test_continues_from_a_saved_model_in_the_middle_of_accumulation(cls, tmp_path, rng):
    x, y = rng.normal(size=(10, 4)), rng.normal(size=(10, 1))
    model = small_model(cls)
    assert (
        cls.from_config(model.optimizer.get_config()).get_config() == model.optimizer.get_config()
    )
    model.fit(x[:5], y[:5], batch_size=1, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == 5
    for m in (model, again):
        m.fit(x[5:], y[5:], batch_size=1, shuffle=False, verbose=0)
    assert_equal(again.weights, model.weights)
    assert_equal(again.optimizer.variables, model.optimizer.variables)
    moments = 1 if cls is OriginalAdaFactor else 2
    # `iterations`; moments and sums of four weights
    assert len(model.optimizer.variables) == 1 + (moments + 1) * 4


@only_tensorflow
def test_checkpoint_of_tensorflow_restores_it(tmp_path, rng):
    import tensorflow as tf

    x, y = rng.normal(size=(10, 4)), rng.normal(size=(10, 1))
    model, again = small_model(), small_model()
    model.fit(x[:5], y[:5], batch_size=1, shuffle=False, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))
    again.optimizer.build(again.trainable_variables)
    restored = tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    restored.assert_existing_objects_matched()
    for m in (model, again):
        m.fit(x[5:], y[5:], batch_size=1, shuffle=False, verbose=0)
    assert_equal(again.weights, model.weights)


@pytest.mark.parametrize("cls", [OriginalAdamW, OriginalLAMB, OriginalAdaFactor])
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"accumulation_steps": 0}, "accumulation_steps=0"),
        ({"accumulation_steps": 2.0}, "accumulation_steps=2.0"),
        ({"gradient_accumulation_steps": 4}, "accumulates by `acc.*leave `gradient_acc.*` out"),
    ],
)
def test_refuses_impossible_arguments(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(1e-3, **arguments)


def test_epsilon_must_be_positive():
    with pytest.raises(ValueError, match="epsilon=0.0"):
        OriginalAdamW(1e-3, epsilon=0.0)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
@pytest.mark.parametrize("cls", [OriginalAdamW, OriginalLAMB])
def test_bfloat16_weights_move_as_those_of_float32(cls, accumulation_steps):
    """0.999 is 1 in bfloat16, so the formulas are computed in float32."""
    start, results = [1.0, -2.0, 0.5], []
    for dtype in ("float32", "bfloat16"):
        weight = keras.Variable(np.array(start), dtype=dtype, name="kernel")
        optimizer = cls(0.1, weight_decay=0.0, accumulation_steps=accumulation_steps)
        optimizer.build([weight])
        for gradient in ([0.1, 0.2, -0.3], [0.3, 0.1, -0.1], [0.2, 0.2, -0.2]):
            optimizer.apply([keras.ops.convert_to_tensor(gradient, dtype)])
        results.append(keras.ops.convert_to_numpy(weight.value).astype("float32"))
    assert np.abs(results[0] - start).min() > 0.05
    # a number has 8 bits
    np.testing.assert_allclose(results[1], results[0], atol=0.02)
