"""Adam's formula as one pass over the weights, on TensorFlow."""

import keras
from keras import ops


def apply_adam(
    variable, moments, gradient, learning_rate, beta_1, beta_2, epsilon, step, epsilon_inside=True
):
    """Updates weight and moments by TensorFlow's own kernel; Keras' formula takes a dozen passes over
    all weights.

    Args:
        variable: `keras.Variable` or `tf.Variable` to update.
        moments: The two `keras.Variable` of the same shape, first and second moment; updated too.
        gradient: Tensor, dense or `tf.IndexedSlices` (repeated rows are summed).
        learning_rate: float or scalar tensor.
        beta_1, beta_2, epsilon: floats.
        step: scalar tensor, 1 for the first update.
        epsilon_inside: bool. Whether `epsilon` is added before the second moment's bias is
            corrected, as in Keras (the paper's "epsilon hat"), or after it, as in the paper's
            algorithm 1 and in bert4keras.

    Reference: Kingma and Ba, Adam, arXiv 1412.6980, algorithm 1 and the end of section 2.
    """
    import tensorflow as tf

    dtype = variable.dtype
    beta_1, beta_2 = tf.constant(beta_1, dtype), tf.constant(beta_2, dtype)
    epsilon, step = tf.constant(epsilon, dtype), ops.cast(step, dtype)
    beta_2_power = ops.power(beta_2, step)
    if not epsilon_inside:
        # sqrt(v / c) + e = (sqrt(v) + e sqrt(c)) / sqrt(c), and the kernel multiplies by sqrt(c)
        epsilon *= ops.sqrt(1 - beta_2_power)
    tf.raw_ops.ResourceApplyAdam(
        var=_tensorflow_variable(variable).handle,
        m=_tensorflow_variable(moments[0]).handle,
        v=_tensorflow_variable(moments[1]).handle,
        beta1_power=ops.power(beta_1, step),
        beta2_power=beta_2_power,
        lr=ops.cast(learning_rate, dtype),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
    )


def _tensorflow_variable(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable
