import keras
from keras import ops

from roformer_tf.models.presets import FromPreset
from roformer_tf.naming import automatic_name


class RoFormerModel(FromPreset):
    """Base class of our backbones and tasks, named before KerasHub's base class.

    It adds to a functional `keras.Model`:

    * `from_preset` reads every kind of folder.
    * A call takes any of the inputs beside the token ids; the graph has those that a preprocessor
      makes. Keras demands all inputs of the graph, and no others.
    * A model quantized by `quantize("int8")` is quantized again when it is made from its config.
      KerasHub keeps a map from layer paths to dtype policies in the config of the backbone, which
      does not reach the layers of a head.
    * An unknown argument raises an error. Keras' functional models ignore it.
    """

    # name of each input that a call may have: its dtype
    input_dtypes = {}
    keras_arguments = ("inputs", "outputs", "trainable", "dtype")

    def __init__(self, *args, name=None, **kwargs):
        unknown = sorted(set(kwargs) - set(self.keras_arguments))
        if unknown:
            raise TypeError(
                f"`{type(self).__name__}` has no such arguments. Received: {', '.join(unknown)}"
            )
        super().__init__(*args, name=name or automatic_name(type(self)), **kwargs)
        # Keras would demand every input of the graph; `complete_inputs` checks them
        self.input_spec = None

    def call(self, inputs, training=None, mask=None):
        return self.forward(self.complete_inputs(inputs), training)

    def compute_output_spec(self, inputs, training=None, mask=None):
        if isinstance(inputs, dict) and set(inputs) == set(self.input):
            return super().compute_output_spec(inputs)
        return self.forward(self.complete_inputs(inputs), training)

    def forward(self, inputs, training=None):
        """Computes the outputs from a dictionary of inputs that `complete_inputs` returned.

        Subclasses implement it. The functional graph of the model is this method's, and so is
        every call.
        """
        raise NotImplementedError

    def complete_inputs(self, inputs):
        """Converts inputs to tensors and adds those that are left out.

        Segment ids default to 0, and padding masks to 1 where the token id is not 0, `[PAD]`.

        Raises:
            ValueError: If token ids are missing, or an input is unknown or has the wrong rank.
        """
        required = [name for name in self.input_dtypes if name.endswith("token_ids")]
        if not isinstance(inputs, dict) or not set(required) <= set(inputs) <= set(
            self.input_dtypes
        ):
            found = list(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(
                f"{type(self).__name__} takes a dictionary with {' and '.join(required)}, and "
                f"optionally {', '.join(set(self.input_dtypes) - set(required))}. Received: {found}"
            )
        inputs = {
            name: convert(inputs[name], dtype)
            for name, dtype in self.input_dtypes.items()
            if inputs.get(name) is not None
        }
        for name in self.input_dtypes:
            if name not in inputs and name.endswith("padding_mask"):
                token_ids = inputs[name.replace("padding_mask", "token_ids")]
                inputs[name] = ops.cast(ops.not_equal(token_ids, 0), "int32")
            elif name not in inputs and name == "segment_ids":
                inputs[name] = ops.zeros_like(inputs["token_ids"])
        return inputs

    def get_config(self):
        config = super().get_config()
        if isinstance(self.dtype_policy, keras.dtype_policies.DTypePolicyMap):
            return config  # which tells the mode of each layer
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


def convert(x, dtype):
    """Converts an array to a tensor. A symbolic tensor stays what it is."""
    return x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x, dtype)
