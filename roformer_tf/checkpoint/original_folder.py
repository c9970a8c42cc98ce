"""From an original folder to a ready model: what `from_preset` does for such folders."""

from pathlib import Path

from roformer_tf.checkpoint.family import guess_family
from roformer_tf.checkpoint.hugging_face_reader import is_hugging_face
from roformer_tf.checkpoint.loading import load_checkpoint
from roformer_tf.checkpoint.original_config import backbone_arguments
from roformer_tf.checkpoint.paths import is_tf1_folder
from roformer_tf.checkpoint.readers import open_checkpoint
from roformer_tf.checkpoint.vocabulary import (
    check_vocabulary_size,
    edited_size,
    read_vocabulary,
    vocabulary_file,
)
from roformer_tf.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerSim,
    RoFormerSimClassifier,
    RoFormerTextClassifier,
)
from roformer_tf.models.presets import arguments_of
from roformer_tf.text import RoFormerTokenizer
from roformer_tf.text.vocabulary import Vocabulary, has_words

_APPLICATION_MASKING = {"encoder": "bidirectional", "lm": "causal", "unilm": "unilm"}


def is_original_folder(path):
    """Whether `path` is a folder for `load_original`, and not one written by `save_to_preset`.

    It holds a `bert_config.json`, a TF1 checkpoint (an `.index` file), or Hugging Face's layout. Nothing is read but
    names, so a damaged folder is still an original folder.

    Args:
        path: str or path; need not exist.

    Returns:
        bool

    Example:

    >>> from roformer_tf.checkpoint import is_original_folder
    >>> is_original_folder("no/such/folder")
    False
    """
    return is_tf1_folder(path) or is_hugging_face(path)


def load_original(cls, folder, load_weights=True, **kwargs):
    """Builds a backbone, task, preprocessor or tokenizer from an original folder.

    Sizes come from `bert_config.json`, the family (v1, v2, BERT, NEZHA) from variables and settings, word or character
    level from the vocabulary. What is seen by a query is the class's: `RoFormerCausalLM` is causal, or UniLM if the
    folder looks like RoFormer-Sim; RoFormer-Sim's own classes are UniLM with a linear pooler; masked LM and classifier
    see both sides; a bare backbone is what the folder was trained as. A bare backbone gets a pooler if the checkpoint
    has one.

    Args:
        cls: a class of `roformer_tf`.
        folder: str or path; a folder in Hugging Face's layout will do too.
        load_weights: `False` leaves the weights random; the checkpoint is then needed only to tell the family.
        **kwargs: overrides, each to where it belongs:
            of the constructor of `cls` (`num_classes`, `pooling`, `dropout`, `preprocessor`, …);
            of `RoFormerBackbone` (`dtype`, `masking`, `pooler`, `layer_norm_epsilon`, `attention_dropout`, …; a name
            that both have is the task's);
            of the preprocessor (`sequence_length`, …) and of `RoFormerTokenizer` (`word_level`, `vocabulary`,
            `lowercase`, …);
            `family`, `strict`, `keep_tokens`, `compound_tokens`, `nsp_head` of `load_checkpoint`; with
            `compound_tokens` the new `vocabulary` must be given too, if there is to be a preprocessor.

    Returns:
        An instance of `cls`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or the parts do not fit each other (vocabulary and settings, settings and
            checkpoint), or the family cannot be loaded.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import load_original, save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, dropout=0.2
    ... )
    >>> folder = save_checkpoint(backbone, tempfile.mkdtemp())
    >>> load_original(roformer_tf.RoFormerBackbone, folder).dropout
    0.2
    """
    folder = Path(folder)
    if issubclass(cls, RoFormerTokenizer):
        return _tokenizer(folder, None, None, kwargs)
    if not issubclass(cls, RoFormerBackbone) and not hasattr(cls, "preprocessor_cls"):
        if "tokenizer" not in kwargs:
            kwargs["tokenizer"] = _tokenizer(folder, None, None, _take(kwargs, _TOKENIZER_NAMES))
        return cls(**kwargs)

    reader = open_checkpoint(folder)
    settings = reader.config
    guess = guess_family(reader.shapes, settings, folder.resolve().name, kwargs.get("family"))
    if guess.family is None:
        raise ValueError(f"Wrong family: {reader.source} cannot be built. {guess.reasons[0]}")
    surgery = _take(kwargs, ("keep_tokens", "compound_tokens"))
    options = {"family": guess.family, **_take(kwargs, ("strict", "nsp_head"))}
    kwargs.pop("family", None)

    task_names = () if issubclass(cls, RoFormerBackbone) else arguments_of(cls)
    backbone = kwargs.pop("backbone", None) if task_names else None
    if backbone is None:
        overrides = _take(
            kwargs, (n for n in arguments_of(RoFormerBackbone) if n not in task_names)
        )
        if not task_names:
            overrides.update(_take(kwargs, _MODEL_NAMES))
        arguments = backbone_arguments(settings, guess.family, str(reader.folder))
        arguments["vocabulary_size"] = edited_size(arguments["vocabulary_size"], **surgery)
        arguments["masking"] = _masking(cls, guess)
        arguments["pooler"] = _pooler(cls, guess, options, kwargs)
        backbone = RoFormerBackbone(**{**arguments, **overrides})
    if reader.layout == "huggingface" and "head_epsilon" in task_names:
        # one epsilon for all norms there; the original has its own for the head
        kwargs.setdefault("head_epsilon", backbone.layer_norm_epsilon)
    if task_names and "preprocessor" not in kwargs:
        kwargs["preprocessor"] = _preprocessor(cls, folder, backbone, surgery, kwargs)
    _check_all_used(cls, kwargs, (*task_names, *_MODEL_NAMES) if task_names else ())
    model = cls(backbone=backbone, **kwargs) if task_names else backbone
    if load_weights:
        load_checkpoint(model, folder, **options, **surgery)
    return model


def _masking(cls, guess):
    if issubclass(cls, RoFormerBackbone):
        return _APPLICATION_MASKING[guess.application]
    if issubclass(cls, (RoFormerSim, RoFormerSimClassifier)):
        return "unilm"
    if issubclass(cls, RoFormerCausalLM):
        return "unilm" if guess.application == "unilm" else "causal"
    return "bidirectional"


def _pooler(cls, guess, options, kwargs):
    if issubclass(cls, RoFormerBackbone):
        return guess.pooler
    if issubclass(cls, (RoFormerSim, RoFormerSimClassifier)):
        return "linear"
    if issubclass(cls, RoFormerTextClassifier) and kwargs.get("pooling") == "pooler":
        return "tanh" if options.get("nsp_head") else guess.pooler or "tanh"
    return None


def _preprocessor(cls, folder, backbone, surgery, kwargs):
    size = backbone.vocabulary_size
    tokenizer = _tokenizer(folder, size, surgery, _take(kwargs, _TOKENIZER_NAMES))
    names = (n for n in arguments_of(cls.preprocessor_cls) if n not in arguments_of(cls))
    options = _take(kwargs, names)
    if backbone.position_scheme_name == "learned":  # no more tokens than positions
        options.setdefault("sequence_length", min(512, backbone.max_sequence_length))
    return cls.preprocessor_cls(tokenizer, **options)


def _tokenizer(folder, vocabulary_size, surgery, kwargs):
    given = kwargs.pop("vocabulary", None)
    source = "`vocabulary`" if given is not None else str(vocabulary_file(folder))
    vocabulary = Vocabulary(given) if given is not None else read_vocabulary(folder)
    if given is None and surgery:
        vocabulary = _edited(vocabulary, **surgery)
    if vocabulary_size is not None:
        check_vocabulary_size(vocabulary, vocabulary_size, source)
    kwargs.setdefault("word_level", has_words(vocabulary.ids))
    return RoFormerTokenizer(vocabulary=vocabulary.tokens, **kwargs)


def _edited(vocabulary, keep_tokens=None, compound_tokens=None):
    if compound_tokens is not None:
        raise ValueError(
            "`compound_tokens` adds tokens that have no names yet: pass `vocabulary=[…]`, the list of all tokens in "
            "their new order, or `preprocessor=None`."
        )
    if keep_tokens is None:
        return vocabulary
    tokens = [vocabulary.token(i) for i in keep_tokens]
    if None in tokens:
        wrong = [i for i in keep_tokens if vocabulary.token(i) is None]
        raise ValueError(
            f"`keep_tokens` must hold ids of the vocabulary, which has {vocabulary.size}. Received: {wrong[:10]}"
        )
    return Vocabulary(tokens)


def _check_all_used(cls, kwargs, names):
    """Keras models swallow arguments that they do not know."""
    unknown = [name for name in kwargs if name not in names]
    if unknown:
        raise ValueError(
            f"Unknown arguments of {cls.__name__}.from_preset for an original folder: {unknown}. Known are those of "
            "the class, of RoFormerBackbone, of its preprocessor and of RoFormerTokenizer (unless `preprocessor` is "
            "given), and family, strict, keep_tokens, compound_tokens, nsp_head."
        )


# `sequence_length` is the preprocessor's, `dtype` the backbone's
_TOKENIZER_NAMES = [
    n for n in arguments_of(RoFormerTokenizer) if n not in ("sequence_length", "dtype")
]
_MODEL_NAMES = ("name", "trainable")


def _take(kwargs, names):
    return {name: kwargs.pop(name) for name in list(names) if name in kwargs}
