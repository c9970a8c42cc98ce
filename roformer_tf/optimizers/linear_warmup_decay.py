import keras

from roformer_tf.checks import check_positive_integer
from roformer_tf.optimizers.piecewise_linear import broken_line


@keras.saving.register_keras_serializable(package="roformer_tf")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to a peak, then linear decay.

    `keras.optimizers.schedules` has a warm-up only for the cosine decay.

    Args:
        peak: float. The highest learning rate, reached after `warmup_steps`.
        total_steps: int. From here on the rate stays at `end`.
        warmup_steps: integer from 0 to `total_steps`, or a float below 1: a share of `total_steps`.
        end: float. The last learning rate.

    Call arguments:
        step: integer scalar or tensor, 0 for the first update.

    Returns:
        float32 tensor of the shape of `step`.

    Raises:
        ValueError: If `total_steps` or `warmup_steps` is out of range.

    Example:

    >>> from roformer_tf.optimizers import LinearWarmupDecay
    >>> schedule = LinearWarmupDecay(1e-4, total_steps=100, warmup_steps=0.1)
    >>> [round(float(schedule(step)) * 1e4, 4) for step in (0, 5, 10, 55, 100, 200)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]

    Reference: `extend_with_piecewise_linear_lr` of bert4keras with `{warmup_steps: 1, total_steps:
    0}`.
    """

    def __init__(self, peak, total_steps, warmup_steps=0.1, end=0.0):
        check_positive_integer("total_steps", total_steps)
        if isinstance(warmup_steps, float) and 0 <= warmup_steps < 1:
            warmup_steps = int(warmup_steps * total_steps)
        if not isinstance(warmup_steps, int) or not 0 <= warmup_steps <= total_steps:
            raise ValueError(
                "`warmup_steps` must be an integer from 0 to `total_steps`, or a share below 1. "
                f"Received: warmup_steps={warmup_steps!r}, total_steps={total_steps}"
            )
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.end = end

    def __call__(self, step):
        points = [(0, 0.0), (self.warmup_steps, self.peak), (self.total_steps, self.end)]
        return broken_line(step, points)

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "end": self.end,
        }
