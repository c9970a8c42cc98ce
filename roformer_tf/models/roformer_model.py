import keras

from roformer_tf.models.presets import FromPreset
from roformer_tf.naming import automatic_name


class RoFormerModel(FromPreset):
    """Base class of our backbones and tasks, named before KerasHub's base class.

    It adds to a functional `keras.Model`:

    * `from_preset` reads every kind of folder.
    * Inputs declared `optional=True` may be left out of the dictionary. Keras accepts `None` for
      them, but not a missing key.
    * A model quantized by `quantize("int8")` is quantized again when it is made from its config.
      KerasHub keeps a map from layer paths to dtype policies in the config of the backbone, which
      does not reach the layers of a head.
    * An unknown argument raises an error. Keras' functional models ignore it.
    """

    optional_inputs = ()
    keras_arguments = ("inputs", "outputs", "trainable", "dtype")

    def __init__(self, *args, name=None, **kwargs):
        unknown = sorted(set(kwargs) - set(self.keras_arguments))
        if unknown:
            raise TypeError(
                f"`{type(self).__name__}` has no such arguments. Received: {', '.join(unknown)}"
            )
        super().__init__(*args, name=name or automatic_name(type(self)), **kwargs)

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(self._add_optional_inputs(inputs), *args, **kwargs)

    def call(self, inputs, training=None, mask=None, **kwargs):
        # The JAX trainer calls this method without `__call__`.
        inputs = self._add_optional_inputs(inputs)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _add_optional_inputs(self, inputs):
        return dict.fromkeys(self.optional_inputs) | inputs if isinstance(inputs, dict) else inputs

    def get_config(self):
        config = super().get_config()
        modes = {layer.quantization_mode for layer in self._flatten_layers()} - {None}
        if modes:
            config["quantization"] = sorted(modes)[0]
            if "dtype" in config:
                config["dtype"] = keras.dtype_policies.serialize(self.dtype_policy)
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        mode = config.pop("quantization", None)
        model = super().from_config(config)
        if mode is not None:
            for layer in list(model._flatten_layers(include_self=False)):
                # The backbone inside a task is quantized already.
                if type(layer).quantize is not keras.Layer.quantize and not layer.quantization_mode:
                    if not isinstance(layer, keras.Model):
                        layer.quantize(mode)
        return model
