"""Our pretraining step and input, as the benchmarks measure them."""

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.models import LEARNING_RATE
from benchmarks.sizes import make_batch
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.pretraining import (
    Pretrainer,
    Stage,
    StagesSchedule,
    prepare_corpus,
    training_batches,
)
from roformer_tf.pretraining.models import make_optimizer, make_task, make_tokenizer
from roformer_tf.pretraining.pretrainer import cross_entropy_sums
from roformer_tf.pretraining.settings import DataSettings, ModelSettings, OptimizerSettings


class FullProjection(Pretrainer):
    """Computes the logits of all positions; those not to be predicted have weight 0."""

    def loss_sum(self, batch, training=False):
        hidden = sequence_output(self.run_backbone(batch, training))
        logits = self.task.head(hidden, training=training)
        used = tf.where(batch["label_weights"] > 0)
        positions = tf.cast(tf.gather_nd(batch["mask_positions"], used), tf.int64)
        indices = tf.stack([used[:, 0], positions], 1)
        shape = tf.shape(batch["token_ids"], tf.int64)
        labels, weights = (
            tf.scatter_nd(indices, tf.gather_nd(batch[name], used), shape)
            for name in ("labels", "label_weights")
        )
        return cross_entropy_sums(logits, labels, weights)


def make_pretrainer(sizes, seed, dtype="float32", optimizer="adamw", cls=Pretrainer, task=None):
    """Makes a compiled `Pretrainer` with random weights. The learning rate rises over 20,000 steps,
    like the original's.
    """
    keras.utils.set_random_seed(seed)
    model = ModelSettings(vocabulary="-", **sizes.encoder_arguments(), dtype=dtype)
    task = task or make_task(model, "masked_lm", sizes.vocabulary, 512)
    pretrainer = cls(task, seed=seed)
    schedule = StagesSchedule([Stage(512, 1, 1_000_000, LEARNING_RATE, {20000: 1.0})])
    pretrainer.compile_for(make_optimizer(OptimizerSettings(name=optimizer), schedule))
    return pretrainer


def ready_batch(seed, sizes, rows, length):
    """Makes a batch of random tokens without padding, in the form of `training_batches`."""
    batch = make_batch(seed, sizes, rows, length)
    batch["label_weights"] = np.ones(batch["labels"].shape, "float32")
    return {**batch, "window": np.zeros(rows, "int64"), "index": np.zeros(rows, "int64")}


def ready_batches(*arguments):
    """Makes a dataset that repeats one batch; see `ready_batch` for the arguments."""
    return tf.data.Dataset.from_tensors(ready_batch(*arguments)).repeat()


def compare_projections(sizes, seed, rows, length):
    """Compares loss and gradients of the masked-only projection with those of the full one, without dropout.

    Returns:
        dict of `loss`, the relative difference of the losses; `gradients`, the largest difference of two elements of a
        gradient, divided by its largest element, and `worst`, the weight it belongs to; `noise_loss` and
        `noise_gradients`, the same of the masked-only projection and itself with the sequences in reverse order, which
        is float32 noise; `variables`, the number of gradients.
    """
    batch = ready_batch(seed, sizes, rows, length)
    # uneven sequences: some slots are unused
    used = np.random.default_rng(seed).random(batch["label_weights"].shape) < 0.9
    batch["label_weights"] *= used
    batch["labels"] *= used
    batch["mask_positions"] *= used
    batch = {name: tf.constant(value) for name, value in batch.items()}
    masked = make_pretrainer(sizes, seed)
    full = make_pretrainer(sizes, seed, cls=FullProjection, task=masked.task)
    of_masked, of_full = map(_loss_and_gradients, (masked, full))
    loss, gradients = of_masked(batch)

    def compare(loss_and_gradients, batch):
        other, others = loss_and_gradients(batch)
        differences = {}
        for path, gradient in gradients.items():
            difference = np.abs(gradient - others.pop(path)).max()
            differences[path] = float(difference / (np.abs(gradient).max() or 1.0))
        return abs(other - loss) / abs(loss), differences

    noise_loss, noise = compare(of_masked, {k: tf.reverse(v, [0]) for k, v in batch.items()})
    loss_difference, differences = compare(of_full, batch)
    worst = max(differences, key=differences.get)
    return {
        "loss": loss_difference,
        "gradients": differences[worst],
        "worst": worst,
        "noise_loss": noise_loss,
        "noise_gradients": max(noise.values()),
        "variables": len(differences),
    }


def _loss_and_gradients(pretrainer):
    """Returns a function from a batch to the loss and the gradients by the path of their weight."""
    variables = pretrainer.task.trainable_variables

    @tf.function
    def run(batch):
        with tf.GradientTape() as tape:
            loss = pretrainer.loss_sum(batch)[0] / tf.reduce_sum(batch["label_weights"])
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

    def run_on(batch):
        loss, gradients = run(batch)
        return float(loss), {v.path: g.numpy() for v, g in zip(variables, gradients, strict=True)}

    return run_on


class TextInput:
    """Batches of the documents in a file of JSON lines, by `prepare_corpus` and `training_batches`.

    Args:
        path: str. The file.
        vocabulary_path: str. `vocab.txt`.
        batch: int. Batch size.
        max_length: int. Tokens per sequence.
        cache: str. Folder for the chunk files.
        packing: str. See `DataSettings`.
        seed: int.
    """

    def __init__(self, path, vocabulary_path, batch, max_length, cache, packing, seed):
        start = time.perf_counter()
        corpus = prepare_corpus([path], cache)
        self.seconds_to_prepare = time.perf_counter() - start
        tokenizer = make_tokenizer(ModelSettings(vocabulary=vocabulary_path))
        stage = Stage(max_length, batch, 1_000_000, LEARNING_RATE)
        data = DataSettings(files=(path,), packing=packing)
        self.dataset = training_batches(corpus, tokenizer, stage, data, seed, 0)
