"""The learning rate of the paper's translation models, beside fairseq's way of computing it."""

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import InverseSquareRootDecay


def fairseq_rates(count, peak, warmup_updates, warmup_init_lr):
    """Returns the rate of each update, as `InverseSquareRootSchedule` of fairseq sets it."""
    lr_step = (peak - warmup_init_lr) / warmup_updates
    decay_factor = peak * warmup_updates**0.5
    rates = [warmup_init_lr]  # set when it is made; `step_update` comes after each update
    for num_updates in range(1, count):
        if num_updates < warmup_updates:
            rates.append(warmup_init_lr + num_updates * lr_step)
        else:
            rates.append(decay_factor * num_updates**-0.5)
    return rates


@pytest.mark.parametrize("peak, warmup, start", [(5e-4, 4000, 1e-7), (1.0, 1, 0.0)])
def test_equals_fairseq(peak, warmup, start):
    schedule = InverseSquareRootDecay(peak, warmup, start)
    expected = fairseq_rates(10_000, peak, warmup, start)
    rates = keras.ops.convert_to_numpy(schedule(np.arange(10_000)))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)  # float32
    assert float(schedule(4321)) == rates[4321]


def test_config():
    schedule = InverseSquareRootDecay(1e-3, 10)
    text = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(text)
    assert again.get_config() == {"peak": 1e-3, "warmup_steps": 10, "start": 1e-7}
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98)
    assert abs(float(optimizer.learning_rate) - 1e-7) < 1e-13


def test_refuses_a_warmup_of_no_steps():
    with pytest.raises(ValueError, match="warmup_steps=0"):
        InverseSquareRootDecay(1e-3, warmup_steps=0)
