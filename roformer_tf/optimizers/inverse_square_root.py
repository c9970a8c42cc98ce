import keras
from keras import ops

from roformer_tf.checks import check_positive_integer


@keras.saving.register_keras_serializable(package="roformer_tf")
class InverseSquareRootDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then decay with the inverse square root of the step.

        start + (peak - start) * step / warmup_steps      before `warmup_steps`
        peak * sqrt(warmup_steps / step)                  afterwards

    Args:
        peak: float. The highest learning rate, reached after `warmup_steps`.
        warmup_steps: Positive int.
        start: float. The learning rate of the first update.

    Call arguments:
        step: integer scalar or tensor, 0 for the first update.

    Returns:
        float32 tensor of the shape of `step`.

    Raises:
        ValueError: If `warmup_steps` is not a positive integer.

    Example:

    >>> from roformer_tf.optimizers import InverseSquareRootDecay
    >>> schedule = InverseSquareRootDecay(peak=5e-4, warmup_steps=4000)
    >>> [round(float(schedule(step)) * 1e4, 4) for step in (0, 2000, 4000, 16000)]
    [0.001, 2.5005, 5.0, 2.5]

    Reference: section 4.1.2 of arXiv 2104.09864; `inverse_sqrt` of fairseq, with which the paper
    trained; but for the start, section 5.3 of Vaswani et al., arXiv 1706.03762.
    """

    def __init__(self, peak=5e-4, warmup_steps=4000, start=1e-7):
        check_positive_integer("warmup_steps", warmup_steps)
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.start = start

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = self.start + step * ((self.peak - self.start) / self.warmup_steps)
        falling = self.peak * ops.sqrt(self.warmup_steps / ops.maximum(step, self.warmup_steps))
        return ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "start": self.start}
