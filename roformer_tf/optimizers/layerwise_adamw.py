import re

import keras
from keras import ops

from roformer_tf.optimizers.original_optimizer import apply_adam, matches_any


@keras.saving.register_keras_serializable(package="roformer_tf")
class LayerwiseAdamW(keras.optimizers.Adam):
    """AdamW for fine-tuning: lower layers learn more slowly, norms and biases do not decay.

    With `num_layers` blocks, heads and pooler learn at the full rate, block i at
    `layer_decay^(num_layers - i)` of it and the embeddings at `layer_decay^(num_layers + 1)`.
    Weights of the position scheme learn as the embeddings do, or as the block that has them alone.
    Weight decay is decoupled and proportional to the layer's rate. `layer_decay=1.0` is plain
    AdamW.

    Args:
        learning_rate: float or schedule, such as `LinearWarmupDecay`.
        num_layers: positive integer, `backbone.num_layers`.
        layer_decay: float in (0, 1].
        weight_decay: float.
        no_decay: regular expressions, searched in the paths of weights that do not decay.
        **kwargs: Arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: If `layer_decay` is not in (0, 1].

    Example:

    >>> from roformer_tf.optimizers import LayerwiseAdamW
    >>> optimizer = LayerwiseAdamW(2e-5, num_layers=12, layer_decay=0.9)
    >>> round(optimizer.multiplier("encoder_block_11/attention/qkv/kernel"), 4)
    0.9
    >>> round(optimizer.multiplier("embeddings/token_embedding/embeddings"), 4)
    0.2542

    Reference: Clark et al., ELECTRA, arXiv 2003.10555, appendix A (layer-wise decay); Loshchilov
    and Hutter, AdamW, arXiv 1711.05101.
    """

    def __init__(
        self,
        learning_rate,
        num_layers,
        layer_decay=1.0,
        weight_decay=0.01,
        no_decay=("bias", "gamma", "beta", "theta"),  # theta: learned rotary frequencies
        name="layerwise_adamw",
        **kwargs,
    ):
        if not 0 < layer_decay <= 1:
            raise ValueError(
                f"`layer_decay` must be in (0, 1]. Received: layer_decay={layer_decay}"
            )
        # Keras would apply its own weight decay at the same rate for all layers
        super().__init__(learning_rate, weight_decay=None, name=name, **kwargs)
        self.num_layers = num_layers
        self.layer_decay = layer_decay
        self.decoupled_weight_decay = weight_decay
        self.no_decay = tuple(no_decay)

    def multiplier(self, path):
        """Returns the factor on the learning rate of the weight at `path`."""
        block = re.search(r"(encoder_block|position_scheme)_(\d+)/", path)
        if block:
            return self.layer_decay ** (self.num_layers - int(block.group(2)))
        if re.search(r"(^|/)(embeddings|position_scheme)/", path):
            return self.layer_decay ** (self.num_layers + 1)
        return 1.0

    def update_step(self, gradient, variable, learning_rate):
        # not the name of `variable`, which ends in "/replica_1" on the second replica
        known = self._trainable_variables[self._get_variable_index(variable)]
        path = getattr(known, "path", known.name)
        learning_rate = ops.cast(learning_rate, variable.dtype) * self.multiplier(path)
        if self.decoupled_weight_decay and not matches_any(self.no_decay, path):
            self.assign_sub(variable, variable * (learning_rate * self.decoupled_weight_decay))
        if keras.config.backend() == "tensorflow" and not self.amsgrad:
            apply_adam(self, variable, gradient, learning_rate)
        else:
            super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        config = super().get_config()
        del config["weight_decay"]
        return {
            **config,
            "num_layers": self.num_layers,
            "layer_decay": self.layer_decay,
            "weight_decay": self.decoupled_weight_decay,
            "no_decay": self.no_decay,
        }
