import keras
import numpy as np
from keras import ops

from roformer_tf.optimizers.original_optimizer import (
    OriginalOptimizer,
    matches_any,
    mean_square,
    original_shape,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalAdaFactor(OriginalOptimizer):
    """Reproduces bert4keras' AdaFactor exactly, as the CLUE scripts of RoFormer v2 use it.

    Steps are relative to the root mean square of each weight. `keras.optimizers.Adafactor` has no
    momentum, adds its epsilon elsewhere and clips after the scaling.

    Args:
        learning_rate: float or schedule. `None` for min(0.01, 1 / sqrt(step)), a twentieth of it
            without `multiply_by_parameter_scale`.
        beta_1: float. Decay of the momentum, 0 for none.
        beta_2: float. Decay of the second moment. `None` for 1 - step^-0.8.
        epsilon_1, epsilon_2: floats. Added to squared gradients, and the least scale of a weight.
        multiply_by_parameter_scale: bool. Whether steps are relative to the size of weights.
        clipping_threshold: float. Largest root mean square of an update, or `None`.
        min_dim_size_to_factor: int. Matrices whose two largest axes have this many rows and columns
            keep a row and a column of second moments. The scripts keep all: 10**6.
        no_scale: regular expressions, searched in the paths of weights whose steps are absolute.
        accumulation_steps: int. See `OriginalAdamW`.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If `accumulation_steps` is not positive, or `gradient_accumulation_steps` is
            given; see `OriginalAdamW`.

    Example: the settings of the CLUE scripts.

    >>> from roformer_tf.optimizers import OriginalAdaFactor
    >>> optimizer = OriginalAdaFactor(5e-4, beta_1=0.9, min_dim_size_to_factor=10**6)
    >>> optimizer.factored_axes((768, 3072)) is None
    True

    Reference: arXiv 1804.04235; `AdaFactorV2` of bert4keras 0.11.5.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        beta_1=0.0,
        beta_2=None,
        epsilon_1=1e-30,
        epsilon_2=1e-3,
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
        min_dim_size_to_factor=128,
        no_scale=(),
        accumulation_steps=1,
        name="original_adafactor",
        **kwargs,
    ):
        rate = 1.0 if learning_rate is None else learning_rate
        super().__init__(rate, accumulation_steps, name, **kwargs)
        self.has_relative_rate = learning_rate is None
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        self.clipping_threshold = clipping_threshold
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.no_scale = tuple(no_scale)

    def _get_current_learning_rate(self):
        if not self.has_relative_rate:
            return super()._get_current_learning_rate()
        rate = ops.minimum(1 / ops.sqrt(ops.cast(self.iterations + 1, "float32")), 0.01)
        return rate if self.multiply_by_parameter_scale else rate * 0.05

    def factored_axes(self, shape):
        """Returns the two largest axes of a weight whose second moments are factored, or `None`."""
        if len(shape) < 2:
            return None
        second, largest = np.argpartition(shape, -2)[-2:].tolist()
        if shape[second] < self.min_dim_size_to_factor:
            return None
        return largest, second

    def scales(self, variable):
        """Returns whether the steps of a weight are relative to its size."""
        return self.multiply_by_parameter_scale and not matches_any(self.no_scale, variable.path)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums, self._second = {}, {}
        for index, variable in enumerate(variables):
            if self.beta_1 > 0:
                self._momentums[index] = self.add_variable_from_reference(variable, "momentum")
            shape = original_shape(self.describe(variable))
            axes = self.factored_axes(shape)
            if axes is None:
                second = [self.add_variable_from_reference(variable, "velocity")]
            else:
                second = []
                for axis, part in zip(axes, ("rows", "columns")):
                    part_shape = [1 if i == axis else n for i, n in enumerate(shape)]
                    second.append(
                        self.add_variable(part_shape, dtype=variable.dtype, name=f"velocity_{part}")
                    )
            self._second[index] = second

    def new_values(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        step = ops.cast(self.iterations + 1, dtype)
        beta_2 = 1 - ops.power(step, -0.8) if self.beta_2 is None else self.beta_2
        described = self.describe(variable)
        shape = original_shape(described)
        gradient = ops.reshape(gradient, shape)
        squares = ops.square(gradient) + self.epsilon_1
        axes = self.factored_axes(shape)
        means = [squares] if axes is None else [ops.mean(squares, a, keepdims=True) for a in axes]
        slots = self._second[index]
        second = [
            beta_2 * ops.reshape(ops.convert_to_tensor(old), mean.shape) + (1 - beta_2) * mean
            for old, mean in zip(slots, means)
        ]
        updates = [(slot, ops.reshape(new, slot.shape)) for slot, new in zip(slots, second)]
        if axes is None:
            (moment,) = second
        else:
            rows, columns = second
            moment = rows * columns / ops.mean(rows, axes[1], keepdims=True)
        change = gradient / ops.sqrt(moment + self.epsilon_1)
        if self.clipping_threshold is not None:
            root = ops.sqrt(mean_square(change, described))
            change = change / ops.maximum(1.0, root / self.clipping_threshold)
        if self.beta_1 > 0:
            momentum = self._momentums[index]
            old = ops.reshape(ops.convert_to_tensor(momentum), shape)
            change = self.beta_1 * old + (1 - self.beta_1) * change
            updates.append((momentum, ops.reshape(change, variable.shape)))
        value = ops.reshape(ops.convert_to_tensor(variable), shape)
        if self.scales(described):
            scale = ops.sqrt(mean_square(value, described))
            change = change * ops.maximum(scale, self.epsilon_2)
        new_value = ops.reshape(value - learning_rate * change, variable.shape)
        return [*updates, (variable, new_value)]

    def get_config(self):
        names = (
            "beta_1 beta_2 epsilon_1 epsilon_2 multiply_by_parameter_scale clipping_threshold "
            "min_dim_size_to_factor no_scale"
        ).split()
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {**config, "learning_rate": None} if self.has_relative_rate else config
