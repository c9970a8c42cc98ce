"""RoFormer, the Transformer with rotary position embedding, for TensorFlow and Keras 3.

Paper: https://arxiv.org/abs/2104.09864
"""

import sys
from typing import TYPE_CHECKING

from roformer_tf import startup

__version__ = "0.2.0"

if TYPE_CHECKING:  # for editors and type checkers; see `startup` for what happens instead
    from roformer_tf import layers as layers
    from roformer_tf import optimizers as optimizers
    from roformer_tf.models import (
        RoFormerBackbone,
        RoFormerCausalLM,
        RoFormerCausalLMPreprocessor,
        RoFormerMaskedLM,
        RoFormerMaskedLMPreprocessor,
        RoFormerMultipleChoice,
        RoFormerMultipleChoicePreprocessor,
        RoFormerQuestionAnswering,
        RoFormerQuestionAnsweringPreprocessor,
        RoFormerSeq2SeqBackbone,
        RoFormerSeq2SeqLM,
        RoFormerSeq2SeqLMPreprocessor,
        RoFormerSim,
        RoFormerSimClassifier,
        RoFormerSimClassifierPreprocessor,
        RoFormerSimPreprocessor,
        RoFormerTextClassifier,
        RoFormerTextClassifierPreprocessor,
        RoFormerTokenClassifier,
        RoFormerTokenClassifierPreprocessor,
    )
    from roformer_tf.text import (
        RoFormerSentencePieceTokenizer,
        RoFormerTokenizer,
    )

__all__ = [
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerCausalLMPreprocessor",
    "RoFormerMaskedLM",
    "RoFormerMaskedLMPreprocessor",
    "RoFormerMultipleChoice",
    "RoFormerMultipleChoicePreprocessor",
    "RoFormerQuestionAnswering",
    "RoFormerQuestionAnsweringPreprocessor",
    "RoFormerSentencePieceTokenizer",
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
    "RoFormerTokenizer",
]

# Loaded on first use, see `startup`.
_MODULES = {name: module for module, names in startup.LAZY.items() for name in names}
_SUBMODULES = ("layers", "optimizers")


def __getattr__(name: str):
    if name in _SUBMODULES:
        return startup.import_module(f"roformer_tf.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(startup.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


if sys.argv[:1] != ["-m"]:  # `python -m roformer_tf --help` answers without Keras
    startup.start()
