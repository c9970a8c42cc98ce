import re

import keras
from keras import ops


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
