import keras


class RestoresQuantization:
    """Mixin: a model that was quantized with `quantize("int8")` is quantized again when it is made from its config.

    Keras' own way, a map from layer paths to dtype policies in the backbone's config, does not reach the layers of a
    head.
    """

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
                # the backbone inside a task comes quantized already
                if type(layer).quantize is not keras.Layer.quantize and not layer.quantization_mode:
                    if not isinstance(layer, keras.Model):
                        layer.quantize(mode)
        return model
