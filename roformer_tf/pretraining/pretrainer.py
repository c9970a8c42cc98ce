import keras
import tensorflow as tf

from roformer_tf.layers import Dropout, dropout_seeds
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.pretraining.strategies import ReducedGradientsOptimizer, all_reduce, replica_id

# of a batch, beside the inputs of the model
_TARGETS = ("mask_positions", "labels", "label_weights")


class Pretrainer(keras.Model):
    """Trains a language model; one step gives the same weights on any number of replicas and slices.

    The gradient is that of (sum of the token losses over the global batch) / (number of predicted tokens in it). Each
    replica goes through its rows in `slices` parts and adds up their gradients; these are summed over the replicas, and
    then clipped and applied once. Dropout draws from the seed, the step, the replica and the slice.

    Only the predicted positions reach the projection on the vocabulary, which costs more than the rest of a small
    model. The loss is the full projection's.

    Args:
        task: a `RoFormerMaskedLM` or `RoFormerCausalLM`.
        slices: positive integer, parts into which a replica splits its rows to save memory (gradient accumulation).
        seed: integer, of dropout.
        recompute: whether blocks compute their activations again for the gradient; takes less memory and more time.
        xla: whether forward and backward pass are compiled by XLA. Every new shape of a batch is compiled anew.
        **kwargs: of `keras.Model`.

    Call arguments:
        inputs: of the task.

    Attributes:
        step: int64 variable, optimizer steps done, skipped ones included.
        window, index: int64 variables, place of the last batch in the stream of `training_batches`.
        steps_done: int, the value of `step`.
        last_place: tuple of int, the values of `window` and `index`.
        measures_input: whether the logs say when a step had its batch, as seconds since 1970 (`input_ready`);
            TensorFlow refuses to tell the time under `enable_op_determinism`.

    Raises:
        ValueError: if `slices` is not a positive integer.

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
    >>> place = {"window": np.zeros(2, "int64"), "index": np.zeros(2, "int64")}
    >>> batch |= targets | place | {"label_weights": np.ones((2, 1), "float32")}
    >>> history = pretrainer.fit(batch, batch_size=2, verbose=0)
    >>> sorted(history.history)
    ['accuracy', 'input_ready', 'learning_rate', 'loss', 'padding', 'skipped', 'skipped_in_a_row', 'tokens']

    Reference: section 4.1 of arXiv 2104.09864; `train.py` of the original repository.
    """

    measures_input = True

    def __init__(self, task, slices=1, seed=0, recompute=False, xla=False, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(slices, int) or slices < 1:
            raise ValueError(f"`slices` must be a positive integer. Received: slices={slices!r}")
        self.task = task
        self.slices = slices
        self.seed = seed
        self.xla = xla
        for block in task.backbone.encoder_blocks:
            block.recompute_activations = recompute
        layers = task._flatten_layers(include_self=False, recursive=True)
        unique = {id(layer): layer for layer in layers if isinstance(layer, Dropout)}
        self._dropouts = [layer for layer in unique.values() if layer.rate]
        for name in ("step", "window", "index"):
            variable = self.add_weight(
                name=name, dtype="int64", trainable=False, aggregation="only_first_replica"
            )
            setattr(self, name, variable)
        self.built = True
        self._stop = None

    def call(self, inputs, training=None):
        return self.task(inputs, training=training)

    def compile_for(self, optimizer):
        """Compiles the model for an optimizer, wrapped as the steps need it.

        Args:
            optimizer: `keras.optimizers.Optimizer`. Clipping, weight decay and a moving average are its own arguments.
        """
        float16 = self.task.backbone.dtype_policy.compute_dtype == "float16"
        wrapped = ReducedGradientsOptimizer(optimizer, dynamic_scale=float16)
        self.compile(optimizer=wrapped, jit_compile=False, auto_scale_loss=False)
        wrapped.build(self.trainable_variables)
        wrapped.built = True

    def set_slices(self, slices):
        """Changes the number of slices from the next step on."""
        if slices != self.slices:
            self.slices = slices
            self.train_function = None

    def let_workers_agree(self):
        """Gives every worker a say in when to stop: then the logs have `stop`, above 0 once any worker asked for it.

        To be called once, outside the strategy's scope.
        """
        with tf.device("CPU:0"):
            self._stop = tf.Variable(0.0, trainable=False)

    def ask_to_stop(self):
        """Says that this worker wants to stop after its next step."""
        self._stop.assign(1.0)

    @property
    def steps_done(self):
        return int(tf.convert_to_tensor(self.step))

    @property
    def last_place(self):
        return int(tf.convert_to_tensor(self.window)), int(tf.convert_to_tensor(self.index))

    # === One step ===

    def train_step(self, batch):
        """One optimizer step on this replica's rows of the global batch; returns the logs of the whole batch."""
        batch = dict(batch[0] if isinstance(batch, tuple) else batch)
        logs = {}
        if self.measures_input:
            with tf.control_dependencies(list(batch.values())):
                logs["input_ready"] = tf.timestamp()
        self.window.assign(batch.pop("window")[0])
        self.index.assign(batch.pop("index")[0])
        real = tf.reduce_sum(tf.cast(batch["padding_mask"], tf.float32))
        places = tf.cast(tf.size(batch["padding_mask"]), tf.float32)
        weight = tf.reduce_sum(batch["label_weights"])
        sums = [weight, real, places]
        if self._stop is not None:
            sums.append(tf.identity(self._stop))  # on this replica's device
        weight, real, places, *stop = all_reduce(sums)
        if stop:
            logs["stop"] = stop[0]
        learning_rate = tf.convert_to_tensor(self.optimizer.learning_rate)

        loss, correct, gradients = self._loss_and_gradients(batch, weight)
        gradients = all_reduce(gradients)
        loss, correct = all_reduce([loss, correct])
        self.optimizer.apply(gradients, self.trainable_variables)
        self.step.assign_add(1)
        logs |= {
            "loss": loss,
            "accuracy": correct / tf.maximum(weight, 1.0),
            "learning_rate": learning_rate,
            "tokens": real,
            "padding": 1.0 - real / places,
            "skipped": tf.cast(self.optimizer.skipped, tf.float32),
            "skipped_in_a_row": tf.cast(self.optimizer.skipped_in_a_row, tf.float32),
        }
        if self._stop is not None:  # Keras takes the mean over the first axis of all workers
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    def _loss_and_gradients(self, batch, weight):
        """Sums over the rows of this replica: loss, right answers, and the list of gradients."""
        names = sorted(batch)
        step = tf.cast(tf.convert_to_tensor(self.step), tf.int32)
        seed = tf.stack([tf.constant(self.seed, tf.int32), step])
        seed = tf.random.experimental.stateless_fold_in(seed, replica_id())
        one_slice = tf.function(self._one_slice, jit_compile=True) if self.xla else self._one_slice
        if self.slices == 1:
            return one_slice(batch, weight, seed)

        rows = tf.shape(batch["token_ids"])[0]
        # fewer rows than slices: the last slices are empty, and count for nothing
        size = -(-rows // self.slices)

        def body(i, loss, correct, total):
            part = {name: batch[name][i * size : (i + 1) * size] for name in names}
            slice_seed = tf.random.experimental.stateless_fold_in(seed, i)
            more_loss, more_correct, gradients = one_slice(part, weight, slice_seed)
            total = [a + b for a, b in zip(total, gradients)]
            return i + 1, loss + more_loss, correct + more_correct, total

        # not `tf.zeros`: TensorFlow would keep constants as large as the weights from step to step
        zero = tf.minimum(weight, 0.0)
        zeros = [tf.fill(v.shape, tf.cast(zero, v.dtype)) for v in self.trainable_variables]
        _, loss, correct, total = tf.while_loop(
            lambda i, *_: i * size < rows,
            body,
            (tf.constant(0), tf.constant(0.0), tf.constant(0.0), zeros),
            parallel_iterations=1,  # or the slices would be in memory at once
        )
        return loss, correct, total

    def _one_slice(self, batch, weight, seed):
        # `stateless_uniform` and not Keras' own seeds: these are counted in variables of the model
        seeds = tf.random.stateless_uniform(
            [max(len(self._dropouts), 1), 2], seed, minval=None, maxval=None, dtype=tf.int32
        )
        variables = self.trainable_variables
        with dropout_seeds(self._dropouts, seeds):
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
        """Loss of the predicted tokens.

        Args:
            batch: dictionary of tensors, one batch of `training_batches`.
            training: whether dropout is on.

        Returns:
            Tuple of float32 scalars: the sum of the cross entropies (natural logarithm) and the number of tokens
            predicted right, each token weighted by `label_weights`.
        """
        positions, labels, weights = (batch[name] for name in _TARGETS)
        inputs = {name: batch[name] for name in batch if name in self.task.backbone.input}
        hidden = sequence_output(self.task.backbone(inputs, training=training))
        if (
            self.xla
        ):  # has no shapes that depend on values: unused slots are computed, and weighted by 0
            logits = self.task.head(hidden, positions, training=training)
        else:
            used = tf.where(weights > 0)  # (predicted, 2): row and slot
            places = tf.stack([used[:, 0], tf.cast(tf.gather_nd(positions, used), tf.int64)], 1)
            hidden = tf.gather_nd(hidden, places)[tf.newaxis]
            logits = self.task.head(hidden, training=training)
            labels = tf.gather_nd(labels, used)[tf.newaxis]
            weights = tf.gather_nd(weights, used)[tf.newaxis]
        logits = tf.cast(logits, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.equal(tf.argmax(logits, -1, labels.dtype), labels)
        return (
            tf.reduce_sum(losses * weights),
            tf.reduce_sum(tf.cast(right, tf.float32) * weights),
        )

    def evaluate_batches(self, batches):
        """Loss and accuracy over a dataset, on one device.

        Args:
            batches: iterable of batches, such as `held_out_batches`.

        Returns:
            Dictionary of floats: `"loss"` and `"accuracy"` per predicted token, and `"tokens"`, how many.
        """
        if getattr(self, "_score", None) is None:
            self._score = tf.function(self.loss_sum, autograph=False, reduce_retracing=True)
        if isinstance(batches, tf.data.Dataset):
            # one graph for batches of all widths, and not first one for that of the first
            self._score.get_concrete_function(batches.element_spec)
        loss = correct = tokens = 0.0
        for batch in batches:
            more = self._score(batch)
            loss, correct = loss + float(more[0]), correct + float(more[1])
            tokens += float(tf.reduce_sum(batch["label_weights"]))
        return {
            "loss": loss / max(tokens, 1.0),
            "accuracy": correct / max(tokens, 1.0),
            "tokens": tokens,
        }

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Keras would take a batch from the stream to build the model, and fail under several workers."""
