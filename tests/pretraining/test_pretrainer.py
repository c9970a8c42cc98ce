"""A step is the same on any number of replicas and slices, with and without recomputation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.layers import self_attention
from roformer_tf.optimizers import LayerwiseAdamW
from roformer_tf.pretraining import MultiTaskPretrainer, Pretrainer
from roformer_tf.pretraining.strategies import choose_strategy
from tests.layers.harness import assert_equal
from tests.pretraining.builders import (
    TOLERANCE,
    Reused,
    as_dataset,
    determinism_ends,
    distance,
    make_batches,
    make_pretrainer,
    make_task,
    packed,
    train,
)

STEPS = 5


def adamw():
    return LayerwiseAdamW(1e-3, num_layers=1, weight_decay=0.05, global_clipnorm=0.5, epsilon=1e-6)


@pytest.fixture(scope="module")
def data(seed):
    rng = np.random.default_rng([seed, 1])
    weights = [
        rng.normal(0, 0.3, x.shape).astype(x.dtype) if x.ndim > 1 else x
        for x in make_task().get_weights()
    ]
    return weights, make_batches(rng, STEPS)


@pytest.fixture(scope="module")
def prepared(data):
    """Function that returns a pretrainer before its first step."""
    reused = Reused()

    def prepare(replicas=1, slices=1, recompute=False):
        def make():
            with choose_strategy(replicas).scope():
                return make_pretrainer(adamw(), data[0], slices=slices, recompute=recompute)

        return reused((replicas, slices, recompute), make)

    return prepare


@pytest.fixture(scope="module")
def reference(data, prepared):
    weights, batches = data
    pretrainer = prepared()
    history = train(pretrainer, batches)
    assert pretrainer.steps_done == STEPS
    assert pretrainer.last_place[1] == STEPS - 1
    trained = pretrainer.task.get_weights()
    assert distance(trained, weights) > 1e-3  # they did move
    return trained, history


@pytest.mark.parametrize(
    ("replicas", "slices", "recompute", "pack"),
    [
        (1, 3, True, False),  # the last slice is smaller
        (1, 4, False, False),
        (2, 2, True, True),
        pytest.param(4, 1, False, False, marks=pytest.mark.slow),
    ],
)
def test_replicas_slices_and_packing_change_nothing(
    data, prepared, reference, replicas, slices, recompute, pack
):
    trained, history = reference
    pretrainer = prepared(replicas, slices, recompute)
    other = train(pretrainer, [packed(batch) for batch in data[1]] if pack else data[1])
    np.testing.assert_allclose(other["loss"], history["loss"], rtol=1e-6)
    for name in ("accuracy", "tokens", "padding", "learning_rate"):
        np.testing.assert_allclose(other[name], history[name], rtol=1e-6, err_msg=name)
    assert distance(pretrainer.task.get_weights(), trained) < TOLERANCE


def test_invariance_test_can_fail(data, reference):
    """Clipping before the reduction, as Keras does it, is far outside the tolerance."""
    weights, batches = data
    with choose_strategy(2).scope():
        pretrainer = make_pretrainer(adamw(), weights)
    inner = pretrainer.optimizer.inner_optimizer
    assert inner.global_clipnorm == 0.5
    inner.global_clipnorm = 0.25
    train(pretrainer, batches)
    assert distance(pretrainer.task.get_weights(), reference[0]) > 100 * TOLERANCE


@pytest.mark.slow
def test_xla_gives_the_same(data):
    """Only the two passes are compiled: Keras' own `jit_compile` fails with replicas."""
    weights, batches = data
    plain = make_pretrainer(adamw(), weights, masking="causal")
    train(plain, batches)
    with choose_strategy(2).scope():
        compiled = make_pretrainer(adamw(), weights, xla=True, masking="causal", slices=2)
    train(compiled, batches)
    assert distance(compiled.task.get_weights(), plain.task.get_weights()) < TOLERANCE


@pytest.mark.slow
def test_recomputation_with_dropout_is_exact(data):
    """Both forward passes have the same dropout mask, or the gradients would be silently wrong."""
    # two blocks, each with masks of its own
    options = {"norm": "rms_norm", "activation": "relu"}
    options |= {"dropout": 0.3, "slices": 2, "num_layers": 2}
    weights = None
    results = []
    for recompute in (False, True):
        sgd = keras.optimizers.SGD(0.1)
        pretrainer = make_pretrainer(sgd, weights, recompute=recompute, **options)
        weights = weights or pretrainer.task.get_weights()
        train(pretrainer, data[1][:3])
        results.append(pretrainer.task.get_weights())
    assert distance(*results) < TOLERANCE
    # other steps draw other masks
    pretrainer.step.assign(100)
    pretrainer.task.set_weights(weights)
    train(pretrainer, data[1][:3])
    assert distance(pretrainer.task.get_weights(), results[0]) > 100 * TOLERANCE


def test_recomputation_computes_again(data):
    """The backward pass contains a second forward pass of the blocks."""
    counts = []
    for recompute in (False, True):
        pretrainer = make_pretrainer(adamw(), data[0], recompute=recompute)
        batch = {k: tf.constant(v) for k, v in data[1][0].items() if k not in ("window", "index")}
        graph = tf.function(pretrainer._one_slice).get_concrete_function(
            batch, tf.constant(1.0), tf.constant([1, 2])
        )
        operations = graph.graph.as_graph_def(add_shapes=False)
        counts.append(sum(node.op == "Softmax" for node in operations.node))
    assert counts[1] == 2 * counts[0]


@pytest.mark.slow
def test_dropout_differs_between_replicas_slices_and_steps(data):
    """Dropout differs on two replicas and in two slices; runs are repeatable."""
    weights, batches = data
    twice = {k: np.concatenate([v[:4], v[:4]]) for k, v in batches[0].items()}
    losses = {}
    for name, replicas, slices, seed in (
        ("replicas", 2, 1, 3),
        ("slices", 1, 2, 3),
        ("seed", 1, 1, 4),
        ("one", 1, 1, 3),
    ):
        with choose_strategy(replicas).scope():
            # a rate of 0: only what is drawn can differ from step to step
            sgd = keras.optimizers.SGD(0.0)
            pretrainer = make_pretrainer(sgd, weights, dropout=0.5, slices=slices, seed=seed)
        losses[name] = train(pretrainer, [twice], steps=3)["loss"]
    assert len({round(x, 6) for each in losses.values() for x in each}) == 12
    pretrainer.step.assign(0)
    assert train(pretrainer, [twice], steps=3)["loss"] == losses["one"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_steps_with_nan_are_skipped_by_all(data, prepared, replicas):
    batches = data[1]
    pretrainer = prepared(replicas)
    bad = {k: v.copy() for k, v in batches[1].items()}
    bad["label_weights"][-1, 0] = np.nan  # on the last replica only
    bad["label_weights"][-1, 1:] = 0
    train(pretrainer, batches[:1])
    before = pretrainer.task.get_weights()
    history = train(pretrainer, [bad, bad], steps=2)
    assert history["skipped"] == [1.0, 2.0]
    assert history["skipped_in_a_row"] == [1.0, 2.0]
    assert_equal(pretrainer.task.get_weights(), before)
    history = train(pretrainer, batches[1:2])
    assert history["skipped"] == [2.0]
    assert history["skipped_in_a_row"] == [0.0]
    assert pretrainer.steps_done == 4
    assert int(tf.convert_to_tensor(pretrainer.optimizer.iterations)) == 2
    assert distance(pretrainer.task.get_weights(), before) > 1e-4


@pytest.mark.parametrize(
    "dtype", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_mixed_precision(data, dtype):
    """A loss scaled beyond float16 is skipped, the scale is halved, and training works."""
    weights, batches = data
    pretrainer = make_pretrainer(adamw(), weights, dtype=dtype)
    optimizer = pretrainer.optimizer
    float16 = dtype == "mixed_float16"
    assert float(optimizer.dynamic_scale) == (2.0**15 if float16 else 1.0)
    if float16:
        optimizer.dynamic_scale.assign(2.0**30)
        history = train(pretrainer, batches[:1], steps=1)
        assert history["skipped"] == [1.0]
        assert float(optimizer.dynamic_scale) == 2.0**29
        optimizer.dynamic_scale.assign(2.0**10)
    first = train(pretrainer, batches[:1], steps=1)["loss"][0]
    last = train(pretrainer, batches[:1], steps=30)["loss"][-1]
    assert last < 0.95 * first
    assert all(v.dtype == "float32" for v in pretrainer.trainable_variables)


def test_masked_projection_equals_the_full_one(data, prepared):
    """Projecting only predicted positions has the loss and gradients of projecting all."""
    batches = data[1]
    pretrainer = prepared()
    batch = {k: tf.constant(v) for k, v in batches[0].items() if k not in ("window", "index")}
    task = pretrainer.task
    count = tf.reduce_sum(batch["label_weights"])

    with tf.GradientTape() as tape:
        loss = pretrainer.loss_sum(batch)[0] / count
    gradients = tape.gradient(loss, task.trainable_variables)

    full = np.zeros(batches[0]["token_ids"].shape, "float32")
    labels = np.zeros(full.shape, "int32")
    for row, slot in np.argwhere(batches[0]["label_weights"] > 0):
        position = batches[0]["mask_positions"][row, slot]
        full[row, position] += 1
        labels[row, position] = batches[0]["labels"][row, slot]
    assert full.max() == 1  # no position is predicted twice
    with tf.GradientTape() as tape:
        logits = task({k: batch[k] for k in ("token_ids", "segment_ids", "padding_mask")})
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        full_loss = tf.reduce_sum(losses * full) / count
    full_gradients = tape.gradient(full_loss, task.trainable_variables)
    np.testing.assert_allclose(float(loss), float(full_loss), rtol=1e-6)
    for a, b, v in zip(gradients, full_gradients, task.trainable_variables):
        a, b = np.asarray(tf.convert_to_tensor(a)), np.asarray(tf.convert_to_tensor(b))
        scale = max(np.abs(b).max(), 1e-3)
        np.testing.assert_allclose(a, b, atol=1e-6 * scale, rtol=1e-5, err_msg=v.path)


@pytest.mark.parametrize(
    ("masking", "scheme"), [("bidirectional", "learned"), ("causal", "rotary"), ("unilm", "rotary")]
)
def test_packed_documents_have_the_loss_that_each_has_alone(data, seed, masking, scheme):
    rng, task = np.random.default_rng([seed, 2]), make_task(masking=masking, position_scheme=scheme)
    task.set_weights([x + rng.normal(0, 0.3, x.shape) for x in task.get_weights()])
    apart = {**data[1][0], "task": np.zeros(8, "int32")}
    apart, together = (
        {name: tf.constant(x) for name, x in batch.items()} for batch in (apart, packed(apart))
    )
    for pretrainer in (Pretrainer(task), MultiTaskPretrainer(task, {})):
        loss, right = pretrainer.loss_sum(apart)
        other, same = pretrainer.loss_sum(together)
        np.testing.assert_allclose(float(other), float(loss), rtol=1e-6)
        assert float(same) == float(right)


def test_evaluation_weighs_every_token_alike(data, prepared):
    batches = data[1]
    pretrainer = prepared()
    parts = [{k: v for k, v in b.items() if k not in ("window", "index")} for b in batches]
    figures = pretrainer.evaluate_batches(parts)
    tokens = sum(b["label_weights"].sum() for b in batches)
    loss = sum(
        float(pretrainer.loss_sum({k: tf.constant(v) for k, v in p.items()})[0]) for p in parts
    )
    assert figures["tokens"] == tokens
    np.testing.assert_allclose(figures["loss"], loss / tokens, rtol=1e-6)
    nothing = {**parts[0], "label_weights": 0 * parts[0]["label_weights"]}
    assert np.isnan(pretrainer.evaluate_batches([nothing])["loss"])


def test_evaluation_in_micro_batches(data, monkeypatch):
    """Training in slices saves memory, which evaluation must not need after all."""
    batches = [{k: v for k, v in b.items() if k not in ("window", "index")} for b in data[1]]
    pretrainer, sizes = make_pretrainer(adamw(), data[0]), []
    loss_sum = pretrainer.loss_sum

    def watched(batch, training=False):
        tf.py_function(lambda ids: sizes.append(len(ids)), [batch["token_ids"]], [])
        return loss_sum(batch, training)

    monkeypatch.setattr(pretrainer, "loss_sum", watched)
    whole = pretrainer.evaluate_batches(batches)
    assert sizes == [8] * len(batches)
    sizes.clear()
    figures = pretrainer.evaluate_batches(batches, micro_batch_size=3)
    assert sizes == [3, 3, 2] * len(batches)
    assert figures["tokens"] == whole["tokens"]
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(figures[name], whole[name], rtol=1e-6)


def test_keras_callbacks_work(data, prepared, tmp_path):
    batches = data[1]
    pretrainer = prepared()
    log = tmp_path / "log.csv"
    pretrainer.fit(
        as_dataset(batches),
        steps_per_epoch=2,
        epochs=2,
        verbose=0,
        callbacks=[keras.callbacks.CSVLogger(str(log))],
    )
    assert len(log.read_text().splitlines()) == 3
    # no batch was lost in between: the fourth step had the fourth batch
    assert pretrainer.last_place[1] == 3


def test_a_graph_up_to_a_length_has_one_way_to_attend(data, reference, calls_of):
    """It takes the same steps as one for any length, which holds the chunked way too."""
    chunked = calls_of(self_attention, "chunked_attention")
    for max_length in (None, 12):
        pretrainer = make_pretrainer(
            adamw(), data[0], max_length=max_length, recompute=True, slices=3
        )
        del chunked[:]
        history = train(pretrainer, data[1], steps=2)
        pretrainer.evaluate_batches(as_dataset(data[1]).take(1))
        assert bool(chunked) == (max_length is None)
        np.testing.assert_allclose(history["loss"], reference[1]["loss"][:2], rtol=1e-5)


def test_steps_under_op_determinism(data):
    """A step reads no clock of TensorFlow, which has none once op determinism is enabled."""
    with determinism_ends():
        tf.config.experimental.enable_op_determinism()
        history = train(make_pretrainer(adamw(), data[0]), data[1], steps=1)
    assert "input_ready" not in history and np.isfinite(history["loss"]).all()


def test_keras_evaluation_names_ours(data, prepared):
    """Not deep inside, after an epoch."""
    pretrainer, dataset = prepared(), as_dataset(data[1])
    for evaluate in (
        lambda: pretrainer.evaluate(dataset),
        lambda: pretrainer.fit(dataset, steps_per_epoch=1, validation_data=dataset, verbose=0),
    ):
        with pytest.raises(NotImplementedError, match=r"Call `evaluate_batches\(batches\)`"):
            evaluate()
    assert pretrainer.steps_done == 0


def test_wrong_slices_are_an_error():
    with pytest.raises(ValueError, match="`slices` must be a positive integer. Received: slices=0"):
        make_pretrainer(adamw(), slices=0)
