import re

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.optimizers.adam_kernel import apply_adam


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalAdamW(keras.optimizers.Optimizer):
    """The optimizer of the original `train.py`, to repeat its training number for number.

    That is bert4keras' `Adam`, extended with weight decay, piecewise linear learning rate (give a
    `PiecewiseLinear`) and gradient accumulation. For new work take `keras.optimizers.AdamW` and
    average the gradients of a whole global batch before one update. This one differs from it in:

    * epsilon: 1e-6, added after the second moment's bias is corrected. Keras has 1e-7, added
      before.
    * weight decay: as decoupled, but everything decays whose name in bert4keras has neither "Norm"
      nor "bias". There the masked language model's output bias is called `MLM-Bias/beta`, so it
      decays, alone among the biases.
    * sparse gradients: rows of the embeddings that a batch does not use still move by their moments
      and decay.
    * accumulation: every call is a micro-step, and `iterations`, which the learning rate follows,
      counts micro-steps. Weights change at micro-steps 0, k, 2k, ... (k = `accumulation_steps`),
      *before* the gradient of that micro-step counts: from the mean of the k gradients before it,
      with the learning rate and the bias correction of this micro-step. So the update at micro-step
      0 has no gradient and only decays weights, if the learning rate is not 0 yet; the first real
      update, with k = 4, has the bias correction of step 5, which makes it smaller (0.55 of Adam's
      first step); and up to k gradients at the end of a run are never used. Exact accumulation,
      where k slices of a batch give the update of the whole batch, is a matter of the training
      step, not of the optimizer. The mean over micro-steps also weighs each micro-batch's own mean
      alike, however many tokens it predicts.

    Args:
        learning_rate: float or schedule, such as `PiecewiseLinear(1e-5, {20000: 1.0})`, of
            micro-steps.
        beta_1, beta_2: floats, decay of the moments.
        epsilon: positive float.
        weight_decay: float. The share that goes with the learning rate at each update; 0 for none.
        no_decay: regular expressions, searched in the paths of weights that shall not decay. The
            default decays what the original decays.
        accumulation_steps: int. The original's `grad_accum_steps`; 1 for an update at every call.
        **kwargs: Arguments of `keras.optimizers.Optimizer`. Clipping acts on the gradient of each
            micro-step.

    Raises:
        ValueError: If `accumulation_steps` or `epsilon` is not positive, or
            `gradient_accumulation_steps` is given, Keras' own way, which would accumulate a second
            time.

    Example:

    >>> from roformer_tf.optimizers import OriginalAdamW, PiecewiseLinear
    >>> optimizer = OriginalAdamW(PiecewiseLinear(1e-5, {20000: 1.0}), accumulation_steps=4)
    >>> optimizer.decays("masked_lm_head/dense/kernel"), optimizer.decays("masked_lm_head/dense/bias")
    (True, False)
    >>> optimizer.decays("masked_lm_head/output_bias")
    True

    Reference: `Adam`, `extend_with_weight_decay_v2`, `extend_with_piecewise_linear_lr_v2` and
    `extend_with_gradient_accumulation_v2` in `optimizers.py` of bert4keras 0.11.5; `train.py` of
    ZhuiyiTechnology/roformer.
    """

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
        check_positive_integer("accumulation_steps", accumulation_steps)
        if not epsilon > 0:  # the update at micro-step 0 divides nothing by it
            raise ValueError(f"`epsilon` must be positive. Received: epsilon={epsilon!r}")
        if kwargs.get("gradient_accumulation_steps") is not None:
            raise ValueError(
                "OriginalAdamW accumulates by `accumulation_steps`, as the original does; leave "
                "`gradient_accumulation_steps` out. Received: gradient_accumulation_steps="
                f"{kwargs['gradient_accumulation_steps']!r}"
            )
        # Keras would decay the weights before, and not with, the update, and at every micro-step
        super().__init__(learning_rate, weight_decay=None, name=name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.decoupled_weight_decay = weight_decay
        self.no_decay = tuple(no_decay)
        self.accumulation_steps = accumulation_steps

    def decays(self, path):
        """Whether the weight at `path` decays."""
        return bool(self.decoupled_weight_decay) and not any(
            re.search(pattern, path) for pattern in self.no_decay
        )

    def build(self, variables):
        """Makes the moments and, for accumulation, the sums of gradients."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        self._sums = None
        if self.accumulation_steps > 1:
            self._sums = self.add_optimizer_variables(variables, "gradient_sum")
        self._decays = [self.decays(getattr(v, "path", v.name)) for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        if keras.config.backend() == "tensorflow":
            self._update_by_the_kernel(gradient, variable, learning_rate)
        else:
            self._update_by_the_formula(gradient, variable, learning_rate)

    def _update_by_the_kernel(self, gradient, variable, learning_rate):
        import tensorflow as tf

        index = self._get_variable_index(variable)
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)

        def update(gradient):
            if self._decays[index]:
                rate = ops.cast(learning_rate, variable.dtype) * self.decoupled_weight_decay
                self.assign_sub(variable, variable * rate)
            apply_adam(
                variable,
                (self._momentums[index], self._velocities[index]),
                gradient,
                learning_rate,
                self.beta_1,
                self.beta_2,
                self.epsilon,
                self.iterations + 1,
                epsilon_inside=False,
            )

        if self.accumulation_steps == 1:
            return update(gradient)
        total = self._sums[index]

        def update_and_reset():
            update(total / self.accumulation_steps)
            self.assign(total, gradient)

        ops.cond(self._updates_now(), update_and_reset, lambda: self.assign_add(total, gradient))

    def _update_by_the_formula(self, gradient, variable, learning_rate):
        # No branch: JAX traces both sides of one anyway, and cannot assign to variables in them.
        index = self._get_variable_index(variable)
        dtype = variable.dtype
        gradient, rate, beta_1, beta_2, step = (
            ops.cast(x, dtype)
            for x in (gradient, learning_rate, self.beta_1, self.beta_2, self.iterations + 1)
        )
        accumulates = self.accumulation_steps > 1
        now = self._updates_now()
        if accumulates:
            total = ops.convert_to_tensor(self._sums[index])
            new_total = ops.where(now, gradient, total + gradient)
            gradient = total / self.accumulation_steps
        targets = self._momentums[index], self._velocities[index], variable
        first, second, value = (ops.convert_to_tensor(target) for target in targets)
        new_first = beta_1 * first + (1 - beta_1) * gradient
        new_second = beta_2 * second + (1 - beta_2) * ops.square(gradient)
        corrected = new_first / (1 - ops.power(beta_1, step))
        root = ops.sqrt(new_second / (1 - ops.power(beta_2, step)))
        new_value = value - rate * corrected / (root + self.epsilon)
        if self._decays[index]:
            new_value = new_value - rate * self.decoupled_weight_decay * value
        # only now, as a tensor of PyTorch is the variable's own memory
        for target, old, new in zip(
            targets, (first, second, value), (new_first, new_second, new_value)
        ):
            self.assign(target, ops.where(now, new, old) if accumulates else new)
        if accumulates:
            self.assign(self._sums[index], new_total)

    def _updates_now(self):
        return ops.equal(ops.mod(self.iterations, self.accumulation_steps), 0)

    def get_config(self):
        config = super().get_config()
        del config["gradient_accumulation_steps"]
        return {
            **config,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.decoupled_weight_decay,
            "no_decay": self.no_decay,
            "accumulation_steps": self.accumulation_steps,
        }
