import keras
from keras import ops

from roformer_tf.optimizers.original_adamw import OriginalAdamW
from roformer_tf.optimizers.original_optimizer import matches_any, mean_square, original_shape


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalLAMB(OriginalAdamW):
    """Reproduces exactly the LAMB optimizer that RoFormer v2 was trained with.

    bert4keras' `Adam` without bias correction, with weight decay, and with updates of each weight
    scaled to its norm: the step is as long as the learning rate times the norm of the weight.
    `keras.optimizers.Lamb` corrects the bias and adapts every weight.

    Args:
        learning_rate, beta_1, beta_2, epsilon, weight_decay, no_decay, accumulation_steps: See
            `OriginalAdamW`.
        no_adaptation: regular expressions, searched in the paths of weights whose updates keep
            their size. By default those that do not decay.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: As `OriginalAdamW`.

    Example:

    >>> from roformer_tf.optimizers import OriginalLAMB, PiecewiseLinear
    >>> schedule = PiecewiseLinear(1.76e-4, {32000: 1, 320000: 0.5, 1280000: 0.1, 2560000: 0.01})
    >>> optimizer = OriginalLAMB(schedule, accumulation_steps=8)
    >>> [optimizer.adapts(f"block/{name}") for name in ("query/kernel", "norm/gamma")]
    [True, False]

    Reference: arXiv 1904.00962; `extend_with_layer_adaptation_v2` of bert4keras 0.11.5, in the
    order of `train_mlm.py` and `multi-task/main.py` of the original's v2.
    """

    bias_correction = False
    uses_kernel = False  # it has no such scale

    def __init__(
        self,
        learning_rate=1.76e-3,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        no_decay=("gamma", "beta", "theta", "(?<!output_)bias"),
        no_adaptation=None,
        accumulation_steps=1,
        name="original_lamb",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
            no_decay,
            accumulation_steps,
            name,
            **kwargs,
        )
        self.no_adaptation = self.no_decay if no_adaptation is None else tuple(no_adaptation)

    def adapts(self, path):
        """Returns whether the update of the weight at `path` is scaled to its norm."""
        return not matches_any(self.no_adaptation, path)

    def new_values(self, gradient, variable, learning_rate):
        *moments, (_, new_value) = super().new_values(gradient, variable, learning_rate)
        described = self.describe(variable)
        if self.adapts(described.path):
            new_value = adapt(variable, described, new_value, learning_rate)
        return [*moments, (variable, new_value)]

    def get_config(self):
        return {**super().get_config(), "no_adaptation": self.no_adaptation}


def adapt(variable, described, new_value, learning_rate):
    """Scales the update of each of the original's weights to the norm of the weight."""
    shape = original_shape(described)
    value, learning_rate = (
        ops.cast(ops.convert_to_tensor(x), new_value.dtype) for x in (variable, learning_rate)
    )
    value = ops.reshape(value, shape)
    change = ops.reshape(new_value, shape) - value
    # both have the same number of entries, so the ratio of these roots is that of the norms
    norm = ops.sqrt(mean_square(value, described))
    norm_of_change = ops.sqrt(mean_square(change / ops.maximum(learning_rate, 1e-7), described))
    both = ops.logical_and(norm > 0, norm_of_change > 0)
    ratio = ops.where(both, norm / ops.where(both, norm_of_change, 1.0), 1.0)
    return ops.reshape(value + change * ratio, variable.shape)
