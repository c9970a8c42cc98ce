"""Batches made by the workers of a tf.data service, put back in order."""

import queue
import threading
import time

import tensorflow as tf

# A worker that is so many windows and seconds behind the others is taken for lost; their batches wait in memory.
_MAX_WINDOWS_AHEAD = 32
_MAX_SECONDS_AHEAD = 60.0
TIMEOUT_SECONDS = 600.0


def ordered_batches(batches, service, start=(0, 0), timeout=None):
    """Runs a dataset on the workers of a tf.data service and gives its batches in their order.

    The dispatcher deals the windows out to the workers as they become free, so batches come as they are ready. Each
    carries its place, and waits here until those before it have come.

    A worker that dies takes its window with it, and nobody makes it again: then there is an error, at the latest after
    `timeout` seconds in which no batch comes, or when the others have been ahead for a minute and are by 32 windows. A
    run that is started again goes on from its checkpoint.

    A service on one machine, its dispatcher and a worker in processes of their own::

        service = tf.data.experimental.service
        service.DispatchServer(service.DispatcherConfig(port=5000)).join()
        service.WorkerServer(service.WorkerConfig(dispatcher_address="localhost:5000")).join()

    Args:
        batches: dataset whose source is a range of windows; its elements are dictionaries with `window`, `index` and
            `count`, the number of batches in the window, each `(rows,)`.
        service: address of the dispatcher, such as `"grpc://host:5000"`.
        start: tuple `(window, index)` of the first batch.
        timeout: float, seconds to wait for a batch; 600 by default.

    Returns:
        `tf.data.Dataset`.

    Raises:
        tf.errors.UnknownError: while it is read, if a batch does not come; its message is that of a RuntimeError.

    Reference: https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
    """
    distributed = batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, service
        )
    )
    return tf.data.Dataset.from_generator(
        lambda: _in_order(distributed, service, start, timeout or TIMEOUT_SECONDS),
        output_signature=batches.element_spec,
    )


def _in_order(batches, service, start, timeout):
    arrived = queue.Queue(maxsize=2)
    stopped = threading.Event()

    def read():
        try:
            for batch in batches:
                _put(arrived, batch, stopped)
                if stopped.is_set():
                    return
            _put(arrived, RuntimeError("it has no more batches"), stopped)
        except Exception as error:  # told to the consumer, who raises it
            _put(arrived, error, stopped)

    # a daemon: a read from a service that is gone may never return
    threading.Thread(target=read, name="tf.data service", daemon=True).start()
    try:
        yield from _sorted(arrived, service, start, timeout)
    finally:
        stopped.set()


def _put(arrived, item, stopped):
    while not stopped.is_set():
        try:
            return arrived.put(item, timeout=0.5)
        except queue.Full:
            continue


def _sorted(arrived, service, start, timeout):
    window, index = start
    waiting = {}
    while True:
        lost = (
            f"The tf.data service at {service} did not give batch {index} of window {window}: a worker or the "
            "dispatcher is lost. Start the service again, and then the run, which goes on from its last checkpoint"
        )
        began = time.monotonic()
        while (window, index) not in waiting:
            try:
                batch = arrived.get(timeout=timeout)
            except queue.Empty:
                raise RuntimeError(f"{lost} (none came in {timeout:g} seconds).") from None
            if isinstance(batch, Exception):
                raise RuntimeError(f"{lost} ({batch}).") from batch
            place = (int(batch["window"][0]), int(batch["index"][0]))
            waiting[place] = batch
            is_late = time.monotonic() - began > min(timeout, _MAX_SECONDS_AHEAD)
            if is_late and place[0] > window + _MAX_WINDOWS_AHEAD:
                raise RuntimeError(f"{lost} (others are at window {place[0]}).")
        batch = waiting.pop((window, index))
        yield batch
        index += 1
        if index == int(batch["count"][0]):
            window, index = window + 1, 0
