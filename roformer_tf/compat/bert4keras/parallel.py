"""Applies a function to many items in worker processes or threads."""

import itertools
import multiprocessing
import multiprocessing.dummy
import queue

import numpy as np


def parallel_apply_generator(
    func, iterable, workers, max_queue_size, dummy=False, random_seeds=True
):
    """Yields pairs of the number of an item and `func(item)`, as soon as each is ready.

    Args:
        func: Function of an item. It may be a closure, because processes are forked.
        iterable: The items, of any number.
        workers: int.
        max_queue_size: int. How many items may wait.
        dummy: bool. Whether to use threads.
        random_seeds: bool or list of int. Seeds of NumPy, one for each worker; `True` draws them.

    Example:

    >>> pairs = parallel_apply_generator(lambda x: x * x, [1, 2, 3], 2, 4, dummy=True)
    >>> sorted(pairs)
    [(0, 1), (1, 4), (2, 9)]
    """
    make = multiprocessing.dummy if dummy else multiprocessing.get_context("fork")
    waiting, ready, seeds = make.Queue(max_queue_size), make.Queue(), make.Queue()
    if not dummy:  # at the end of the program nobody reads what is left
        waiting.cancel_join_thread()
    random_seeds = [None] * workers if random_seeds is True else random_seeds or []
    for seed in random_seeds:
        seeds.put(seed)

    def work():
        try:
            np.random.seed(seeds.get(timeout=1) if random_seeds else None)  # noqa: NPY002
        except queue.Empty:
            pass
        while True:
            number, item = waiting.get()
            ready.put((number, func(item)))

    started = [make.Process(target=work) for _ in range(workers)]
    for worker in started:
        worker.daemon = True
        worker.start()
    pending = 0
    try:
        for pair in enumerate(iterable):
            pending += 1
            while True:
                try:
                    waiting.put(pair, block=False)
                    break
                except queue.Full:
                    yield ready.get()
                    pending -= 1
            while not ready.empty():
                yield ready.get()
                pending -= 1
        for _ in itertools.repeat(None, pending):
            yield ready.get()
    finally:
        for worker in started:
            if hasattr(worker, "terminate"):  # threads end with the program
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
    """Returns the list of `func(item)`, or calls `callback` with each.

    Args:
        func, iterable, workers, max_queue_size, dummy, random_seeds: See
            `parallel_apply_generator`.
        callback: Function of a result, or `None`.
        unordered: bool. Whether results may come in any order.
    """
    pairs = parallel_apply_generator(func, iterable, workers, max_queue_size, dummy, random_seeds)
    if callback is None:
        return [x for _, x in (pairs if unordered else sorted(pairs, key=lambda pair: pair[0]))]
    for _, x in pairs:
        callback(x)
