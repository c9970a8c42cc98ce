"""Streams of training batches, made in this process or by the workers of a tf.data service."""

import queue
import socket
import threading
import time

import tensorflow as tf

from roformer_tf.models.batches import plain
from roformer_tf.pretraining.settings import service_address
from roformer_tf.pretraining.windows import Windows, shards_in_window

HELD_OUT = -1  # instead of the number of the stage

# Batches that wait for the trainer, besides a whole window in the making.
_PREFETCH = 4
# A worker of a service that is this far behind the others counts as lost; their batches wait in
# memory.
_MAX_WINDOWS_AHEAD = 32
_MAX_SECONDS_AHEAD = 60.0
TIMEOUT_SECONDS = 600.0
_CONNECT_SECONDS = 10.0


def training_batches(
    corpus, tokenizer, stage, data, seed, stage_index, start=(0, 0), service=None, threads=None
):
    """Makes an endless dataset of a stage's global batches, each a function of its position only.

    The shards of the corpus are read in a random order, a new one in each epoch. A *window* is a
    group of shards with text for about `data.window_batches` batches. Its documents are split at
    sentence ends into chunks of `chunk_characters` characters per token of a sequence, tokenized,
    shuffled, formed into sequences, and these into batches. The sequences left over, a random
    choice, are dropped. Without packing a batch has sequences of similar length and is as wide as
    its longest. Tokens are masked again each time.

    All of this is drawn from stateless seeds made of `seed`, the stage, the window and the batch.
    So the number of threads, of workers or of restarts changes nothing. While the batches of one
    window are used, the next window is tokenized.

    Args:
        corpus: a `Corpus`.
        tokenizer: a `RoFormerTokenizer`.
        stage: a `Stage`.
        data: `DataSettings`.
        seed: int.
        stage_index: int. Number of the stage; each stage draws differently.
        start: tuple `(window, index)`. Position of the first batch in the stream.
        service: str. Address of a dispatcher of the tf.data service, such as
            `"grpc://host:5000"`. Its workers make the batches, which come in the same order.
            Workers need only TensorFlow, and the shards at the same paths. Defaults to
            `data.service`.
        threads: int. Number of threads; TensorFlow chooses by default.

    Returns:
        `tf.data.Dataset` of dicts of tensors with `global_batch_size` sequences each. `(batch,
        sequence_length)`, int32: `token_ids`, `segment_ids`, `padding_mask`, and with
        `packing="block_diagonal"` `position_ids` and `document_ids`. `(batch, slots)`:
        `mask_positions` and `labels`, int32, and `label_weights`, float32. `(batch,)`, int64: the
        position `window` and `index` of the batch, the same for each sequence.

    Raises:
        ValueError: If the corpus is far too small.
        ConnectionError: If the service cannot be reached.
        tf.errors.InvalidArgumentError: While reading, if a window does not fill a batch.
        tf.errors.UnknownError: While reading, if a worker of the service is lost; see
            `ordered_batches`.

    Example:

    >>> import os, tempfile
    >>> import roformer_tf
    >>> from roformer_tf.pretraining import Stage, prepare_corpus, training_batches
    >>> from roformer_tf.pretraining.settings import DataSettings
    >>> folder = tempfile.mkdtemp()
    >>> file = os.path.join(folder, "poem.txt")
    >>> with open(file, "w", encoding="utf-8") as poem:
    ...     _ = poem.write("天地玄黄。宇宙洪荒。日月盈昃。辰宿列张。")
    >>> corpus = prepare_corpus([file], folder)
    >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(special + list("天地玄黄"), word_level=False)
    >>> stage = Stage(max_length=16, global_batch_size=2, steps=1, learning_rate=1e-3)
    >>> data = DataSettings(files=(file,))
    >>> batch = next(iter(training_batches(corpus, tokenizer, stage, data, seed=0, stage_index=0)))
    >>> batch["token_ids"].shape[0], batch["labels"].shape[0]
    (2, 2)

    Reference: the data generator of `train.py` of the original repository.
    """
    num_shards = shards_in_window(corpus, stage, data)
    windows = Windows(corpus.shards, tokenizer, stage, data, (seed, stage_index), num_shards)
    service = data.service if service is None else service
    batches = endless_batches(windows, start, service, threads)
    return as_stream(batches, threads)


def endless_batches(windows, start=(0, 0), service=None, threads=None):
    """Makes the endless dataset of the batches of windows, from a position in the stream on."""
    again = 0
    if service and start[1]:
        # `start` may be the end of its window. Only a batch of the window tells how many it has, so
        # the batch before `start` is made again, and skipped below.
        start, again = (start[0], start[1] - 1), 1
    batches = _batches(windows, tf.data.Dataset.range(start[0], tf.int64.max), start, threads)
    if service:
        batches = ordered_batches(batches, service, start).skip(again)
    return batches.map(_without_count).apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )


def held_out_batches(corpus, tokenizer, stage, data, seed, max_batches=None):
    """Makes batches of the held-out documents, the same ones with the same masks at each reading.

    Args:
        corpus, tokenizer, stage, data, seed: see `training_batches`.
        max_batches: int, or `None` for all.

    Returns:
        Finite `tf.data.Dataset` of batches like those of `training_batches`. The last batch of a
        window is filled with empty sequences, whose `padding_mask` and `label_weights` are 0.

    Raises:
        ValueError: If no document is held out.

    Example:

    >>> import roformer_tf
    >>> from types import SimpleNamespace
    >>> from roformer_tf.pretraining import Stage, held_out_batches
    >>> corpus = SimpleNamespace(held_out_shards=[])
    >>> held_out_batches(corpus, None, None, None, seed=0)
    Traceback (most recent call last):
    ValueError: No document is held out. Prepare the corpus with `held_out` above 0...
    """
    shards = corpus.held_out_shards
    if not shards:
        raise ValueError(
            "No document is held out. Prepare the corpus with `held_out` above 0, such as 0.01, "
            "and enough documents. Received: a corpus with 0 held-out shards"
        )
    num_shards = min(shards_in_window(corpus, stage, data), len(shards))
    windows = Windows(shards, tokenizer, stage, data, (seed, HELD_OUT), num_shards, keep_all=True)
    return finite_batches(windows, max_batches)


def finite_batches(windows, max_batches=None):
    """Makes the dataset of all batches of windows with `keep_all`, or of the first of them."""
    numbers = tf.data.Dataset.range(-(-len(windows.shards) // windows.num_shards))
    batches = _batches(windows, numbers).map(_without_count)
    if max_batches is not None:
        batches = batches.take(max_batches)
    return as_stream(batches)


@plain
def _batches(windows, numbers, start=(0, 0), threads=None):
    calls = threads or tf.data.AUTOTUNE
    sequences = numbers.flat_map(lambda window: windows.sequences(window, calls))
    # one window ahead: it is tokenized while the batches of the one before are used
    batches = sequences.prefetch(1).flat_map(
        lambda one: windows.batches(one, tf.where(one["window"] == start[0], start[1], 0))
    )
    return batches.map(windows.with_targets, num_parallel_calls=calls, deterministic=True)


def _without_count(batch):
    return {name: value for name, value in batch.items() if name != "count"}


def as_stream(batches, threads=None):
    """Makes some batches ahead, in an order that does not depend on threads or workers."""
    options = tf.data.Options()
    options.deterministic = True
    # TensorFlow 2.21: the thread that tunes wakes up to a minute after the iterator is gone, and
    # `fit` waits for it
    options.autotune.enabled = False
    # every worker reads all batches and keeps its share: there are no files to distribute
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    if threads:
        options.threading.private_threadpool_size = threads
    return batches.with_options(options).prefetch(_PREFETCH)


def ordered_batches(batches, service, start=(0, 0)):
    """Runs a dataset on the workers of a tf.data service and yields its batches in order.

    The dispatcher hands windows to workers as they become free, so batches arrive out of order.
    Each carries its position and is held back until those before it have come.

    A worker that dies takes its window with it, and no other worker makes it again. Then an error
    is raised: when no batch has come for 10 minutes, or when the other workers have been waiting
    for a minute and are 32 windows ahead. A run that is started again resumes from its checkpoint.

    To run a service on one machine, start a dispatcher and a worker, each in its own process::

        service = tf.data.experimental.service
        service.DispatchServer(service.DispatcherConfig(port=5000)).join()
        service.WorkerServer(service.WorkerConfig(dispatcher_address="localhost:5000")).join()

    Args:
        batches: dataset made from a range of windows. Its elements are dicts with `window`,
            `index` and `count`, the number of batches in the window, each `(batch,)`.
        service: str. Address of the dispatcher, such as `"grpc://host:5000"`.
        start: tuple `(window, index)`. Position of the first batch in the stream.

    Returns:
        `tf.data.Dataset`.

    Raises:
        ValueError: If `service` is not PROTOCOL://HOST:PORT.
        ConnectionError: If nothing answers there in 10 seconds.
        tf.errors.UnknownError: While reading, if a batch does not come. TensorFlow wraps the
            RuntimeError raised here in it.

    Reference: https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
    """
    _check_service(service)
    distributed = batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, service
        )
    )
    return tf.data.Dataset.from_generator(
        lambda: _in_order(distributed, service, start, TIMEOUT_SECONDS),
        output_signature=batches.element_spec,
    )


def _check_service(service):
    """Raises an error unless something answers at the address.

    TensorFlow would wait for it without end, in C++ code that no signal interrupts.
    """
    try:
        socket.create_connection(service_address(service), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"The tf.data service at {service} cannot be reached ({error}). Start its dispatcher "
            "and its workers before the run, or correct `data.service` (--service)."
        ) from error


def _in_order(batches, service, start, timeout):
    """Yields the batches in order; a thread reads them, so that waiting can time out."""
    arrived = queue.Queue(maxsize=2)
    stopped = threading.Event()

    def put(item):
        while not stopped.is_set():
            try:
                return arrived.put(item, timeout=0.5)
            except queue.Full:
                continue

    def read():
        try:
            for batch in batches:
                put(batch)
                if stopped.is_set():
                    return
            put(RuntimeError("it has no more batches"))
        except Exception as error:  # raised again by the consumer
            put(error)

    # a daemon: reading from a service that is gone may never return
    threading.Thread(target=read, name="tf.data service", daemon=True).start()
    try:
        yield from _sorted(arrived, service, start, timeout)
    finally:
        stopped.set()


def _sorted(arrived, service, start, timeout):
    window, index = start
    waiting = {}
    while True:
        lost = (
            f"The tf.data service at {service} did not return batch {index} of window {window}: a "
            "worker or the dispatcher is lost. Start the service again, and then the run, which "
            "resumes from its last checkpoint"
        )
        began = time.monotonic()
        while (window, index) not in waiting:
            try:
                batch = arrived.get(timeout=timeout)
            except queue.Empty:
                raise RuntimeError(f"{lost} (none came in {timeout:g} seconds).") from None
            if isinstance(batch, Exception):
                raise RuntimeError(f"{lost} ({batch}).") from batch
            position = (int(batch["window"][0]), int(batch["index"][0]))
            waiting[position] = batch
            is_late = time.monotonic() - began > min(timeout, _MAX_SECONDS_AHEAD)
            if is_late and position[0] > window + _MAX_WINDOWS_AHEAD:
                raise RuntimeError(f"{lost} (other workers are at window {position[0]}).")
        batch = waiting.pop((window, index))
        yield batch
        index += 1
        if index == int(batch["count"][0]):
            window, index = window + 1, 0
