import keras
from keras import ops

from roformer_tf.optimizers.original_optimizer import (
    OriginalOptimizer,
    apply_adam,
    matches_any,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalAdamW(OriginalOptimizer):
    """The optimizer of the original `train.py`, which reproduces its training number for number.

    This is bert4keras' `Adam`, extended with weight decay, a piecewise linear learning rate (pass a
    `PiecewiseLinear`) and gradient accumulation. For new work, use `keras.optimizers.AdamW` and
    average the gradients of a whole global batch before one update. The differences:

    * Epsilon is 1e-6 and added after the second moment's bias is corrected. Keras adds 1e-7 before.
    * Decoupled weight decay applies to every weight whose name in bert4keras has neither "Norm" nor
      "bias". The masked language model's output bias is called `MLM-Bias/beta` there, so it is the
      only bias that decays.
    * Sparse gradients: embeddings that a batch does not use still decay and move by their moments.
    * Accumulation: every call is a micro-step, and `iterations`, which sets the learning rate,
      counts micro-steps. Weights change at micro-steps 0, k, 2k, ... (k = `accumulation_steps`).
      Each update uses the mean of the k gradients *before* its micro-step, with the learning rate
      and the bias correction of this micro-step. So the update at micro-step 0 only decays weights,
      the first real update with k = 4 has the bias correction of step 5 (0.55 of Adam's first
      step), and up to k gradients at the end of a run are never used. The mean gives each
      micro-batch the same weight, however many tokens it predicts. For exact accumulation, where k
      slices of a batch give the update of the whole batch, use the training step.

    Args:
        learning_rate: float or schedule, such as `PiecewiseLinear(1e-5, {20000: 1.0})`, of
            micro-steps.
        beta_1, beta_2: floats. Decay of the moments.
        epsilon: positive float.
        weight_decay: float. Multiplied by the learning rate at each update; 0 for none.
        no_decay: regular expressions, searched in the paths of weights that do not decay. The
            default decays the same weights as the original.
        accumulation_steps: int. The original's `grad_accum_steps`; 1 for an update at every call.
        **kwargs: Arguments of `keras.optimizers.Optimizer`. Clipping acts on the gradient of each
            micro-step.

    Raises:
        ValueError: If `accumulation_steps` or `epsilon` is not positive, or
            `gradient_accumulation_steps` is given: Keras would accumulate a second time.

    Example:

    >>> from roformer_tf.optimizers import OriginalAdamW, PiecewiseLinear
    >>> optimizer = OriginalAdamW(PiecewiseLinear(1e-5, {20000: 1.0}), accumulation_steps=4)
    >>> weights = "dense/kernel", "dense/bias", "output_bias"
    >>> [optimizer.decays(f"masked_lm_head/{name}") for name in weights]
    [True, False, True]

    Reference: `Adam`, `extend_with_weight_decay_v2`, `extend_with_piecewise_linear_lr_v2` and
    `extend_with_gradient_accumulation_v2` in `optimizers.py` of bert4keras 0.11.5; `train.py` of
    ZhuiyiTechnology/roformer.
    """

    bias_correction = True
    epsilon_inside = False  # whether epsilon is added before the correction, as Keras does
    uses_kernel = True  # whether TensorFlow's kernel of Adam, and not `new_values`, does the update

    def __init__(
        self,
        learning_rate=1e-5,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        no_decay=("gamma", "beta", "theta", "(?<!output_)bias"),
        accumulation_steps=1,
        name="original_adamw",
        **kwargs,
    ):
        if not epsilon > 0:  # the update at micro-step 0 divides nothing by it
            raise ValueError(f"`epsilon` must be positive. Received: epsilon={epsilon!r}")
        super().__init__(learning_rate, accumulation_steps, name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.decoupled_weight_decay = weight_decay
        self.no_decay = tuple(no_decay)

    def decays(self, path):
        """Returns whether the weight at `path` decays."""
        return bool(self.decoupled_weight_decay) and not matches_any(self.no_decay, path)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def update_step(self, gradient, variable, learning_rate):
        has_kernel = self.uses_kernel and variable.dtype != "bfloat16"  # in which 0.999 is 1
        if not (has_kernel and keras.config.backend() == "tensorflow"):
            return super().update_step(gradient, variable, learning_rate)

        import tensorflow as tf

        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)

        def update(gradient):
            if self.decays(self.describe(variable).path):
                rate = ops.cast(learning_rate, variable.dtype) * self.decoupled_weight_decay
                self.assign_sub(variable, variable * rate)
            apply_adam(self, variable, gradient, learning_rate, self.epsilon_inside)

        if self.accumulation_steps == 1:
            return update(gradient)
        total = self._sums[self._get_variable_index(variable)]

        def update_and_reset():
            update(total / self.accumulation_steps)
            self.assign(total, gradient)

        ops.cond(self.updates_now(), update_and_reset, lambda: self.assign_add(total, gradient))

    def new_values(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        dtype = "float32" if dtype == "bfloat16" else dtype
        rate, beta_1, beta_2, step = (
            ops.cast(x, dtype)
            for x in (learning_rate, self.beta_1, self.beta_2, self.iterations + 1)
        )
        targets = self._momentums[index], self._velocities[index], variable
        first, second, value, gradient = (
            ops.cast(ops.convert_to_tensor(x), dtype) for x in (*targets, gradient)
        )
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * ops.square(gradient)
        corrected, root = first, ops.sqrt(second)
        if self.bias_correction:
            corrected = first / (1 - ops.power(beta_1, step))
            root = ops.sqrt(second / (1 - ops.power(beta_2, step)))
        epsilon = self.epsilon
        if self.epsilon_inside:
            epsilon = epsilon / ops.sqrt(1 - ops.power(beta_2, step))
        new_value = value - rate * corrected / (root + epsilon)
        if self.decays(self.describe(variable).path):
            new_value = new_value - rate * self.decoupled_weight_decay * value
        return list(zip(targets, (first, second, new_value)))

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.decoupled_weight_decay,
            "no_decay": self.no_decay,
        }
