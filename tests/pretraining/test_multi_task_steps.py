"""Steps of labelled tasks and the masked LM on one backbone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.layers import SpanCrossentropy
from roformer_tf.optimizers import OriginalLAMB, PiecewiseLinear
from roformer_tf.pretraining import MultiTaskPretrainer, Pretrainer, choose_strategy
from tests.layers.harness import assert_equal
from tests.pretraining import readings
from tests.pretraining.builders import (
    TOLERANCE,
    VOCABULARY_SIZE,
    Reused,
    distance,
    make_batches,
    make_task,
    train,
)

READING = 3  # the number of this task


def lamb():
    return OriginalLAMB(PiecewiseLinear(2e-2, {0: 1.0, 20: 0.5}), global_clipnorm=0.5)


def make_pretrainer(weights, slices=1):
    task = make_task(norm="rms_norm", activation="relu")
    classifier = roformer_tf.RoFormerTextClassifier
    reader = roformer_tf.RoFormerQuestionAnswering
    classifiers = {
        "three": classifier(task.backbone, 3, dropout=0.0),
        "two": classifier(task.backbone, 2, dropout=0.0, pooling="mean"),
        "reading": reader(task.backbone, head_dim=8, dropout=0.0),
    }
    pretrainer = MultiTaskPretrainer(task, classifiers, slices=slices)
    if weights is not None:
        for variable, value in zip(pretrainer.trainable_variables, weights, strict=True):
            variable.assign(value)
    pretrainer.compile_for(lamb())
    return pretrainer


def labelled(batch, task, rng):
    """A batch of the masked LM as one of a task."""
    size, width = batch["token_ids"].shape
    batch = {**batch, "task": np.full(size, task, "int32"), "answer_mask": batch["padding_mask"]}
    if task == 0:
        return batch
    labels = rng.integers(0, 3 if task == 1 else 2, size)
    weights = np.ones((size, 1), "float32")
    if task == READING:
        mask = batch["padding_mask"] * (np.arange(width) != 1)  # a question of one token
        lengths = batch["padding_mask"].sum(1)
        last = rng.integers(2, lengths)
        first = np.array([rng.integers(2, end + 1) for end in last])
        labels = np.where(rng.random(size) < 0.3, 0, first * width + last)
        batch["answer_mask"] = mask.astype("int32")
        weights[-1] = 0  # what fills a held-out batch
    return {
        **batch,
        "mask_positions": np.zeros((size, 1), "int32"),
        "labels": labels[:, None].astype("int32"),
        "label_weights": weights,
    }


@pytest.fixture(scope="module")
def data(seed):
    rng = np.random.default_rng([seed, 8])
    tasks = [0, 1, 2, 3, 0, 3, 2]
    batches = [labelled(b, t, rng) for b, t in zip(make_batches(rng, len(tasks)), tasks)]
    shapes = [tuple(v.shape) for v in make_pretrainer(None).trainable_variables]
    return [rng.normal(0, 0.3, shape).astype("float32") for shape in shapes], batches


@pytest.fixture(scope="module")
def prepared(data):
    """Function that returns a pretrainer before its first step."""
    reused = Reused()
    return lambda: reused("only", lambda: make_pretrainer(data[0]))


def batch_of(batches, task):
    return next(batch for batch in batches if batch["task"][0] == task)


def inputs_of(batch, *more):
    return {name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask", *more)}


def spans_of(batch):
    """The labels of reading as `RoFormerQuestionAnswering` takes them."""
    return np.stack(np.divmod(batch["labels"][:, 0], batch["token_ids"].shape[1]), -1)


def trained(pretrainer):
    return [v.numpy() for v in pretrainer.trainable_variables]


@pytest.fixture(scope="module")
def reference(data, prepared):
    weights, batches = data
    pretrainer = prepared()
    history = train(pretrainer, batches)
    assert history["task"] == [0, 1, 2, 3, 0, 3, 2]
    assert pretrainer.places == [(0, 4), (0, 1), (0, 6), (0, 5)]
    assert distance(trained(pretrainer), weights) > 1e-3
    return trained(pretrainer), history


@pytest.mark.parametrize(
    ("replicas", "slices"),
    [
        (1, 4),
        pytest.param(4, 2, marks=pytest.mark.slow),
    ],
)
def test_replicas_and_slices_change_nothing(data, reference, replicas, slices):
    weights, batches = data
    with choose_strategy(replicas).scope():
        pretrainer = make_pretrainer(weights, slices)
    history = train(pretrainer, batches)
    for name in ("loss", "accuracy", "task", "tokens"):
        np.testing.assert_allclose(history[name], reference[1][name], rtol=2e-6, err_msg=name)
    assert distance(trained(pretrainer), reference[0]) < TOLERANCE


def test_the_loss_of_reading(data, prepared):
    _, batches = data
    pretrainer = prepared()
    reader, batch = pretrainer.classifiers["reading"], batch_of(batches, READING)
    loss, right = pretrainer.loss_sum({name: tf.constant(x) for name, x in batch.items()})
    features = keras.ops.convert_to_numpy(reader.backbone(inputs_of(batch)))
    expected, hits = readings.oracle_loss(features, batch, reader.pointer.dense.kernel.numpy())
    np.testing.assert_allclose(float(loss), expected, rtol=2e-6)  # float32
    assert float(right) == hits
    # and of the model's own loss, which takes spans
    real = batch["label_weights"][:, 0] > 0
    scores = keras.ops.convert_to_numpy(reader(inputs_of(batch, "answer_mask")))
    own = float(SpanCrossentropy()(spans_of(batch)[real], scores[real])) * real.sum()
    np.testing.assert_allclose(float(loss), own, rtol=2e-6)
    np.testing.assert_allclose(pretrainer.evaluate_batches([batch])["loss"], own / real.sum(), 2e-6)


@pytest.mark.parametrize(
    "task", [0, 1, *(pytest.param(task, marks=pytest.mark.slow) for task in (2, READING))]
)
def test_a_step_is_that_of_the_model_of_the_task(data, prepared, task):
    """Of the task's own model by Keras, and the heads of the other tasks stay as they are."""
    weights, batches = data
    batch = batch_of(batches, task)
    if task == READING:  # Keras gives all examples the same weight
        batch = {**batch, "label_weights": np.ones_like(batch["label_weights"])}
    shared = prepared()
    names = [v.path for v in shared.trainable_variables]
    train(shared, [batch])
    mine = trained(shared)

    alone = make_pretrainer(weights)  # only to hold the same weights
    model = [alone.task, *alone.classifiers.values()][task]
    if task == 0:
        own = Pretrainer(model)
        own.compile_for(lamb())
        own.train_step({k: tf.constant(v) for k, v in batch.items() if k != "task"})
    else:
        model.compile(optimizer=lamb())
        inputs, labels = inputs_of(batch), batch["labels"][:, 0]
        if task == READING:
            inputs, labels = inputs_of(batch, "answer_mask"), spans_of(batch)
        keras.Model.train_on_batch(model, inputs, labels)
    moved = {id(v) for v in model.trainable_variables}
    for name, a, before, variable in zip(
        names, mine, weights, alone.trainable_variables, strict=True
    ):
        # a step of LAMB is 2 % of the norm of a weight; float32 sums in another order
        np.testing.assert_allclose(a, variable.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        if id(variable) in moved:
            assert abs(a - before).max() > 1e-4, name
        else:
            np.testing.assert_array_equal(a, before)


@pytest.mark.slow
def test_idle_heads_keep_their_moments(data, prepared):
    """A head that is not trained in a step neither decays nor forgets."""
    _, batches = data
    pretrainer = prepared()
    train(pretrainer, batches[:2])  # the masked LM and task 1
    inner = pretrainer.optimizer.inner_optimizer
    index = inner._get_variable_index(pretrainer.classifiers["three"].logits_dense.kernel)
    slots = inner._momentums[index], inner._velocities[index]
    before = [slot.numpy() for slot in slots]
    assert all(abs(x).max() > 0 for x in before)
    train(pretrainer, batches[2:3])  # task 2
    assert int(inner.iterations) == 3
    assert_equal(slots, before)


@pytest.mark.slow
def test_xla_gives_the_same(data, reference):
    weights, batches = data
    pretrainer = make_pretrainer(weights, slices=2)
    pretrainer.xla = True
    train(pretrainer, batches)
    assert distance(trained(pretrainer), reference[0]) < TOLERANCE


def test_classifiers_of_another_backbone_are_an_error():
    other = roformer_tf.RoFormerTextClassifier(make_task().backbone, 2, dropout=0.0)
    with pytest.raises(ValueError, match="backbone of the masked LM.*'other' with dropout=0.0"):
        MultiTaskPretrainer(make_task(), {"other": other})
    assert other.backbone.vocabulary_size == VOCABULARY_SIZE


def test_another_head_is_an_error():
    task = make_task()
    reader = roformer_tf.RoFormerQuestionAnswering(task.backbone, head="separate", dropout=0.0)
    with pytest.raises(
        ValueError, match="must have `head=\"joint\"`.*'webqa' with head='separate'"
    ):
        MultiTaskPretrainer(task, {"webqa": reader})
