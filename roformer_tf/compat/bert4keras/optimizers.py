"""`bert4keras.optimizers`: Adam and AdaFactor, and what extends them.

`Adam` means two things, as in bert4keras. Without the environment variable TF_KERAS it is Keras'
Adam, which adds an epsilon of 1e-7 before it corrects the bias. With TF_KERAS=1 it is bert4keras'
own, which adds 1e-6 afterwards and has the argument `bias_correction`.

An extended optimizer computes an update, and its extensions change it in the order in which they
were added. Two of them do not depend on the order: a schedule acts on the learning rate, and
accumulation comes last.
"""

import numbers
import re

import numpy as np
import tensorflow as tf  # noqa: F401
from keras import ops

from roformer_tf.compat import names_not_offered
from roformer_tf.compat.bert4keras.backend import K, is_tf_keras, keras  # noqa: F401
from roformer_tf.optimizers import OriginalAdaFactor, OriginalAdamW, PiecewiseLinear
from roformer_tf.optimizers.original_lamb import adapt
from roformer_tf.optimizers.original_optimizer import matches_any

# Our paths of weights -> bert4keras' names, which arguments such as `exclude_from_…` take.
_NAMES = {
    "embeddings/token_embedding/": "Embedding-Token/",
    "embeddings/segment_embedding/": "Embedding-Segment/",
    "embeddings/embedding_hidden_mapping_in/": "Embedding-Mapping/",
    "embeddings/norm/": "Embedding-Norm/",
    "position_embedding/": "Embedding-Position/",
    r"encoder_block_(\d+)/attention_norm/": r"Transformer-\1-MultiHeadSelfAttention-Norm/",
    r"encoder_block_(\d+)/attention/": r"Transformer-\1-MultiHeadSelfAttention/",
    r"encoder_block_(\d+)/feed_forward_norm/": r"Transformer-\1-FeedForward-Norm/",
    r"encoder_block_(\d+)/feed_forward/": r"Transformer-\1-FeedForward/",
    "pooler/dense/": "Pooler-Dense/",
    "head/transform/": "MLM-Dense/",
    "head/norm/": "MLM-Norm/",
    "head/output_bias": "MLM-Bias/beta",
}


def original_name(path):
    """Returns the name that the weight at `path` has in bert4keras.

    >>> original_name("encoder_block_3/attention_norm/gamma")
    'Transformer-3-MultiHeadSelfAttention-Norm/gamma:0'
    """
    for ours, theirs in _NAMES.items():
        path, found = re.subn(f"^(?:.*/)?{ours}", theirs, path)
        if found:
            break
    return f"{path}:0"


def _is_excluded(patterns, path):
    return matches_any(patterns, original_name(path))


def _decay(self, gradient, variable, new_value, learning_rate):
    if _is_excluded(self.exclude_from_weight_decay, self.describe(variable).path):
        return new_value
    rate = learning_rate * self.weight_decay_rate
    return new_value - rate * ops.convert_to_tensor(variable)


def _adapt(self, gradient, variable, new_value, learning_rate):
    if _is_excluded(self.exclude_from_layer_adaptation, self.describe(variable).path):
        return new_value
    return adapt(variable, self.describe(variable), new_value, learning_rate)


def _scale(self, gradient, variable, new_value, learning_rate):
    factor, name = 1.0, original_name(self.describe(variable).path)
    for part, each in self.paramwise_lr_schedule.items():
        factor = factor * each if part in name else factor
    value = ops.convert_to_tensor(variable)
    return new_value if factor == 1 else value + (new_value - value) * factor


def _be_lazy(self, gradient, variable, new_value, learning_rate):
    if not _is_excluded(self.include_in_lazy_optimization, self.describe(variable).path):
        return new_value
    used = ops.any(ops.not_equal(gradient, 0.0), axis=-1, keepdims=True)
    return ops.where(used, new_value, ops.convert_to_tensor(variable))


_EXTENSIONS = {}  # name -> arguments with their defaults, and a function that changes an update


class _Extendable:
    """Mixin of the optimizers that `extend_with_…` extends."""

    extensions = ()
    _weights_of_models = staticmethod(list)

    def __init__(self, learning_rate, *args, **kwargs):
        options = {
            name: kwargs.pop(name, default)
            for extension in self.extensions
            for name, default in _EXTENSIONS[extension][0].items()
        }
        learning_rate = kwargs.pop("lr", learning_rate)
        if isinstance(learning_rate, numbers.Real):  # Keras takes no int
            learning_rate = float(learning_rate)
        kwargs = {"name": type(self).__name__, **kwargs}
        steps = options.get("grad_accum_steps", 1)
        super().__init__(learning_rate, *args, accumulation_steps=steps, **kwargs)
        self._given_learning_rate, self._schedule = learning_rate, None
        if options.get("lr_schedule") is not None:
            self._schedule = PiecewiseLinear(1.0, options["lr_schedule"])
            self._untrack_variable(self._learning_rate)  # files have no rate beside a schedule
        for name, value in options.items():
            setattr(self, name, value)

    @property
    def lr(self):
        """`learning_rate` by its other name in Keras 2: what `lr_schedule` multiplies."""
        return self.learning_rate

    @lr.setter
    def lr(self, rate):
        self.learning_rate = rate

    def add_model(self, model):
        """Takes one more model to train. All that share the optimizer share its count of steps."""
        others = self._weights_of_models
        self._weights_of_models = lambda: [*others(), *model.trainable_variables]

    def build(self, variables):
        if self.built:
            return
        variables = [*variables, *self._weights_of_models()]
        variables = list({id(variable): variable for variable in variables}.values())
        super().build(variables)
        self._variables_of_model = lambda: variables  # not a list, which Keras would save
        self._averages = None
        if "exponential_moving_average" in self.extensions:
            self._averages = self.add_optimizer_variables(variables, "average")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if self._schedule is not None:
            learning_rate = learning_rate * self._schedule(self.iterations)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def new_values(self, gradient, variable, learning_rate):
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

        `bias_correction` says whether to correct that the averages began at 0.
        """
        self._old_values = [np.array(v) for v in self._variables_of_model()]
        scale = 1.0
        if bias_correction:
            updates = -(-int(self.iterations) // self.accumulation_steps)  # the first at once
            scale -= self.ema_momentum**updates
        for variable, average in zip(self._variables_of_model(), self._averages):
            variable.assign(np.array(average) / scale)

    def reset_old_weights(self):
        """Sets the model's weights back to what they were before `apply_ema_weights`."""
        for variable, value in zip(self._variables_of_model(), self._old_values):
            variable.assign(value)

    def get_config(self):
        names = [*self._names]
        for extension in self.extensions:
            names += _EXTENSIONS[extension][0]
        config = keras.optimizers.Optimizer.get_config(self)
        del config["weight_decay"], config["gradient_accumulation_steps"]  # never given to Keras
        rate = self._given_learning_rate
        return {**config, "learning_rate": rate, **{name: getattr(self, name) for name in names}}


class BertAdam(_Extendable, OriginalAdamW):
    """bert4keras' own Adam, `Adam` with TF_KERAS=1.

    Args:
        learning_rate, beta_1, beta_2, epsilon: floats.
        bias_correction: bool. Whether to correct that the moments began at 0.
        **kwargs: Arguments of the extensions and of `keras.optimizers.Optimizer`.

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
        super().__init__(learning_rate, beta_1, beta_2, epsilon, weight_decay=0.0, **kwargs)
        self.bias_correction = bias_correction
        # The kernel does Adam and weight decay in one pass. Other extensions need several passes.
        plain = {"weight_decay", "piecewise_linear_lr", "gradient_accumulation"}
        self.uses_kernel = bias_correction and set(self.extensions) <= plain
        if self.uses_kernel and "weight_decay" in self.extensions:
            self.decoupled_weight_decay = self.weight_decay_rate

    def decays(self, path):
        excluded = getattr(self, "exclude_from_weight_decay", ())
        return bool(self.decoupled_weight_decay) and not _is_excluded(excluded, path)


class KerasAdam(BertAdam):
    """Keras' Adam, which bert4keras extends without TF_KERAS.

    Args:
        learning_rate, beta_1, beta_2, epsilon: floats; epsilon is 1e-7 by default.
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
        beta1, beta2, epsilon1, epsilon2: Its `beta_1`, `beta_2`, `epsilon_1` and `epsilon_2`.
        multiply_by_parameter_scale, clipping_threshold, min_dim_size_to_factor: The same.
        exclude_from_parameter_scale: Its `no_scale`, with bert4keras' names of weights.
        **kwargs: Arguments of the extensions and of `keras.optimizers.Optimizer`.

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
        super().__init__(
            learning_rate,
            beta1,
            beta2,
            epsilon1,
            epsilon2,
            multiply_by_parameter_scale,
            clipping_threshold,
            min_dim_size_to_factor,
            **kwargs,
        )
        self.beta1, self.beta2, self.epsilon1, self.epsilon2 = beta1, beta2, epsilon1, epsilon2
        self.exclude_from_parameter_scale = exclude_from_parameter_scale or []

    def scales(self, variable):
        excluded = self.exclude_from_parameter_scale
        return self.multiply_by_parameter_scale and not _is_excluded(excluded, variable.path)


Adam = BertAdam if is_tf_keras else KerasAdam
keras.saving.get_custom_objects().update(
    {cls.__name__: cls for cls in (BertAdam, KerasAdam, AdaFactor)}
)


def _extension(extension, change=None, **arguments):
    """Returns the function `extend_with_…` of an extension with these arguments."""
    _EXTENSIONS[extension] = arguments, change

    def extend(BaseOptimizer, name=None):
        if not (isinstance(BaseOptimizer, type) and issubclass(BaseOptimizer, _Extendable)):
            raise TypeError(
                f"`extend_with_{extension}` extends `Adam` and `AdaFactor` of this module. For "
                "others, use the arguments of `keras.optimizers` (`weight_decay`, "
                "`learning_rate`, `gradient_accumulation_steps`, `use_ema`). "
                f"Received: {BaseOptimizer!r}"
            )
        if extension in BaseOptimizer.extensions:
            raise ValueError(
                f"`extend_with_{extension}` must extend an optimizer once: bert4keras would do it "
                "twice, with default arguments. Extend the class without it. Received: "
                f"{BaseOptimizer.__name__}, which has {BaseOptimizer.extensions}"
            )
        name = name or f"{BaseOptimizer.__name__}_{extension}"
        extensions = (*BaseOptimizer.extensions, extension)
        extended = type(name, (BaseOptimizer,), {"extensions": extensions})
        keras.saving.get_custom_objects()[name] = extended
        return extended

    extend.__name__ = f"extend_with_{extension}"
    extend.__doc__ = f"Returns a class of optimizers with the arguments {arguments}."
    return extend


extend_with_weight_decay = _extension(
    "weight_decay", _decay, weight_decay_rate=0.01, exclude_from_weight_decay=()
)
extend_with_layer_adaptation = _extension(
    "layer_adaptation", _adapt, exclude_from_layer_adaptation=()
)
# `lr_schedule` holds the factors of `roformer_tf.optimizers.PiecewiseLinear`
extend_with_piecewise_linear_lr = _extension("piecewise_linear_lr", lr_schedule={0: 1})
extend_with_gradient_accumulation = _extension("gradient_accumulation", grad_accum_steps=2)
# names the weights whose rows without a gradient stay as they are
extend_with_lazy_optimization = _extension(
    "lazy_optimization", _be_lazy, include_in_lazy_optimization=()
)
# adds `apply_ema_weights` and `reset_old_weights`; with accumulation it averages once an update
extend_with_exponential_moving_average = _extension(
    "exponential_moving_average", ema_momentum=0.999
)
# maps parts of names to factors of the learning rate
extend_with_parameter_wise_lr = _extension("parameter_wise_lr", _scale, paramwise_lr_schedule={})


_HINTS = {
    "Lion.*": "Use `keras.optimizers.Lion`.",
    "AdaFactorBase|AdaFactorV.": "Use `AdaFactor`.",
    "extend_with_lookahead.*": (
        "The original's begins at weights of 0, and so halves all weights at the first step. Use "
        "`roformer_tf.optimizers.LastWeights` to average weights."
    ),
}
_missing = names_not_offered(__name__, _HINTS)


def __getattr__(name):
    if name.endswith("_v2") and name[:-3] in globals():
        return globals()[name[:-3]]
    return _missing(name)
