import numpy as np
import pytest


@pytest.fixture
def repeated_rows(rng):
    """A table, and a gradient of it with repeated rows: dense, and as TensorFlow's sparse one."""
    import tensorflow as tf

    table = rng.normal(size=(6, 2)).astype("float32")
    ids, rows = np.array([4, 1, 4, 4]), rng.normal(size=(4, 2)).astype("float32")
    dense = np.zeros_like(table)
    np.add.at(dense, ids, rows)
    sparse = tf.IndexedSlices(*map(tf.constant, (rows, ids, table.shape)))
    return table, tf.constant(dense), sparse
