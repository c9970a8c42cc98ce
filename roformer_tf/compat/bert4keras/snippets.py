"""`bert4keras.snippets`: padding, truncating, batches, decoding."""

import builtins
import json
import multiprocessing
import multiprocessing.dummy
import os
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from roformer_tf.compat import names_not_offered
from roformer_tf.compat.bert4keras.backend import K, keras  # noqa: F401
from roformer_tf.compat.bert4keras.decoding import (  # noqa: F401
    AutoRegressiveDecoder,
    ViterbiDecoder,
    softmax,
)
from roformer_tf.files import replace_file
from roformer_tf.text.tokenizer_tables import normalize as lowercase_and_normalize  # noqa: F401

uniout = None  # a package that printed Chinese on Python 2
is_py2 = False


def to_array(*args):
    """Returns an array of one argument, or a list of the arrays of several."""
    arrays = [np.array(x) for x in args]
    return arrays[0] if len(args) == 1 else arrays


def is_string(s):
    """Whether `s` is a `str`."""
    return isinstance(s, str)


def string_matching(s, keywords):
    """Whether one of the regular expressions is found in `s`."""
    return any(re.search(keyword, s) for keyword in keywords)


class _IndexedFile:
    """A text file whose lines are read by their number."""

    def __init__(self, file, path=None):
        self.file = file
        if path is not None and os.path.exists(path):
            self.offsets = json.loads(Path(path).read_text("utf-8"))
            return
        self.offsets = [0]
        while file.readline():
            self.offsets.append(file.tell())
        self.offsets.pop()  # no line begins at the end
        file.seek(0)
        if path is not None:
            with replace_file(path) as index:
                index.write(json.dumps(self.offsets).encode())

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, key):
        self.file.seek(self.offsets[key])
        return self.file.readline()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __iter__(self):
        return iter(self.file)

    def __next__(self):
        return next(self.file)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


def open(name, mode="r", encoding=None, errors="strict", indexable=False):
    """Opens a file. With `indexable`, `len(file)` counts its lines and `file[i]` is one.

    `indexable` is `True`, or the path of a JSON file to keep the places of the lines in. A file that
    is there is read, and not compared with the text.
    """
    text = {} if "b" in mode else {"encoding": encoding, "errors": errors}
    file = builtins.open(name, mode, **text)
    if not indexable:
        return file
    return _IndexedFile(file, indexable if isinstance(indexable, str | os.PathLike) else None)


def sequence_padding(inputs, length=None, value=0, seq_dims=1, mode="post"):
    """Pads sequences to one length and stacks them in an array.

    Args:
        inputs: list of sequences or arrays.
        length: int or list of int. Longer ones are cut; the longest by default.
        value: number to pad with.
        seq_dims: int. How many of the first axes to pad.
        mode: `"post"` or `"pre"`.

    >>> sequence_padding([[1, 2], [3]]).tolist()
    [[1, 2], [3, 0]]
    """
    if mode not in ("post", "pre"):
        raise ValueError(f"`mode` must be 'post' or 'pre'. Received: mode={mode!r}")
    arrays = [np.asarray(x) for x in inputs]
    if length is None:
        length = np.max([x.shape[:seq_dims] for x in arrays], axis=0)
    length = np.broadcast_to(length, (seq_dims,))
    padded = []
    for x in arrays:
        x = x[tuple(slice(n) for n in length)]
        gaps = [n - m for n, m in zip(length, x.shape)]
        widths = [(0, gap) if mode == "post" else (gap, 0) for gap in gaps]
        widths += [(0, 0)] * (x.ndim - seq_dims)
        padded.append(np.pad(x, widths, constant_values=value))
    return np.array(padded)


def truncate_sequences(maxlen, indices, *sequences):
    """Removes items of the longest list, in place, until all together have `maxlen`.

    `indices` is the place of the items to remove, one int for all lists or one for each. Empty
    lists and `None` do not count, and are not returned.

    >>> truncate_sequences(4, -1, [1, 2, 3], [4, 5])
    [[1, 2], [4, 5]]
    """
    sequences = [sequence for sequence in sequences if sequence]
    if not isinstance(indices, list | tuple):
        indices = [indices] * len(sequences)
    lengths = [len(sequence) for sequence in sequences]
    for _ in range(sum(lengths) - maxlen):
        longest = lengths.index(max(lengths))
        sequences[longest].pop(indices[longest])
        lengths[longest] -= 1
    return sequences


def text_segmentate(text, maxlen, seps="\n", strips=None):
    r"""Returns the segments of a text, of about `maxlen` characters, split at separators.

    `roformer_tf.text.text_segmentate` splits many texts in a graph.

    Args:
        text: str.
        maxlen: int or float.
        seps: str or list of str. Separators, in the order in which they are tried.
        strips: str. Characters to remove from both ends of segments, besides white space.

    >>> text_segmentate("春眠不觉晓，处处闻啼鸟。夜来风雨声", 12, "。，", "，")
    ['春眠不觉晓，处处闻啼鸟。', '夜来风雨声']
    """
    text = text.strip().strip(strips)
    if not seps or len(text) <= maxlen:
        return [text]
    separator, *others = seps
    segments, segment = [], ""
    *parts, last = text.split(separator)
    for part, end in [*((part, separator) for part in parts), (last, "")]:
        if segment and part and len(segment) + len(part) > maxlen - 1:
            segments += text_segmentate(segment, maxlen, others, strips)
            segment = ""
        segment += part + end
    return segments + (text_segmentate(segment, maxlen, others, strips) if segment else [])


class DataGenerator:
    """Makes batches of examples. Subclasses implement `__iter__(random)` with `sample`.

    Args:
        data: list of examples, or an iterable of unknown length.
        batch_size: int.
        buffer_size: int. How many examples of an iterable to shuffle, 1,000 batches by default.

    >>> class Numbers(DataGenerator):
    ...     def __iter__(self, random=False):
    ...         batch = []
    ...         for is_end, x in self.sample(random):
    ...             batch.append(x)
    ...             if len(batch) == self.batch_size or is_end:
    ...                 yield batch
    ...                 batch = []
    >>> len(Numbers([1, 2, 3], 2)), list(Numbers([1, 2, 3], 2))
    (2, [[1, 2], [3]])
    """

    def __init__(self, data, batch_size=32, buffer_size=None):
        self.data = data
        self.batch_size = batch_size
        self.steps = -(-len(data) // batch_size) if hasattr(data, "__len__") else None
        self.buffer_size = buffer_size or batch_size * 1000

    def __len__(self):
        return self.steps

    def sample(self, random=False):
        """Yields pairs of whether an example is the last one, and the example."""
        if not random:
            examples = iter(self.data)
        elif self.steps is None:
            examples = self._shuffled()
        else:
            examples = (self.data[i] for i in np.random.permutation(len(self.data)))  # noqa: NPY002
        current = next(examples)
        for following in examples:
            yield False, current
            current = following
        yield True, current

    def _shuffled(self):
        buffer = []
        for example in self.data:
            buffer.append(example)
            if len(buffer) > self.buffer_size:
                yield buffer.pop(np.random.randint(len(buffer)))  # noqa: NPY002
        while buffer:
            yield buffer.pop(np.random.randint(len(buffer)))  # noqa: NPY002

    def __iter__(self, random=False):
        raise NotImplementedError

    def forfit(self, random=True):
        """Yields batches endlessly, for `fit` with `steps_per_epoch`."""
        while True:
            yield from self.__iter__(random)

    def fortest(self, random=False):
        """Yields the inputs of batches endlessly, for `predict` with `steps`."""
        while True:
            for batch in self.__iter__(random):
                yield batch[0]

    def to_dataset(self, types, shapes, names=None, padded_batch=False):
        """Returns a `tf.data.Dataset` of batches of the examples that `__iter__` yields one by one.

        Args:
            types, shapes: Structures of the dtypes and shapes of one example.
            names: str, tuple of str, or tuple of tuples of str. Names of the example's parts.
            padded_batch: bool. Whether to pad the examples of a batch.
        """

        def named(names, parts):
            if names is None:
                return parts
            if isinstance(names, str):
                return {names: parts}
            if isinstance(names[0], str):
                return dict(zip(names, parts))
            return tuple(dict(zip(n, p)) for n, p in zip(names, parts))

        dataset_shapes = named(names, shapes)
        dataset = tf.data.Dataset.from_generator(
            lambda: (named(names, example) for example in self.forfit()),
            output_types=named(names, types),
            output_shapes=None if padded_batch else dataset_shapes,
        )
        if padded_batch:
            return dataset.padded_batch(self.batch_size, dataset_shapes)
        return dataset.batch(self.batch_size)


def parallel_apply_generator(
    func, iterable, workers, max_queue_size, dummy=False, random_seeds=True
):
    """Yields pairs of the number of an item and `func(item)`, those that are ready first.

    Args:
        func: Function of an item. It may be a closure, because processes are forked.
        iterable: The items, of any number.
        workers, max_queue_size: ints. How many work, and how many items may wait.
        dummy: bool. Whether to use threads.
        random_seeds: bool or list of int. Seeds of NumPy, one for each worker; `True` draws them,
            and `False` sets none.

    >>> pairs = parallel_apply_generator(lambda x: x * x, [1, 2, 3], 2, 4, dummy=True)
    >>> sorted(pairs)
    [(0, 1), (1, 4), (2, 9)]
    """
    make = multiprocessing.dummy if dummy else multiprocessing.get_context("fork")
    waiting, ready, pending = make.Queue(), make.Queue(), 0
    if not dummy:  # else the program would not end before all is read
        waiting.cancel_join_thread()

    def work(*seed):
        if seed:
            np.random.seed(*seed)  # noqa: NPY002
        while True:
            number, item = waiting.get()
            ready.put((number, func(item)))

    seeds = [None] * workers if random_seeds is True else random_seeds or []
    started = [make.Process(target=work, args=seeds[i : i + 1]) for i in range(workers)]
    for worker in started:
        worker.daemon = True
        worker.start()
    try:
        for pair in enumerate(iterable):
            while pending == workers + max_queue_size or not ready.empty():
                yield ready.get()
                pending -= 1
            waiting.put(pair)
            pending += 1
        for _ in range(pending):
            yield ready.get()
    finally:
        if not dummy:  # threads end with the program
            for worker in started:
                worker.terminate()


def parallel_apply(
    func,
    iterable,
    workers,
    max_queue_size,
    callback=None,
    dummy=False,
    random_seeds=True,
    unordered=True,
):
    """Returns the list of `func(item)` in any order, or calls `callback` with each.

    `unordered=False` keeps the order. See `parallel_apply_generator` for the other arguments.
    """
    pairs = parallel_apply_generator(func, iterable, workers, max_queue_size, dummy, random_seeds)
    if callback is None:
        return [x for _, x in (pairs if unordered else sorted(pairs, key=lambda pair: pair[0]))]
    for _, x in pairs:
        callback(x)


_HINTS = {
    "WebServing": "Export the model and serve it: examples/serve.py.",
    "longest_common_.*": "Use `difflib.SequenceMatcher`.",
    "(insert|delete)_arguments": "Write the arguments in `__init__`.",
    "convert_to_(unicode|str)": "Use `bytes.decode`.",
    "strQ2B": "Use `unicodedata.normalize('NFKC', text)`.",
    "is_one_of": "Use `any(x is y for y in ys)`.",
    "orthogonally_resize": "There is none: weights of another size cannot be loaded.",
}
__getattr__ = names_not_offered(__name__, _HINTS)
