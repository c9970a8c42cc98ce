import re
from types import SimpleNamespace

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer

_JOINT = re.compile(r"(^|/)qkv/(kernel|bias)$")


class OriginalOptimizer(keras.optimizers.Optimizer):
    """Base class of bert4keras' optimizers: micro-steps whose gradients are accumulated.

    `OriginalAdamW` describes the accumulation. Subclasses implement `new_values`.

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
        self._sums = None
        if self.accumulation_steps > 1:
            self._sums = self.add_optimizer_variables(variables, "gradient_sum")

    def describe(self, variable):
        """Returns path and shape of a variable; on TensorFlow an update gets one without a path."""
        known = self._trainable_variables[self._get_variable_index(variable)]
        return SimpleNamespace(path=getattr(known, "path", known.name), shape=tuple(known.shape))

    def new_values(self, gradient, variable, learning_rate):
        """Returns a list of variables and the tensors that an update sets them to."""
        raise NotImplementedError

    def update_step(self, gradient, variable, learning_rate):
        # No branch: JAX traces both sides of one anyway, and cannot assign to variables in them.
        now = self.updates_now()
        # dense: an embedding's gradient may be sparse, with a row for each time that a token is there
        gradient = ops.cast(ops.reshape(gradient, variable.shape), variable.dtype)
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
        # after all tensors are computed: a tensor of PyTorch is the variable's own memory
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

    Queries, keys and values have one kernel and one bias here, and three in the original:
    `(inputs, 3, units)`. Other variables keep their shape.

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


def matches_any(patterns, path):
    """Returns whether one of the regular expressions is found in the path of a weight."""
    return any(re.search(pattern, path) for pattern in patterns)


def apply_adam(optimizer, variable, gradient, learning_rate, epsilon_inside=True):
    """Updates a weight and its moments with TensorFlow's kernel, in one pass over the weights.

    Keras' formula takes a dozen passes.

    Args:
        optimizer: The optimizer, with `_momentums`, `_velocities`, `beta_1`, `beta_2`, `epsilon`
            and `iterations` as `keras.optimizers.Adam` has them.
        variable: The variable to update.
        gradient: Tensor, dense or `tf.IndexedSlices` (repeated rows are summed).
        learning_rate: float or scalar tensor.
        epsilon_inside: bool. Whether to add `epsilon` before the correction of the second moment's
            bias, as Keras does (the paper's "epsilon hat"), or after it, as algorithm 1 of the
            paper and bert4keras do.

    Reference: Kingma and Ba, Adam, arXiv 1412.6980, algorithm 1 and the end of section 2.
    """
    import tensorflow as tf

    dtype = variable.dtype
    beta_1, beta_2 = tf.constant(optimizer.beta_1, dtype), tf.constant(optimizer.beta_2, dtype)
    epsilon, step = tf.constant(optimizer.epsilon, dtype), ops.cast(optimizer.iterations + 1, dtype)
    beta_2_power = ops.power(beta_2, step)
    if not epsilon_inside:
        # sqrt(v / c) + e = (sqrt(v) + e sqrt(c)) / sqrt(c), and the kernel multiplies by sqrt(c)
        epsilon *= ops.sqrt(1 - beta_2_power)

    def handle(variable):
        return (variable.value if isinstance(variable, keras.Variable) else variable).handle

    index = optimizer._get_variable_index(variable)
    tf.raw_ops.ResourceApplyAdam(
        var=handle(variable),
        m=handle(optimizer._momentums[index]),
        v=handle(optimizer._velocities[index]),
        beta1_power=ops.power(beta_1, step),
        beta2_power=beta_2_power,
        lr=ops.cast(learning_rate, dtype),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
    )
