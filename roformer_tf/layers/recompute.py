import keras


def recompute(function, *args):
    """Calls `function` and forgets what it computed inside; the backward pass computes it again.

    Trades about a third more time for most of the memory of the activations. What `function` draws at random must come
    out the same the second time, see `Dropout.fixed_seed`. Other backends than TensorFlow compute as always.

    Args:
        function: takes `args` and returns one tensor; may use the weights of layers.
        *args: structures of tensors and `None`.

    Returns:
        What `function(*args)` returns, with its gradients.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import recompute
    >>> float(recompute(lambda x: x * x, np.float32(3.0)))
    9.0

    Reference: Chen et al., Training deep nets with sublinear memory cost, arXiv 1604.06174.
    """
    if keras.config.backend() != "tensorflow":
        return function(*args)
    import tensorflow as tf

    def has_gradient(x):
        # others, such as positions, are constants of `run`, since TensorFlow warns of gradients by integers
        return x is not None and tf.as_dtype(x.dtype).is_floating

    tensors = [x for x in keras.tree.flatten(args) if has_gradient(x)]

    def run(*tensors):
        tensors = iter(tensors)
        inputs = keras.tree.map_structure(
            lambda x: next(tensors) if has_gradient(x) else x, args, none_is_leaf=True
        )
        return function(*inputs)

    return tf.recompute_grad(run)(*tensors)
