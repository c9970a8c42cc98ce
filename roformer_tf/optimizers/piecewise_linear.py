import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class PiecewiseLinear(keras.optimizers.schedules.LearningRateSchedule):
    """Multiplies the learning rate by a piecewise linear factor, as the original's `train.py` does.

    The factor is constant after the last point. Without a point at step 0 it starts at 0, so
    `{20000: 1.0}` is a warm-up over 20,000 steps.

    Args:
        learning_rate: float. What the factors multiply.
        factors: dict from step (integer from 0) to factor, at least one.

    Call arguments:
        step: integer scalar or tensor, 0 for the first update.

    Returns:
        float32 tensor of the shape of `step`.

    Raises:
        ValueError: If `factors` is empty or a step is not an integer from 0.

    Example:

    >>> from roformer_tf.optimizers import PiecewiseLinear
    >>> schedule = PiecewiseLinear(1e-4, {10: 1.0, 20: 0.1})
    >>> [round(float(schedule(step)) * 1e4, 4) for step in (0, 5, 10, 15, 20, 99)]
    [0.0, 0.5, 1.0, 0.55, 0.1, 0.1]

    Reference: `extend_with_piecewise_linear_lr` and `piecewise_linear` of bert4keras 0.11.5.
    """

    def __init__(self, learning_rate, factors):
        try:
            # JSON makes the steps strings
            points = {int(step): float(factor) for step, factor in factors.items()}
            exact = all(float(step) == int(step) >= 0 for step in factors)
        except (AttributeError, TypeError, ValueError):
            points, exact = {}, False
        if not points or not exact:
            raise ValueError(
                "`factors` must be a dict from steps (integers from 0) to factors, such as "
                f"{{20000: 1.0}}. Received: factors={factors!r}"
            )
        self.learning_rate = learning_rate
        self.factors = dict(sorted(points.items()))

    def __call__(self, step):
        points = list(self.factors.items())
        return self.learning_rate * broken_line(step, [(0, 0.0), *points])

    def get_config(self):
        return {"learning_rate": self.learning_rate, "factors": self.factors}


def broken_line(step, points):
    """Returns the value at `step` of the line through `points`, constant before and after them.

    `points` is [(step, value), ...] in order. Of two points at one step the second counts.
    """
    step = ops.cast(step, "float32")
    line = ops.full_like(step, points[0][1])
    for (start, value), (end, next_value) in zip(points, [*points[1:], (None, None)]):
        if end == start:
            continue
        slope = 0.0 if end is None else (next_value - value) / (end - start)
        line = ops.where(step >= start, value + slope * (step - start), line)
    return line
