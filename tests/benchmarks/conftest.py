"""Runs the workers of a benchmark in the process of its test."""

import pytest
import tensorflow as tf


class Here:
    """A worker in this process, as each process of its own takes seconds to import its library."""

    def __init__(self, worker):
        self.worker = worker

    def __call__(self, call, **arguments):
        return getattr(self.worker, call)(**arguments)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def run_here(monkeypatch):
    """A function of a benchmark and the class of its worker."""

    def replace(benchmark, worker_cls):
        def client(module):
            assert module == worker_cls.__module__
            return Here(worker_cls())

        monkeypatch.setattr(benchmark, "Client", client)
        for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
            # too late in this process
            monkeypatch.setattr(tf.config.threading, name, lambda count: None)

    return replace
