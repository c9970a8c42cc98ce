"""Makes the model, the tokenizer and the optimizer of a settings file."""

import dataclasses
import warnings

import keras
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import open_folder
from roformer_tf.checkpoint.vocabulary import Vocabulary, has_words
from roformer_tf.models.presets import limit_to_positions, saved_head
from roformer_tf.optimizers import OriginalAdamW, OriginalLAMB, PiecewiseLinear

# like the original: norms and biases do not decay; nor do learned rotary frequencies
NO_DECAY = ("bias", "gamma", "beta", "theta")
_MASKING = {"masked_lm": "bidirectional", "causal_lm": "causal", "unilm": "unilm"}
# keys of `ModelSettings` that are not arguments of the backbone
_NOT_BACKBONE = ("checkpoint", "vocabulary", "word_level", "max_sequence_length")


def make_tokenizer(model):
    """Makes the tokenizer for `ModelSettings`.

    Raises:
        FileNotFoundError: If the vocabulary or the checkpoint does not exist.
    """
    options = {} if model.word_level is None else {"word_level": model.word_level}
    if model.checkpoint is not None:
        return roformer_tf.RoFormerTokenizer.from_preset(model.checkpoint, **options)
    vocabulary = Vocabulary(model.vocabulary)
    options.setdefault("word_level", has_words(vocabulary.ids))
    if "[MASK]" not in vocabulary.ids:  # `PretrainingObjective` says whether it needs one
        options["mask_token"] = None
    return roformer_tf.RoFormerTokenizer(vocabulary.tokens, **options)


def make_task(model, objective, vocabulary_size, max_length):
    """Makes a `RoFormerMaskedLM`, or a `RoFormerCausalLM` for the other objectives.

    The maximum length of all stages is the number of learned positions, unless
    `model.max_sequence_length` is set.

    Raises:
        ValueError: If the objective needs more segments than the checkpoint has.

    Warns:
        UserWarning: If a preset holds no head of a language model, so that it is a new one.
    """
    masked = objective == "masked_lm"
    cls = roformer_tf.RoFormerMaskedLM if masked else roformer_tf.RoFormerCausalLM
    if model.checkpoint is not None:
        task = cls.from_preset(
            model.checkpoint, dtype=model.dtype, masking=_MASKING[objective], preprocessor=None
        )
        if objective == "unilm" and task.backbone.num_segments == 1:
            raise ValueError(
                "`objective` 'unilm' trains with segment ids 0 and 1, so a model must have at "
                "least two segments, or none. Received: a checkpoint with num_segments=1. Use "
                "another checkpoint or objective"
            )
        folder = open_folder(model.checkpoint, weights=False)
        is_preset = folder.layout == "preset"  # of other folders, `from_preset` says so
        if is_preset and saved_head(folder, cls) is None and task.has_task_weights():
            warnings.warn(
                f"{model.checkpoint} holds no head of a language model: its backbone goes on from "
                "there, with a new head. Start from a language model to keep its head",
                stacklevel=2,
            )
        return task
    arguments = {k: v for k, v in dataclasses.asdict(model).items() if k not in _NOT_BACKBONE}
    backbone = roformer_tf.RoFormerBackbone(
        vocabulary_size=vocabulary_size,
        masking=_MASKING[objective],
        max_sequence_length=model.max_sequence_length or max_length,
        **arguments,
    )
    return cls(backbone)


def make_preprocessor(task, tokenizer):
    """Makes the preprocessor of a task, for sequences no longer than its learned positions."""
    options = {}
    limit_to_positions(options, task.backbone.get_config())
    return task.preprocessor_cls(tokenizer, **options)


def check_packing(packing, attention):
    """Raises `ValueError` if packed documents need a mask, which linear attention lacks."""
    if packing == "block_diagonal" and attention != "softmax":
        raise ValueError(
            "`packing` 'block_diagonal' needs softmax attention: linear attention cannot keep the "
            f"documents of a sequence apart. Received: a checkpoint with attention={attention!r}. "
            "Use `packing` 'none' or 'full', or another checkpoint"
        )


def make_optimizer(settings, learning_rate):
    """Makes the optimizer for `OptimizerSettings`.

    AdamW is `LayerwiseAdamW` with one rate for all layers, LAMB and Adafactor are Keras'. They decay
    all weights but norms and biases. `"original_adamw"` and `"original_lamb"` are the original's
    optimizers, of v1 and v2.
    """
    common = {
        "learning_rate": learning_rate,
        "global_clipnorm": settings.clip_norm,
        "weight_decay": settings.weight_decay,
    }
    betas = {"beta_1": settings.beta_1, "beta_2": settings.beta_2, "epsilon": settings.epsilon}
    if settings.name in ("original_adamw", "original_lamb"):
        original = OriginalAdamW if settings.name == "original_adamw" else OriginalLAMB
        return original(**common, **betas)
    if settings.name == "adamw":
        return roformer_tf.optimizers.LayerwiseAdamW(
            num_layers=1, no_decay=NO_DECAY, **common, **betas
        )
    common["weight_decay"] = settings.weight_decay or None
    if settings.name == "lamb":
        optimizer = keras.optimizers.Lamb(**common, **betas)
    else:
        optimizer = keras.optimizers.Adafactor(**common, relative_step=False)
    optimizer.exclude_from_weight_decay(var_names=list(NO_DECAY))
    return optimizer


class StagesSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of every step of a run: each stage's own rule, from the stage's first step.

    Args:
        stages: list of `Stage`.

    Call arguments:
        step: integer scalar tensor. Steps done since the start of the run.

    Returns:
        float32 scalar tensor. After the last stage, the last rate.

    Example:

    >>> from roformer_tf.pretraining import Stage, StagesSchedule
    >>> schedule = StagesSchedule([Stage(128, 8, 4, 1e-3, {2: 1.0}), Stage(64, 8, 4, 1e-4)])
    >>> [round(float(schedule(step)) * 1e4, 2) for step in (0, 1, 2, 3, 4, 7)]
    [0.0, 5.0, 10.0, 10.0, 1.0, 1.0]
    """

    def __init__(self, stages):
        self.stages = list(stages)

    def __call__(self, step):
        step = tf.cast(step, tf.int64)
        rate, first = tf.constant(0.0), 0
        for stage in self.stages:
            here = tf.constant(stage.learning_rate, tf.float32)
            if stage.learning_rate_factors:
                rule = PiecewiseLinear(stage.learning_rate, stage.learning_rate_factors)
                here = tf.cast(rule(step - first), tf.float32)
            rate = tf.where(step >= first, here, rate)
            first += stage.steps
        return rate

    def get_config(self):
        return {"stages": [dataclasses.asdict(stage) for stage in self.stages]}
