"""A model on parts of the batch, each on a device of its own, gives the answers of the model."""

import keras
import numpy as np
import pytest

from roformer_tf.compat.bert4keras.models import data_parallel
from roformer_tf.compat.keras.models import Model


@pytest.mark.parametrize("parts", [None, [1, 3]])
@pytest.mark.parametrize("rows", [1, 7])
def test_answers_are_those_of_the_model(parts, rows, rng):
    inputs = keras.Input((3,)), keras.Input((2,))
    hidden = keras.layers.Concatenate()(inputs)
    model = Model(inputs, [keras.layers.Dense(4)(hidden), keras.layers.Dense(2)(hidden)])
    arrays = [rng.normal(size=(rows, width)).astype("float32") for width in (3, 2)]
    parallel = data_parallel(model, ["/device:CPU:0", "/device:CPU:1"], parts)
    for output, expected in zip(parallel.predict(arrays), model.predict(arrays)):
        # each row is the same sum of five products, whatever rows are beside it
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_a_share_for_each_device():
    model = Model(x := keras.Input((3,)), keras.layers.Dense(2)(x))
    assert data_parallel(model, ["/device:CPU:0"]) is model
    with pytest.raises(ValueError, match="`parts` must have an entry for each device"):
        data_parallel(model, ["/device:CPU:0", "/device:CPU:1"], [1])
