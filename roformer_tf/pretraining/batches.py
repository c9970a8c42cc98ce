"""Streams of training batches."""

import queue
import threading
import time

import tensorflow as tf

from roformer_tf.pretraining.windows import Windows, chunks_in_window

_HELD_OUT = -1  # in place of the number of the stage

# Batches that wait for the trainer, beside a whole window in the making.
_PREFETCH = 4


def training_batches(
    corpus, tokenizer, stage, data, seed, stage_index, start=(0, 0), service=None, threads=None
):
    """Endless dataset of the global batches of a stage; each depends on its place in it only.

    The chunk files of the corpus come in a random order, in another one in each epoch. A *window* is a group of them
    with text for about `data.window_batches` batches: its documents are cut at sentence ends into pieces of
    `piece_characters` characters for each token of a row, tokenized, shuffled, formed into rows, and the rows into
    batches; rows left over, random ones, are dropped. Without packing a batch has rows of like length, as long as its
    longest. Tokens are masked anew each time. All of it is drawn from stateless seeds, made of `seed`, the stage, the
    window and the batch. So the number of threads, of workers or of restarts changes nothing.

    While the batches of a window are used, the next window is tokenized.

    Args:
        corpus: a `Corpus`.
        tokenizer: a `RoFormerTokenizer`.
        stage: a `Stage`.
        data: `DataSettings`.
        seed: integer.
        stage_index: integer, the number of the stage; stages draw differently.
        start: tuple `(window, index)` of the first batch.
        service: address of a dispatcher of tf.data's service, such as `"grpc://host:5000"`: its workers make the
            batches, which come in the same order. Workers need TensorFlow alone, and the chunk files at the same
            paths. By default `data.service`.
        threads: integer, number of threads; by default TensorFlow chooses.

    Returns:
        `tf.data.Dataset` of dictionaries of tensors, which all have `global_batch_size` rows: int32 `token_ids`,
        `segment_ids` and `padding_mask` `(rows, width)`, and with `packing="block_diagonal"` `position_ids` and
        `document_ids`; `mask_positions`, `labels` (int32) and `label_weights` (float32) `(rows, slots)`; the place
        `window` and `index` (int64) `(rows,)`, the same in each row.

    Raises:
        ValueError: if the corpus is far too small.
        tf.errors.InvalidArgumentError: while it is read, if a window has not enough rows for a batch.
        tf.errors.UnknownError: while it is read, if a worker of the service is lost; see `ordered_batches`.

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
    windows = Windows(
        corpus.chunks,
        tokenizer,
        stage,
        data,
        (seed, stage_index),
        chunks_in_window(corpus, stage, data),
    )
    service = data.service if service is None else service
    batches = _batches(windows, tf.data.Dataset.range(start[0], tf.int64.max), start, threads)
    if service:
        batches = ordered_batches(batches, service, start)
    batches = batches.map(_without_count).apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )
    return batches.with_options(_options(threads)).prefetch(_PREFETCH)


def held_out_batches(corpus, tokenizer, stage, data, seed, max_batches=None):
    """The held-out documents in batches, the same ones with the same masks at each reading.

    Args:
        corpus, tokenizer, stage, data, seed: as of `training_batches`.
        max_batches: integer, or `None` for all.

    Returns:
        Finite `tf.data.Dataset` of batches as of `training_batches`. The last batch of a window is filled with empty
        rows, whose `padding_mask` and `label_weights` are 0.

    Raises:
        ValueError: if no document is held out.

    Example:

    >>> import roformer_tf
    >>> from types import SimpleNamespace
    >>> from roformer_tf.pretraining import Stage, held_out_batches
    >>> corpus = SimpleNamespace(held_out_chunks=[])
    >>> held_out_batches(corpus, None, None, None, seed=0)
    Traceback (most recent call last):
    ValueError: No document is held out: prepare the corpus with `held_out` above 0...
    """
    if not corpus.held_out_chunks:
        raise ValueError(
            "No document is held out: prepare the corpus with `held_out` above 0, such as 0.01, and enough documents. "
            "Received: a corpus with 0 held-out chunks"
        )
    num_chunks = min(chunks_in_window(corpus, stage, data), len(corpus.held_out_chunks))
    windows = Windows(
        corpus.held_out_chunks,
        tokenizer,
        stage,
        data,
        (seed, _HELD_OUT),
        num_chunks,
        every_row=True,
    )
    numbers = tf.data.Dataset.range(-(-len(corpus.held_out_chunks) // num_chunks))
    batches = _batches(windows, numbers).map(_without_count)
    if max_batches is not None:
        batches = batches.take(max_batches)
    return batches.with_options(_options()).prefetch(_PREFETCH)


@tf.autograph.experimental.do_not_convert  # it has nothing to convert, and looking is slow
def _batches(windows, numbers, start=(0, 0), threads=None):
    calls = threads or tf.data.AUTOTUNE

    rows = numbers.flat_map(lambda window: windows.rows(window, calls))
    # a window ahead: it is tokenized while batches are made of the one before
    batches = rows.prefetch(1).flat_map(
        lambda rows: windows.batches(rows, tf.where(rows["window"] == start[0], start[1], 0))
    )
    return batches.map(windows.with_targets, num_parallel_calls=calls, deterministic=True)


def _without_count(batch):
    return {name: value for name, value in batch.items() if name != "count"}


def _options(threads=None):
    options = tf.data.Options()
    options.deterministic = True
    # TensorFlow 2.21: the thread that tunes wakes up to a minute after the iterator is gone, and `fit` waits for it
    options.autotune.enabled = False
    # every worker reads all batches and keeps its rows: there are no files to deal out
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    if threads:
        options.threading.private_threadpool_size = threads
    return options


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
