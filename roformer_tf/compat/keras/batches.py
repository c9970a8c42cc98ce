"""Batches of a Python generator as a `tf.data.Dataset`."""

import queue
import threading

import keras
import numpy as np
import tensorflow as tf

_END = object()


def is_generator(x):
    """Whether `x` is a generator or another iterator of batches."""
    return hasattr(x, "__next__") and not isinstance(x, tf.data.Iterator)


class Batches:
    """Runs generators in threads of their own, and stops them at the end of a `with` block.

    A generator may call `predict` of another model, which would wait for itself in a thread of
    `tf.data`. Batches may have any width; Keras 3 alone would infer the shape of all from the
    first two.
    """

    def __init__(self):
        self._stop = threading.Event()
        self._threads = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def as_dataset(self, batches):
        """Returns a dataset of a generator's batches; anything else as it is."""
        if not is_generator(batches):
            return batches
        full = queue.Queue(maxsize=10)
        first = next(batches)
        thread = threading.Thread(target=self._fill, args=(full, first, batches), daemon=True)
        self._threads.append(thread)
        thread.start()
        return as_dataset(first, lambda: iter(lambda: self._take(full), _END))

    def _fill(self, full, first, batches):
        try:
            self._put(full, first)
            for batch in batches:
                self._put(full, batch)
                if self._stop.is_set():
                    return
            self._put(full, _END)
        except Exception as error:
            self._put(full, error)

    def _put(self, full, item):
        while not self._stop.is_set():
            try:
                return full.put(item, timeout=0.1)
            except queue.Full:
                pass

    def _take(self, full):
        while not self._stop.is_set():
            try:
                item = full.get(timeout=0.1)
            except queue.Empty:
                continue
            if item is _END:
                full.put(item)  # for the next epoch
            if isinstance(item, Exception):
                raise item
            return item
        return _END


def as_dataset(first, batches):
    """Returns a dataset of batches of unknown widths.

    Args:
        first: The first batch: `(x, y)`, `(x, y, weights)` or `x`. `None` in it is left out.
        batches: Function that returns an iterator of all batches.

    Returns:
        `tf.data.Dataset` of float32 tensors.

    Example:

    >>> import numpy as np
    >>> batch = [np.zeros((2, 5)), np.zeros((2, 5))], None
    >>> as_dataset(batch, lambda: iter([batch])).element_spec[0][0]
    TensorSpec(shape=(None, None), dtype=tf.float32, name=None)
    """
    dtype = keras.config.floatx()

    def spec(x, is_label=False):
        x = np.asarray(x)
        shape = [None] * x.ndim
        if is_label and x.ndim > 1 and x.shape[-1] == 1:
            shape[-1] = 1  # by which Keras tells a class from many
        return tf.TensorSpec(shape, tf.string if x.dtype.kind in "US" else dtype)

    def map_batch(function, batch):
        if isinstance(batch, dict):
            return {name: map_batch(function, x) for name, x in batch.items()}
        if isinstance(batch, list | tuple):
            return tuple(map_batch(function, x) for x in batch)
        return function(batch)

    def parts(batch):
        if not isinstance(batch, tuple):
            return (batch,)
        while batch[-1] is None:
            batch = batch[:-1]
        return batch

    def convert(x):
        x = np.asarray(x)
        return x if x.dtype.kind in "US" else x.astype(dtype)

    def generate():
        for batch in batches():
            yield map_batch(convert, parts(batch))

    inputs, *labels = parts(first)
    labels = map_batch(lambda x: spec(x, is_label=True), labels)
    signature = (map_batch(spec, inputs), *labels)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)
