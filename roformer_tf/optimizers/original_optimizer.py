import re
from types import SimpleNamespace

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer

_JOINT = re.compile(r"(^|/)qkv/(kernel|bias)$")


class OriginalOptimizer(keras.optimizers.Optimizer):
    """Base class of bert4keras' optimizers: micro-steps whose gradients are accumulated.

    Every call is a micro-step, and `iterations`, which sets the learning rate, counts micro-steps.
    Weights change at micro-steps 0, k, 2k, ... (k = `accumulation_steps`). Each update uses the
    mean of the k gradients *before* its micro-step, with the learning rate and the number of this
    micro-step. Subclasses implement `new_values`.

    Reference: `extend_with_gradient_accumulation_v2` in `optimizers.py` of bert4keras 0.11.5.
    """

    def __init__(self, learning_rate, accumulation_steps, name, **kwargs):
        check_positive_integer("accumulation_steps", accumulation_steps)
        if kwargs.get("gradient_accumulation_steps") is not None:
            raise ValueError(
                f"{type(self).__name__} accumulates by `accumulation_steps`, as the original does; "
                "leave `gradient_accumulation_steps` out. Received: gradient_accumulation_steps="
                f"{kwargs['gradient_accumulation_steps']!r}"
            )
        # Keras would decay the weights before, and not with, the update, and at every micro-step
        super().__init__(learning_rate, weight_decay=None, name=name, **kwargs)
        self.accumulation_steps = accumulation_steps

    def build(self, variables):
        super().build(variables)
        self._descriptions = [
            SimpleNamespace(path=getattr(v, "path", v.name), shape=tuple(v.shape))
            for v in variables
        ]
        self._sums = None
        if self.accumulation_steps > 1:
            self._sums = self.add_optimizer_variables(variables, "gradient_sum")

    def describe(self, variable):
        """Returns path and shape of a variable; on TensorFlow an update gets one without a path."""
        return self._descriptions[self._get_variable_index(variable)]

    def new_values(self, gradient, variable, learning_rate):
        """Returns a list of variables and the tensors that an update sets them to."""
        raise NotImplementedError

    def update_step(self, gradient, variable, learning_rate):
        # No branch: JAX traces both sides of one anyway, and cannot assign to variables in them.
        now = self.updates_now()
        gradient = ops.cast(gradient, variable.dtype)
        accumulates = self.accumulation_steps > 1
        if accumulates:
            sum_of = self._sums[self._get_variable_index(variable)]
            total = ops.convert_to_tensor(sum_of)
            new_total = ops.where(now, gradient, total + gradient)
            gradient = total / self.accumulation_steps
        updates = self.new_values(gradient, variable, ops.cast(learning_rate, variable.dtype))
        if accumulates:
            updates = [(x, ops.where(now, new, ops.convert_to_tensor(x))) for x, new in updates]
            updates.append((sum_of, new_total))
        # only now, as a tensor of PyTorch is the variable's own memory
        for target, new in updates:
            self.assign(target, new)

    def updates_now(self):
        """Whether weights change at this micro-step."""
        return ops.equal(ops.mod(self.iterations, self.accumulation_steps), 0)

    def get_config(self):
        config = super().get_config()
        del config["gradient_accumulation_steps"], config["weight_decay"]
        return {**config, "accumulation_steps": self.accumulation_steps}


def original_shape(variable):
    """Returns a shape of a variable in which each weight that the original has is apart.

    Queries, keys and values have one kernel and one bias here, and three in the original, whose
    norms and means are taken of each: `(inputs, 3, units)`. Other variables keep their shape.

    >>> import numpy as np
    >>> with keras.name_scope("qkv"):
    ...     kernel = keras.Variable(np.zeros((4, 12)), name="kernel")
    >>> original_shape(kernel)
    (4, 3, 4)
    """
    shape = tuple(variable.shape)
    if not _JOINT.search(variable.path):
        return shape
    return (shape[0] if len(shape) > 1 else 1, 3, shape[-1] // 3)


def mean_square(x, variable):
    """Returns the mean of x² over each of the original's weights, of an `x` of `original_shape`."""
    is_joint = tuple(variable.shape) != original_shape(variable)
    return ops.mean(ops.square(x), axis=(0, 2) if is_joint else None, keepdims=is_joint)
