"""Devices of a run, and the sums over replicas that make a step the same on any number of them."""

import json
import os
import signal
import sys
import threading
import zlib

import keras
import tensorflow as tf

from roformer_tf.checks import check_positive_integer, check_tensorflow_backend


def check_backend():
    """Raises `ValueError` if the Keras backend is not TensorFlow."""
    check_tensorflow_backend(
        "Pretraining",
        "Unset `KERAS_BACKEND`, or set it to `tensorflow`. Any backend loads the trained model.",
    )


def choose_strategy(cpu_replicas=None):
    """Chooses the strategy for the devices of this machine.

    `MultiWorkerMirroredStrategy` if `TF_CONFIG` names more than one worker (call this before any
    other TensorFlow operation), `MirroredStrategy` over all visible GPUs if there are several, one
    device otherwise.

    Args:
        cpu_replicas: int. Number of replicas on logical CPU devices, to try things without GPUs.
            Call this before any other TensorFlow operation.

    Returns:
        `tf.distribute.Strategy`.

    Raises:
        ValueError: If `TF_CONFIG` is not valid JSON, or is set together with `cpu_replicas`, or
            `cpu_replicas` is not positive.
        RuntimeError: If TensorFlow has already started.
        ConnectionError: If the address of this worker in `TF_CONFIG` is taken, or not all workers
            come.

    Example:

    >>> from roformer_tf.pretraining import choose_strategy
    >>> choose_strategy().num_replicas_in_sync
    1
    """
    check_positive_integer("cpu_replicas", cpu_replicas, optional=True)
    if num_workers() > 1:
        if cpu_replicas:
            raise ValueError("Use either `cpu_replicas` or TF_CONFIG. Received: both")
        return _with_workers()
    if cpu_replicas and cpu_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        have = tf.config.get_logical_device_configuration(cpu) or [None]
        if len(have) < cpu_replicas:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * cpu_replicas
            )
        devices = [f"CPU:{i}" for i in range(cpu_replicas)]
        # sums in a fixed order; and two strategies of the default kind would abort the process
        return tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _with_workers():
    print(f"Waiting for all {num_workers()} workers of TF_CONFIG", file=sys.stderr)
    # Python handlers do not run while TensorFlow waits
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise ConnectionError(
            "The workers of TF_CONFIG cannot connect. Does a process of an earlier start still "
            f"hold the port? TensorFlow said: {reason_of(error)}"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def num_workers():
    """Returns the number of workers in `TF_CONFIG`; 1 without it."""
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return 1
    try:
        cluster = json.loads(text).get("cluster", {})
        return len(cluster.get("worker", [])) + len(cluster.get("chief", [])) or 1
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host:port", …]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r}'
        ) from error


def is_chief(strategy):
    """Returns whether this process writes the files of the run: the first or only worker."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec().as_dict():
        return True
    kind, index = resolver.task_type, resolver.task_id
    if kind == "worker":
        return index == 0 and "chief" not in resolver.cluster_spec().jobs
    return kind in (None, "chief")


def lost_worker(error):
    """Returns whether a TensorFlow error means that another worker is lost, some ten seconds ago."""
    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    kinds += (tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)
    return num_workers() > 1 and isinstance(error, kinds)


def reason_of(error):
    """Extracts the reason from the message of a lost worker: one line, without the trace."""
    text = error.message.split("Collective ops is aborted by:")[-1].split("The error could be")[0]
    return " ".join(text.split())[-500:]


def all_agree(strategy, text):
    """Returns whether all workers pass the same string; all of them must call this."""
    number = tf.constant(float(zlib.crc32(text.encode()) % 2**20), tf.float64)

    def sums():
        return all_reduce([tf.stack([number, number * number])])[0]

    totals = strategy.run(tf.function(sums, autograph=False))
    total = strategy.experimental_local_results(totals)[0].numpy()
    # only equal numbers have no variance; the sums are integers below 2^53, so this is exact
    return total[0] ** 2 == total[1] * strategy.num_replicas_in_sync


def distribute_batches(batches, strategy):
    """Splits global batches among the replicas, in the order of the replicas.

    Args:
        batches: `tf.data.Dataset` of dicts with one global batch each.
        strategy: `tf.distribute.Strategy`.

    Returns:
        The dataset itself for one replica, otherwise a distributed dataset for `fit`.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batches

    def of_this_worker(context):
        local = replicas // context.num_input_pipelines
        first = local * context.input_pipeline_id

        def split(batch):
            def parts(x):
                shape = tf.concat([[replicas, tf.shape(x)[0] // replicas], tf.shape(x)[1:]], 0)
                x = tf.ensure_shape(tf.reshape(x, shape), [replicas, None, *x.shape[1:]])
                return x[first : first + local]

            return {name: parts(x) for name, x in batch.items()}

        return batches.map(split).unbatch().prefetch(2 * local)

    return strategy.distribute_datasets_from_function(of_this_worker)


def all_reduce(tensors):
    """Sums a tensor, or each of a list, over the replicas. Call it in replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


class ReducedGradientsOptimizer(keras.optimizers.LossScaleOptimizer):
    """Wraps an optimizer whose gradients come summed over all replicas; skips non-finite steps.

    Keras clips each replica's gradients before it sums them, looks for infinities on the first
    replica only, and skips steps in float16 only. Here the gradients come reduced, so that all
    replicas clip and skip alike, in every dtype.

    Args:
        inner_optimizer: `keras.optimizers.Optimizer`.
        dynamic_scale: bool. Whether to scale the loss up to keep small float16 gradients, as
            `LossScaleOptimizer` does.

    Attributes:
        skipped: int variable. Number of steps skipped so far.
        skipped_in_a_row: int variable. Number of steps skipped since the last one applied.
    """

    def __init__(self, inner_optimizer, dynamic_scale=False):
        scale = 2.0**15 if dynamic_scale else 1.0
        # Keras would number its own name
        super().__init__(inner_optimizer, scale, name="reduced_gradients")
        self.has_dynamic_scale = dynamic_scale
        # Nothing is left to reduce. Private in Keras 3.15; a test notices if it changes.
        inner_optimizer._all_reduce_sum_gradients = list

    def build(self, var_list):
        for name in ("skipped", "skipped_in_a_row"):
            variable = self.add_variable(
                shape=(), dtype="int", initializer="zeros", aggregation="none", name=name
            )
            setattr(self, name, variable)
        super().build(var_list)

    def _stateful_handle_finite_grads(self, grads, trainable_variables):
        self.skipped_in_a_row.assign(0)
        if self.has_dynamic_scale:
            super()._stateful_handle_finite_grads(grads, trainable_variables)
        else:
            self.inner_optimizer.apply(list(grads), trainable_variables=trainable_variables)

    def _stateful_handle_non_finite_grads(self):
        self.skipped.assign_add(1)
        self.skipped_in_a_row.assign_add(1)
        if self.has_dynamic_scale:
            super()._stateful_handle_non_finite_grads()
