"""`bert4keras.optimizers`: Adam and AdaFactor, and what extends them.

`Adam` has two meanings, as there. Without the environment variable TF_KERAS it is that of Keras,
whose epsilon of 1e-7 is added before the correction of the bias. With TF_KERAS=1 it is bert4keras'
own, with 1e-6 after it and the argument `bias_correction`.

An extended optimizer computes an update, then its extensions change it in the order in which they
were added. A schedule acts on the learning rate, and accumulation comes last, wherever they stand.
"""

import re

import keras
import numpy as np
from keras import ops

from roformer_tf.compat.bert4keras.backend import is_tf_keras
from roformer_tf.compat.missing import missing_name
from roformer_tf.optimizers import OriginalAdaFactor, OriginalAdamW, PiecewiseLinear
from roformer_tf.optimizers.original_lamb import adapt
from roformer_tf.optimizers.original_optimizer import OriginalOptimizer

# Where weights are here -> how bert4keras names them, for `exclude_from_…`
_NAMES = [
    (re.compile(f"(^|.*/){ours}"), theirs)
    for ours, theirs in (
        (r"embeddings/token_embedding/", "Embedding-Token/"),
        (r"embeddings/segment_embedding/", "Embedding-Segment/"),
        (r"embeddings/embedding_hidden_mapping_in/", "Embedding-Mapping/"),
        (r"embeddings/norm/", "Embedding-Norm/"),
        (r"position_embedding/", "Embedding-Position/"),
        (
            r"encoder_block_(\d+)/attention_norm/",
            r"Transformer-\g<2>-MultiHeadSelfAttention-Norm/",
        ),
        (r"encoder_block_(\d+)/attention/", r"Transformer-\g<2>-MultiHeadSelfAttention/"),
        (r"encoder_block_(\d+)/feed_forward_norm/", r"Transformer-\g<2>-FeedForward-Norm/"),
        (r"encoder_block_(\d+)/feed_forward/", r"Transformer-\g<2>-FeedForward/"),
        (r"pooler/dense/", "Pooler-Dense/"),
        (r"head/transform/", "MLM-Dense/"),
        (r"head/norm/", "MLM-Norm/"),
        (r"head/output_bias", "MLM-Bias/beta"),
    )
]


def original_name(variable):
    """Returns the name that a weight has in bert4keras.

    >>> from types import SimpleNamespace
    >>> original_name(SimpleNamespace(path="encoder_block_3/attention_norm/gamma"))
    'Transformer-3-MultiHeadSelfAttention-Norm/gamma:0'
    """
    path = variable.path if hasattr(variable, "path") else variable.name
    for pattern, name in _NAMES:
        if pattern.match(path):
            path = pattern.sub(name, path, count=1)
            break
    return f"{path}:0"


def _is_excluded(patterns, variable):
    return any(re.search(pattern, original_name(variable)) for pattern in patterns)


def _decay(self, gradient, variable, new_value, learning_rate):
    if _is_excluded(self.exclude_from_weight_decay, self.describe(variable)):
        return new_value
    rate = learning_rate * self.weight_decay_rate
    return new_value - rate * ops.convert_to_tensor(variable)


def _adapt(self, gradient, variable, new_value, learning_rate):
    if _is_excluded(self.exclude_from_layer_adaptation, self.describe(variable)):
        return new_value
    return adapt(variable, self.describe(variable), new_value, learning_rate)


def _scale(self, gradient, variable, new_value, learning_rate):
    factor, name = 1.0, original_name(self.describe(variable))
    for part, each in self.paramwise_lr_schedule.items():
        factor = factor * each if part in name else factor
    value = ops.convert_to_tensor(variable)
    return new_value if factor == 1 else value + (new_value - value) * factor


def _be_lazy(self, gradient, variable, new_value, learning_rate):
    if not _is_excluded(self.include_in_lazy_optimization, self.describe(variable)):
        return new_value
    used = ops.any(ops.not_equal(gradient, 0.0), axis=-1, keepdims=True)
    return ops.where(used, new_value, ops.convert_to_tensor(variable))


# name of the extension: its arguments with their defaults, and how it changes an update
_EXTENSIONS = {
    "weight_decay": ({"weight_decay_rate": 0.01, "exclude_from_weight_decay": ()}, _decay),
    "layer_adaptation": ({"exclude_from_layer_adaptation": ()}, _adapt),
    "piecewise_linear_lr": ({"lr_schedule": {0: 1}}, None),
    "gradient_accumulation": ({"grad_accum_steps": 2}, None),
    "lazy_optimization": ({"include_in_lazy_optimization": ()}, _be_lazy),
    "exponential_moving_average": ({"ema_momentum": 0.999}, None),
    "parameter_wise_lr": ({"paramwise_lr_schedule": {}}, _scale),
}


def _schedule(learning_rate, options):
    factors = options.get("lr_schedule")
    if factors is None or learning_rate is None:
        return learning_rate
    return PiecewiseLinear(learning_rate, factors)


class _Extendable:
    """An optimizer that `extend_with_…` extends; a base before one of our optimizers."""

    extensions = ()
    _weights_of_models = staticmethod(list)

    def add_model(self, model):
        """Takes one more model to train. All that share the optimizer share its count of steps."""
        others = self._weights_of_models
        self._weights_of_models = lambda: [*others(), *model.trainable_variables]

    def _take_arguments(self, kwargs):
        """Returns the arguments of the extensions out of `kwargs`."""
        return {
            name: kwargs.pop(name, default)
            for extension in self.extensions
            for name, default in _EXTENSIONS[extension][0].items()
        }

    def _set(self, options):
        for name, value in options.items():
            setattr(self, name, value)

    def build(self, variables):
        """Makes the variables of the optimizer."""
        if self.built:
            return
        variables = [*variables, *self._weights_of_models()]
        variables = list({id(variable): variable for variable in variables}.values())
        super().build(variables)
        self._variables_of_model = lambda: variables  # not a list, which Keras would save
        self._averages = None
        if "exponential_moving_average" in self.extensions:
            self._averages = self.add_optimizer_variables(variables, "average")

    def new_values(self, gradient, variable, learning_rate):
        """Returns pairs of a variable and the tensor that an update sets it to."""
        *updates, (_, value) = super().new_values(gradient, variable, learning_rate)
        for extension in self.extensions:
            change = _EXTENSIONS[extension][1]
            if change is not None:
                value = change(self, gradient, variable, value, learning_rate)
        if self._averages is not None:
            index = self._get_variable_index(variable)
            average = ops.convert_to_tensor(self._averages[index])
            average = average * self.ema_momentum + value * (1 - self.ema_momentum)
            updates.append((self._averages[index], average))
        return [*updates, (variable, value)]

    def apply_ema_weights(self, bias_correction=True):
        """Sets the model's weights to their averages, and keeps the old ones.

        Args:
            bias_correction: bool. Whether to correct that the averages began at 0.
        """
        self._old_values = [np.array(v) for v in self._variables_of_model()]
        scale = 1.0
        if bias_correction:
            scale -= self.ema_momentum ** int(self.iterations)
        for variable, average in zip(self._variables_of_model(), self._averages):
            variable.assign(np.array(average) / scale)

    def reset_old_weights(self):
        """Sets the model's weights back to what they were before `apply_ema_weights`."""
        for variable, value in zip(self._variables_of_model(), self._old_values):
            variable.assign(value)

    def get_config(self):
        """Returns the arguments by bert4keras' names."""
        names = [*self._names]
        for extension in self.extensions:
            names += _EXTENSIONS[extension][0]
        rate = self._given_learning_rate
        return {"name": self.name, "learning_rate": rate, **{n: getattr(self, n) for n in names}}


class BertAdam(_Extendable, OriginalAdamW):
    """bert4keras' own Adam, `Adam` with TF_KERAS=1.

    Args:
        learning_rate: float.
        beta_1, beta_2, epsilon: floats.
        bias_correction: bool. Whether to correct that the moments began at 0.
        **kwargs: Arguments of the extensions and of `keras.optimizers.Optimizer`.

    Example:

    >>> AdamW = extend_with_weight_decay(BertAdam, name="AdamW")
    >>> optimizer = AdamW(learning_rate=1e-5, weight_decay_rate=0.01)
    >>> type(optimizer).__name__, optimizer.weight_decay_rate
    ('AdamW', 0.01)
    """

    _names = ("beta_1", "beta_2", "epsilon", "bias_correction")

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        bias_correction=True,
        **kwargs,
    ):
        learning_rate = kwargs.pop("lr", learning_rate)
        options = self._take_arguments(kwargs)
        # One pass over the weights does Adam and its decay. Whatever else there is takes several.
        is_plain = bias_correction and set(self.extensions) <= {
            "weight_decay",
            "piecewise_linear_lr",
            "gradient_accumulation",
        }
        super().__init__(
            _schedule(learning_rate, options),
            beta_1,
            beta_2,
            epsilon,
            weight_decay=options.get("weight_decay_rate", 0.0) if is_plain else 0.0,
            accumulation_steps=options.get("grad_accum_steps", 1),
            **{"name": type(self).__name__, **kwargs},
        )
        self._given_learning_rate = learning_rate
        self._is_plain = is_plain
        self.bias_correction = bias_correction
        self._set(options)

    def build(self, variables):
        """Makes the variables of the optimizer."""
        super().build(variables)
        excluded = getattr(self, "exclude_from_weight_decay", ())
        self._decays = [
            bool(self.decoupled_weight_decay) and not _is_excluded(excluded, v)
            for v in self._variables_of_model()
        ]

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight."""
        if self._is_plain:
            super().update_step(gradient, variable, learning_rate)
        else:
            OriginalOptimizer.update_step(self, gradient, variable, learning_rate)


class KerasAdam(BertAdam):
    """Keras' Adam, which bert4keras extends without TF_KERAS.

    Args:
        learning_rate: float.
        beta_1, beta_2: floats.
        epsilon: float, 1e-7 by default.
        **kwargs: Arguments of the extensions and of `keras.optimizers.Optimizer`.
    """

    epsilon_inside = True
    _names = ("beta_1", "beta_2", "epsilon")

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=None, **kwargs):
        epsilon = keras.config.epsilon() if epsilon is None else epsilon
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)


class AdaFactor(_Extendable, OriginalAdaFactor):
    """`roformer_tf.optimizers.OriginalAdaFactor` by bert4keras' names of its arguments.

    Args:
        learning_rate: float, or `None` for min(0.01, 1 / sqrt(step)).
        beta1, beta2, epsilon1, epsilon2: `beta_1`, … there.
        multiply_by_parameter_scale, clipping_threshold, min_dim_size_to_factor: As there.
        exclude_from_parameter_scale: `no_scale` there, by bert4keras' names of weights.
        **kwargs: Arguments of the extensions and of `keras.optimizers.Optimizer`.

    Example:

    >>> AdaFactorG = extend_with_gradient_accumulation(AdaFactor, name="AdaFactorG")
    >>> AdaFactorG(learning_rate=5e-4, beta1=0.9, grad_accum_steps=4).accumulation_steps
    4
    """

    _names = (
        "beta1 beta2 epsilon1 epsilon2 multiply_by_parameter_scale clipping_threshold "
        "min_dim_size_to_factor exclude_from_parameter_scale"
    ).split()

    def __init__(
        self,
        learning_rate=1e-3,
        beta1=0.0,
        beta2=None,
        epsilon1=1e-30,
        epsilon2=1e-3,
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
        min_dim_size_to_factor=128,
        exclude_from_parameter_scale=None,
        **kwargs,
    ):
        learning_rate = kwargs.pop("lr", learning_rate)
        options = self._take_arguments(kwargs)
        super().__init__(
            _schedule(learning_rate, options),
            beta1,
            beta2,
            epsilon1,
            epsilon2,
            multiply_by_parameter_scale,
            clipping_threshold,
            min_dim_size_to_factor,
            no_scale=(),
            accumulation_steps=options.get("grad_accum_steps", 1),
            **{"name": type(self).__name__, **kwargs},
        )
        self._given_learning_rate = learning_rate
        self.beta1, self.beta2, self.epsilon1, self.epsilon2 = beta1, beta2, epsilon1, epsilon2
        self.exclude_from_parameter_scale = exclude_from_parameter_scale or []
        self._set(options)

    def scales(self, variable):
        """Returns whether the updates of a weight are scaled by its size."""
        excluded = self.exclude_from_parameter_scale
        return self.multiply_by_parameter_scale and not _is_excluded(excluded, variable)


Adam = BertAdam if is_tf_keras else KerasAdam


def _extend(optimizer, extension, name):
    if not (isinstance(optimizer, type) and issubclass(optimizer, _Extendable)):
        raise TypeError(
            f"`extend_with_{extension}` extends `Adam` and `AdaFactor` of this module. For others, "
            "use the arguments of `keras.optimizers` (`weight_decay`, `learning_rate`, "
            f"`gradient_accumulation_steps`, `use_ema`). Received: {optimizer!r}"
        )
    name = name or f"{optimizer.__name__}_{extension}"
    extended = type(name, (optimizer,), {"extensions": (*optimizer.extensions, extension)})
    keras.saving.get_custom_objects()[name] = extended
    return extended


def extend_with_weight_decay(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class with `weight_decay_rate` (0.01) and `exclude_from_weight_decay`.

    Args:
        BaseOptimizer: `Adam`, `AdaFactor` or an extension of them.
        name: str. Name of the class.
    """
    return _extend(BaseOptimizer, "weight_decay", name)


def extend_with_layer_adaptation(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class whose updates are scaled to the norm of each weight, as LAMB's are.

    It has the argument `exclude_from_layer_adaptation`.
    """
    return _extend(BaseOptimizer, "layer_adaptation", name)


def extend_with_piecewise_linear_lr(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class with `lr_schedule`, the factors of `roformer_tf.optimizers.PiecewiseLinear`."""
    return _extend(BaseOptimizer, "piecewise_linear_lr", name)


def extend_with_gradient_accumulation(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class with `grad_accum_steps` (2); see `OriginalOptimizer` of this library."""
    return _extend(BaseOptimizer, "gradient_accumulation", name)


def extend_with_lazy_optimization(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class that leaves rows without a gradient as they are.

    Its argument `include_in_lazy_optimization` names the weights.
    """
    return _extend(BaseOptimizer, "lazy_optimization", name)


def extend_with_exponential_moving_average(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class with `ema_momentum` (0.999), `apply_ema_weights` and `reset_old_weights`."""
    return _extend(BaseOptimizer, "exponential_moving_average", name)


def extend_with_parameter_wise_lr(BaseOptimizer, name=None):  # noqa: N803
    """Returns a class with `paramwise_lr_schedule`: parts of names, and factors of the rates."""
    return _extend(BaseOptimizer, "parameter_wise_lr", name)


_HINTS = {
    "Lion.*": "Use `keras.optimizers.Lion`.",
    "AdaFactorBase|AdaFactorV.": "Use `AdaFactor`.",
    "extend_with_lookahead.*": (
        "The original's begins at weights of 0, and so halves all weights at the first step. Use "
        "`roformer_tf.optimizers.LastWeights` to average weights."
    ),
}


def __getattr__(name):
    if name.endswith("_v2") and name[:-3] in globals():
        return globals()[name[:-3]]
    raise missing_name(__name__, name, _HINTS, "See docs/moving_from_bert4keras.md.")
