"""`keras.layers` with masks as in Keras 2."""

import keras
import tensorflow as tf
from keras.layers import *  # noqa: F403
from keras.saving import register_keras_serializable
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from roformer_tf.compat import names_not_offered
from roformer_tf.compat.keras.backend import flatten


class Layer(keras.layers.Layer):
    """A layer whose `compute_mask` decides the mask of its outputs, even where it passes inputs on.

    Keras 3 keeps the mask that a tensor already has, so a layer that returns one of its inputs
    could not change the mask. This layer can, and has `add_metric` and `add_loss` as in Keras 2.

    Example: hides the first token.

    >>> import numpy as np
    >>> from roformer_tf.compat.bert4keras.backend import K, keras
    >>> class HideFirst(keras.layers.Layer):
    ...     def compute_mask(self, inputs, mask=None):
    ...         return K.greater(K.cumsum(K.ones_like(inputs[..., 0]), axis=1), 1.5)
    ...     def call(self, inputs):
    ...         return inputs
    >>> x = HideFirst()(np.float32([[[7.0], [1.0], [3.0]]]))
    >>> float(keras.layers.GlobalAveragePooling1D()(x)[0, 0])
    2.0
    """

    def __call__(self, *args, **kwargs):
        outputs = super().__call__(*args, **kwargs)
        if type(self).compute_mask is keras.layers.Layer.compute_mask or not args:
            return outputs
        inputs = keras.tree.flatten(args[0])
        if not any(output is x for output in keras.tree.flatten(outputs) for x in inputs):
            return outputs
        previous = keras.tree.map_structure(get_keras_mask, args[0])
        outputs = keras.tree.map_structure(tf.identity, outputs)
        masks = self.compute_mask(args[0], previous)
        if masks is not None:
            for output, mask in zip(keras.tree.flatten(outputs), keras.tree.flatten(masks)):
                set_keras_mask(output, mask)
        return outputs

    def compute_output_spec(self, *args, **kwargs):
        """Runs `call`, which may build layers inside, also where there is `compute_output_shape`."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def add_loss(self, losses, inputs=None):
        """See `keras.layers.Layer.add_loss`. `inputs` is no longer needed.

        A loss for each example counts as in Keras 2: its mean is shown, and the gradient is that of
        its sum.
        """
        for loss in keras.tree.flatten(losses):
            if loss.shape.rank != 0:
                total = tf.reduce_sum(loss)
                loss = tf.stop_gradient(tf.reduce_mean(loss) - total) + total
            super().add_loss(loss)

    def add_metric(self, value, name=None, aggregation=None):
        """Shows a tensor that `call` computed beside the loss: its mean over the epoch."""
        metrics = self.__dict__.setdefault("_shown_values", {})
        if name not in metrics:
            metric = metrics[name] = keras.metrics.Mean(name=name)
            self._metrics.append(metric)
        if not keras.src.backend.in_stateless_scope():
            metrics[name].update_state(value)


@register_keras_serializable(package="roformer_tf")
class Lambda(keras.layers.Lambda):
    """`keras.layers.Lambda`, which stops the mask without a warning, as in Keras 2."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.supports_masking = True


@register_keras_serializable(package="roformer_tf")
class GlobalMaxPooling1D(keras.layers.GlobalMaxPooling1D):
    """`keras.layers.GlobalMaxPooling1D` over the real tokens, where there is a mask.

    Call arguments:
        inputs: Tensor `(batch, length, features)`.
        mask: bool tensor `(batch, length)`, or `None`.
    """

    def call(self, inputs, mask=None):
        if mask is not None:
            axis = 2 if self.data_format == "channels_last" else 1
            real = tf.expand_dims(tf.cast(mask, "bool"), axis)
            inputs = tf.where(real, inputs, inputs.dtype.min)
        return super().call(inputs)

    def compute_mask(self, inputs, mask=None):
        return None  # no length axis is left


@register_keras_serializable(package="roformer_tf")
class TimeDistributed(keras.layers.TimeDistributed):
    """`keras.layers.TimeDistributed` for any number of steps.

    Where it is not known, Keras 3.15 takes the number of examples for it.

    >>> from roformer_tf.compat.bert4keras.backend import K, keras
    >>> model = keras.models.Sequential([TimeDistributed(keras.layers.Dense(3))])
    >>> tf.function(model, input_signature=[tf.TensorSpec((None, None, 2))])(K.ones((1, 5, 2))).shape
    TensorShape([1, 5, 3])
    """

    def call(self, inputs, training=None, mask=None):
        arguments = {}
        if self.layer._call_has_mask_arg and mask is not None:
            arguments["mask"] = flatten(mask, 0, 2)
        if self.layer._call_has_training_arg:
            arguments["training"] = training
        outputs = self.layer.call(flatten(inputs, 0, 2), **arguments)
        sizes = tf.concat([tf.shape(inputs)[:2], tf.shape(outputs)[1:]], axis=0)
        return tf.reshape(outputs, sizes)


__getattr__ = names_not_offered(
    __name__,
    {"CuDNN(LSTM|GRU)": "Use `LSTM` or `GRU`, which choose the kernel themselves."},
    "Keras 3 has no such layer: see keras.io/api/layers.",
)
