"""Loads Keras quietly when the package is imported, and everything else when it is first used.

KerasHub and TensorFlow Text take seconds to import. `keras.saving.load_model` still finds every
class, as each has a `LazyClass` in Keras' registry until its module is imported.
"""

import contextlib
import gc
import importlib
import os
import re
import sys
import tempfile

LAZY = {
    "roformer_tf.layers": (
        "AttentionMask",
        "ConditionalRandomField",
        "ConditionalRandomFieldLoss",
        "CosineFeatureMap",
        "CrossAttention",
        "DebertaPosition",
        "DecoderBlock",
        "Dropout",
        "EfficientGlobalPointer",
        "EluFeatureMap",
        "EncoderBlock",
        "FavorFeatureMap",
        "FeatureMap",
        "FeedForward",
        "FlatDense",
        "GlobalPointer",
        "LearnedPosition",
        "LinearAttention",
        "MaskedLMHead",
        "MeanPooling",
        "MultilabelSpanCrossentropy",
        "Pooler",
        "PositionScheme",
        "RMSNorm",
        "RelativePosition",
        "RoFormerEmbeddings",
        "RotaryEmbedding",
        "RotaryMultiHeadAttention",
        "RotaryPosition",
        "SelfAttention",
        "SinusoidalPosition",
        "SinusoidalRelativePosition",
        "SoftmaxFeatureMap",
        "SpanCrossentropy",
        "T5RelativeBias",
        "TokenEmbedding",
        "TransformerXLPosition",
        "TupePosition",
    ),
    "roformer_tf.models": (
        "EntityTagLoss",
        "GroupedCrossentropy",
        "InBatchContrastive",
        "RoFormerBackbone",
        "RoFormerCausalLM",
        "RoFormerCausalLMPreprocessor",
        "RoFormerMaskedLM",
        "RoFormerMaskedLMPreprocessor",
        "RoFormerMultipleChoice",
        "RoFormerMultipleChoicePreprocessor",
        "RoFormerQuestionAnswering",
        "RoFormerQuestionAnsweringPreprocessor",
        "RoFormerSeq2SeqBackbone",
        "RoFormerSeq2SeqLM",
        "RoFormerSeq2SeqLMPreprocessor",
        "RoFormerSim",
        "RoFormerSimClassifier",
        "RoFormerSimClassifierPreprocessor",
        "RoFormerSimPreprocessor",
        "RoFormerTextClassifier",
        "RoFormerTextClassifierPreprocessor",
        "RoFormerTokenClassifier",
        "RoFormerTokenClassifierPreprocessor",
        "SimilarityDistillation",
        "SmoothedCrossentropy",
    ),
    "roformer_tf.optimizers": (
        "InverseSquareRootDecay",
        "LayerwiseAdamW",
        "LinearWarmupDecay",
        "OriginalAdaFactor",
        "OriginalAdamW",
        "OriginalLAMB",
        "PiecewiseLinear",
    ),
    "roformer_tf.samplers": ("BeamSearchSampler", "OriginalBeamSampler"),
    "roformer_tf.text": ("RoFormerSentencePieceTokenizer", "RoFormerTokenizer"),
}

# What TensorFlow writes while it loads, before it reads TF_CPP_MIN_LOG_LEVEL.
_START_UP_LINE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I\d{4} |To enable the following instr"
)


@contextlib.contextmanager
def _without_garbage_collection():
    """Keeps Python from looking through all objects again and again while modules make them.

    The search finds next to nothing to free, and takes 5 to 20 % of the time of an import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_garbage_collection()
def import_module(name):
    """Imports a module, with KerasHub and TensorFlow Text if it needs them."""
    return importlib.import_module(name)


class LazyClass:
    """Stands for a class in Keras' registry until its module is imported."""

    def __init__(self, module, name):
        self._module, self._name = module, name

    def _load(self):
        return getattr(import_module(self._module), self._name)

    def __getattr__(self, name):
        return getattr(self._load(), name)

    def __call__(self, *args, **kwargs):
        return self._load()(*args, **kwargs)

    @property
    def __bases__(self):  # `issubclass` follows them to the class itself
        return (self._load(),)


@_without_garbage_collection()
def start():
    """Imports Keras without TensorFlow's start-up lines, and registers this package's classes."""
    # Must be set before TensorFlow loads. Python errors and warnings are not affected.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow turns oneDNN's kernels off where there is no AVX-512, although they are faster there.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with _without_start_up_lines():
        import keras
    # registers its functions: nothing can stand for a function as `LazyClass` does for a class
    importlib.import_module("roformer_tf.activations")
    registry = keras.saving.get_custom_objects()
    for module, names in LAZY.items():
        for name in names:
            registry.setdefault(f"roformer_tf>{name}", LazyClass(module, name))


@contextlib.contextmanager
def _without_start_up_lines():
    """Drops TensorFlow's start-up lines from standard error. Everything else is passed on."""
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
    except (AttributeError, OSError):  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            sys.stderr.writelines(line for line in log if not _START_UP_LINE.match(line))
