"""Ready-made choices for training: schedules, optimizers, averages of weights."""

from roformer_tf.optimizers.inverse_square_root import InverseSquareRootDecay
from roformer_tf.optimizers.last_weights import LastWeights, average_weights
from roformer_tf.optimizers.layerwise_adamw import LayerwiseAdamW
from roformer_tf.optimizers.linear_warmup_decay import LinearWarmupDecay
from roformer_tf.optimizers.original_adafactor import OriginalAdaFactor
from roformer_tf.optimizers.original_adamw import OriginalAdamW
from roformer_tf.optimizers.original_lamb import OriginalLAMB
from roformer_tf.optimizers.piecewise_linear import PiecewiseLinear

__all__ = [
    "InverseSquareRootDecay",
    "LastWeights",
    "LayerwiseAdamW",
    "LinearWarmupDecay",
    "OriginalAdaFactor",
    "OriginalAdamW",
    "OriginalLAMB",
    "PiecewiseLinear",
    "average_weights",
]
