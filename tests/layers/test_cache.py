"""Writing to the cache changes the given positions and nothing else."""

import numpy as np
import pytest

from roformer_tf.layers.cache import read, write
from tests.layers.harness import compiled, numpy


def test_full_cache_is_refused():
    with pytest.raises(ValueError, match="holds 4 tokens.*index=3 and 2 more tokens"):
        write(np.zeros((1, 1, 4, 2), "float32"), np.zeros((1, 1, 2, 2), "float32"), 3)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("index", [0, 3, 6])
def test_write_and_read(rng, index, length):
    cache = rng.normal(size=(2, 3, 10, 4)).astype("float32")
    new = rng.normal(size=(2, 3, length, 4)).astype("float32")
    expected = cache.copy()
    expected[:, :, index : index + length] = new
    # in place, as TensorFlow, and compiled, at an unknown index
    for function in (write, compiled(write)):
        written = function(cache + 0, new, np.int32(index))
        assert (numpy(written) == expected).all()
        assert (numpy(read(written, index, length)) == new).all()
