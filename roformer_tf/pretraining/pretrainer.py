import inspect
import math

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # has no public name

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers import Dropout, dropout_seeds
from roformer_tf.layers.self_attention import inputs_up_to
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.pretraining.strategies import ReducedGradientsOptimizer, all_reduce


class Pretrainer(keras.Model):
    """Trains a language model, with the same steps on any number of replicas and slices.

    The gradient is that of (sum of the token losses over the global batch) / (number of predicted
    tokens in it). Each replica goes through its sequences in `slices` parts and adds up their
    gradients. These are summed over the replicas, and then clipped and applied once. Dropout draws
    from the seed, the step, the replica and the slice.

    Only the predicted positions reach the projection to the vocabulary, which costs more than the
    rest of a small model. The loss is that of the full projection.

    The logs say when a step received its batch, in seconds since 1970 (`input_ready`), but not
    under `enable_op_determinism`, where TensorFlow has no clock.

    Args:
        task: a `RoFormerMaskedLM` or `RoFormerCausalLM`.
        slices: int. Parts into which a replica splits its sequences to save memory (gradient
            accumulation).
        seed: int. Seed of dropout.
        recompute: bool. Whether blocks compute their activations again for the gradient, which
            takes less memory and more time.
        xla: bool. Whether XLA compiles the forward and backward pass, once per shape of a batch.
        max_length: int. Maximum number of tokens of a sequence, for which the step is traced.
            Defaults to any number, whose graph is larger.
        **kwargs: passed to `keras.Model`.

    Call arguments:
        inputs: inputs of the task.

    Attributes:
        step: int64 variable. Optimizer steps done, skipped ones included.
        window, index: int64 variables. Place of the last batch in the stream of
            `training_batches`.
        steps_done: int. The value of `step`.
        last_place: tuple of ints. The values of `window` and `index`.
        traces: int. How often TensorFlow has traced a step, as it does in the first of each `fit`.

    Raises:
        ValueError: If `slices` or `max_length` is not a positive integer.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> import roformer_tf
    >>> from roformer_tf.pretraining import Pretrainer
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> pretrainer = Pretrainer(roformer_tf.RoFormerMaskedLM(backbone))
    >>> pretrainer.compile_for(keras.optimizers.AdamW(1e-3, global_clipnorm=1.0))
    >>> ids = np.array([[2, 4, 31, 3]] * 2, "int32")
    >>> batch = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> targets = {"mask_positions": ids[:, :1] * 0 + 1, "labels": ids[:, :1] * 0 + 15}
    >>> position = {"window": np.zeros(2, "int64"), "index": np.zeros(2, "int64")}
    >>> batch |= targets | position | {"label_weights": np.ones((2, 1), "float32")}
    >>> history = pretrainer.fit(batch, batch_size=2, verbose=0)
    >>> sorted(history.history)
    ['accuracy', 'input_ready', 'learning_rate', 'loss', 'padding', 'predictions', 'skipped', ...]

    Reference: section 4.1 of arXiv 2104.09864; `train.py` of the original repository.
    """

    place_shape = ()
    traces = 0

    def __init__(
        self, task, slices=1, seed=0, recompute=False, xla=False, max_length=None, **kwargs
    ):
        super().__init__(**kwargs)
        check_positive_integer("slices", slices)
        check_positive_integer("max_length", max_length, optional=True)
        self.task = task
        self.slices = slices
        self.seed = seed
        self.xla = xla
        self.max_length = max_length
        for block in task.backbone.encoder_blocks:
            block.recompute_activations = recompute
        layers = task._flatten_layers(include_self=False, recursive=True)
        unique = {id(layer): layer for layer in layers if isinstance(layer, Dropout)}
        self._dropouts = [layer for layer in unique.values() if layer.rate]
        for name in ("step", "window", "index"):
            variable = self.add_weight(
                name=name,
                shape=() if name == "step" else self.place_shape,
                initializer="zeros",
                dtype="int64",
                trainable=False,
                aggregation="only_first_replica",
            )
            setattr(self, name, variable)
        self.built = True
        self._stop = None

    def call(self, inputs, training=None):
        return self.task(inputs, training=training)

    def compile_for(self, optimizer):
        """Compiles the model for an optimizer, wrapped in `ReducedGradientsOptimizer`.

        Args:
            optimizer: `keras.optimizers.Optimizer`, with its own clipping, weight decay and moving
                average.
        """
        float16 = self.task.backbone.dtype_policy.compute_dtype == "float16"
        wrapped = ReducedGradientsOptimizer(optimizer, dynamic_scale=float16)
        self.compile(optimizer=wrapped, jit_compile=False, auto_scale_loss=False)
        wrapped.build(self.trainable_variables)

    def set_slices(self, slices):
        """Sets the number of slices from the next step on."""
        if slices != self.slices:
            self.slices = slices
            self.train_function = None

    def let_workers_agree(self):
        """Lets any worker stop all of them: `stop` in the logs is above 0 once a worker asked.

        Call this once, outside the strategy's scope.
        """
        with tf.device("CPU:0"):
            self._stop = tf.Variable(0.0, trainable=False)

    def ask_to_stop(self):
        """Asks all workers to stop after the next step."""
        self._stop.assign(1.0)

    @property
    def steps_done(self):
        return int(tf.convert_to_tensor(self.step))

    @property
    def last_place(self):
        return int(tf.convert_to_tensor(self.window)), int(tf.convert_to_tensor(self.index))

    # === One step ===

    def train_step(self, batch):
        """Does one step on this replica's part of a batch; returns logs of the whole batch."""
        batch = dict(batch[0] if isinstance(batch, tuple) else batch)
        self.traces += 1  # a step runs this line only while it is traced
        logs = {}
        if not is_op_determinism_enabled():
            with tf.control_dependencies(list(batch.values())):
                logs["input_ready"] = tf.timestamp()
        self.note_place(batch)
        real = tf.reduce_sum(tf.cast(batch["padding_mask"], tf.float32))
        positions = tf.cast(tf.size(batch["padding_mask"]), tf.float32)
        weight = tf.reduce_sum(batch["label_weights"])
        sums = [weight, real, positions]
        if self._stop is not None:
            sums.append(tf.identity(self._stop))  # on this replica's device
        weight, real, positions, *stop = all_reduce(sums)
        if stop:
            logs["stop"] = stop[0]
        learning_rate = tf.convert_to_tensor(self.optimizer.learning_rate)

        loss, correct, gradients = self._loss_and_gradients(batch, weight)
        gradients = all_reduce(gradients)
        loss, correct = all_reduce([loss, correct])
        self.apply_gradients(gradients, batch)
        self.step.assign_add(1)
        logs |= {
            "loss": loss,
            "accuracy": correct / tf.maximum(weight, 1.0),
            "predictions": weight,
            "learning_rate": learning_rate,
            "tokens": real,
            "padding": 1.0 - real / positions,
            "skipped": tf.cast(self.optimizer.skipped, tf.float32),
            "skipped_in_a_row": tf.cast(self.optimizer.skipped_in_a_row, tf.float32),
        }
        if self._stop is not None:  # Keras averages over the first axis of all workers
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    def note_place(self, batch):
        """Keeps the place of a batch, and takes it out of the batch."""
        self.window.assign(batch.pop("window")[0])
        self.index.assign(batch.pop("index")[0])

    def apply_gradients(self, gradients, batch):
        """Updates the weights by the gradients of all trainable variables."""
        self.optimizer.apply(gradients, self.trainable_variables)

    def _loss_and_gradients(self, batch, weight):
        """Sums over this replica's sequences: loss, correct predictions, list of gradients."""
        step = tf.cast(tf.convert_to_tensor(self.step), tf.int32)
        seed = tf.stack([tf.constant(self.seed, tf.int32), step])
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(replica, tf.int32))
        one_slice = tf.function(self._one_slice, jit_compile=True) if self.xla else self._one_slice
        if self.slices == 1:
            return one_slice(batch, weight, seed)

        count = tf.shape(batch["token_ids"])[0]
        size = -(-count // self.slices)  # with fewer sequences than slices, the last ones are empty

        def body(i, loss, correct, total):
            part = {name: x[i * size : (i + 1) * size] for name, x in batch.items()}
            slice_seed = tf.random.experimental.stateless_fold_in(seed, i)
            more_loss, more_correct, gradients = one_slice(part, weight, slice_seed)
            total = [a + b for a, b in zip(total, gradients)]
            return i + 1, loss + more_loss, correct + more_correct, total

        # not `tf.zeros`: TensorFlow would keep constants of the size of the weights between steps
        zero = tf.minimum(weight, 0.0)
        zeros = [tf.fill(v.shape, tf.cast(zero, v.dtype)) for v in self.trainable_variables]
        _, loss, correct, total = tf.while_loop(
            lambda i, *_: i * size < count,
            body,
            (tf.constant(0), tf.constant(0.0), tf.constant(0.0), zeros),
            parallel_iterations=1,  # or all slices would be in memory at once
        )
        return loss, correct, total

    def _one_slice(self, batch, weight, seed):
        # not Keras' seeds: those are counted in variables of the model
        seeds = tf.random.stateless_uniform(
            [max(len(self._dropouts), 1), 2], seed, minval=None, maxval=None, dtype=tf.int32
        )
        variables = self.trainable_variables
        with dropout_seeds(self._dropouts, seeds), inputs_up_to(self.max_length):
            with tf.GradientTape() as tape:
                loss_sum, correct = self.loss_sum(batch, training=True)
                loss = loss_sum / tf.maximum(weight, 1.0)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)
        gradients = [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, variables)
        ]
        return loss, correct, gradients

    def loss_sum(self, batch, training=False):
        """Computes the loss of the predicted tokens.

        Args:
            batch: dict of tensors. One batch of `training_batches`.
            training: bool. Whether to apply dropout.

        Returns:
            Tuple of float32 scalars: the sum of the cross entropies (natural logarithm) and the
            number of tokens predicted correctly, each token weighted by `label_weights`.
        """
        outputs = self.run_backbone(batch, training, batch["mask_positions"])
        return self.masked_lm_loss(sequence_output(outputs), batch, training)

    def run_backbone(self, batch, training, output_positions=None):
        """Returns the outputs of the backbone for a batch."""
        inputs = {name: batch[name] for name in batch if name in self.task.backbone.input_dtypes}
        inputs["output_positions"] = output_positions
        return self.task.backbone(inputs, training=training)

    def masked_lm_loss(self, hidden_states, batch, training):
        """Computes what `loss_sum` returns from the hidden states at the `mask_positions`."""
        labels, weights = batch["labels"], batch["label_weights"]
        if not self.xla:  # in XLA no shape depends on values, so unused slots are computed, too
            used = tf.where(weights > 0)  # (predicted, 2): sequence and slot
            hidden_states, labels, weights = (
                tf.gather_nd(x, used)[tf.newaxis] for x in (hidden_states, labels, weights)
            )
        logits = self.task.head(hidden_states, training=training)
        return cross_entropy_sums(logits, labels, weights)

    def fit(self, *args, **kwargs):
        """See `keras.Model.fit`, but without validation data."""
        arguments = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments
        if arguments.get("validation_data") is not None or arguments.get("validation_split"):
            self.evaluate()
        return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        """Raises `NotImplementedError`: see `evaluate_batches`."""
        raise NotImplementedError(
            "Pretrainer has neither `evaluate` nor validation in `fit`, because Keras would "
            "not weigh all tokens alike. Call `evaluate_batches(batches)` with batches such as "
            "those of `held_out_batches`."
        )

    def evaluate_batches(self, batches, micro_batch_size=None):
        """Computes loss and accuracy over a dataset, on one device.

        Args:
            batches: iterable of batches, such as `held_out_batches`.
            micro_batch_size: int. Sequences computed at once, to save memory. Defaults to a whole
                batch.

        Returns:
            Dict of floats: `"loss"` and `"accuracy"` per predicted token, NaN if there is none, and
            `"tokens"`, the number of predicted tokens.
        """
        if getattr(self, "_score", None) is None:
            loss_sum = inputs_up_to(self.max_length)(self.loss_sum)
            self._score = tf.function(loss_sum, autograph=False, reduce_retracing=True)
        if isinstance(batches, tf.data.Dataset):
            # one graph for all sizes and widths, instead of first one for those of the first batch
            specs = batches.element_spec.items()
            specs = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in specs}
            self._score.get_concrete_function(specs)
        loss = correct = tokens = 0.0
        for batch in batches:
            count = len(batch["token_ids"])
            size = micro_batch_size or count
            for first in range(0, count, size):
                part = {name: values[first : first + size] for name, values in batch.items()}
                more = self._score(part)
                loss, correct = loss + float(more[0]), correct + float(more[1])
            tokens += float(tf.reduce_sum(batch["label_weights"]))
        return {
            "loss": loss / tokens if tokens else math.nan,
            "accuracy": correct / tokens if tokens else math.nan,
            "tokens": tokens,
        }

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Does nothing. Keras would take a batch from the stream, and fail with several workers."""


def cross_entropy_sums(logits, labels, weights):
    """Sums over predictions: cross entropy, and the correct ones, each weighted.

    Logits are `(…, classes)`, labels, int32, and weights `(…)`. The sums are float32 scalars.
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    correct = tf.equal(tf.argmax(logits, -1, labels.dtype), labels)
    return (
        tf.reduce_sum(losses * weights),
        tf.reduce_sum(tf.cast(correct, tf.float32) * weights),
    )
