"""Ready-made choices for fine-tuning: a schedule and an optimizer."""

from roformer_tf.optimizers.layerwise_adamw import LayerwiseAdamW
from roformer_tf.optimizers.linear_warmup_decay import LinearWarmupDecay

__all__ = ["LayerwiseAdamW", "LinearWarmupDecay"]
