"""Builds models from original and Hugging Face checkpoints, and from saved presets."""

import inspect

import keras

from roformer_tf.checkpoint import load_checkpoint
from roformer_tf.checkpoint.original_config import check_sizes
from roformer_tf.checkpoint.vocabulary import Vocabulary, check_vocabulary_size, edited_size
from roformer_tf.text import RoFormerTokenizer

KERAS_ARGUMENTS = ("name", "trainable", "compile")
_CLASSIFIERS = (  # which need neither a pooler nor a masked-LM head
    "RoFormerTextClassifier, RoFormerTokenClassifier, RoFormerQuestionAnswering and "
    "RoFormerMultipleChoice"
)
_CLASSES = {
    "RoFormerBackbone": "RoFormerBackbone, RoFormerMaskedLM, RoFormerCausalLM, "
    "RoFormerTextClassifier, RoFormerTokenClassifier, RoFormerQuestionAnswering, "
    "RoFormerMultipleChoice (with a pooler also RoFormerSim and RoFormerSimClassifier) and their "
    "preprocessors",
    "RoFormerSeq2SeqBackbone": "RoFormerSeq2SeqBackbone, RoFormerSeq2SeqLM and its preprocessor",
}


def check_backbone_class(cls, folder):
    """Raises `ValueError` if a folder holds another kind of backbone than a class has."""
    wanted = cls.backbone_cls or cls
    found = folder.backbone_class
    if found in {base.__name__ for base in wanted.__mro__}:
        return
    registered = keras.saving.get_registered_object(folder.config.get("registered_name", ""))
    if isinstance(registered, type) and issubclass(registered, wanted):
        return
    other = f"keras_hub.models.{found}"
    raise ValueError(
        f"{cls.__name__} cannot be built from {folder.path}, which holds "
        f"{f'a {found}' if found else 'an unknown class'}, not a {wanted.__name__}. "
        f"Classes that can: {_CLASSES.get(found, other)}."
    )


def check_tokenizer(preprocessor_cls, folder):
    """Raises `FileNotFoundError` if there is no tokenizer for a preprocessor in a folder."""
    if folder.tokenizer_class is None:
        raise FileNotFoundError(
            f"{folder.path} holds no tokenizer: the model was saved without a preprocessor. Pass "
            "`preprocessor=None` to load a task without one, or "
            f"`tokenizer={preprocessor_cls.tokenizer_cls.__name__}(…)` to a preprocessor."
        )


# === Original and Hugging Face checkpoints ===


def from_checkpoint(cls, folder, load_weights, kwargs):
    """Builds a backbone or task from an original or Hugging Face folder."""
    identity = folder.identity(kwargs.pop("family", None))
    if identity.family is None:
        raise ValueError(
            f"Wrong family: {folder.arrays.source} cannot be built. {identity.reasons[0]}"
        )
    identity.warn_if_from_name("family", folder)
    surgery = take(kwargs, ("keep_tokens", "compound_tokens"))
    options = {"family": identity.family, **take(kwargs, ("strict", "nsp_head"))}
    is_task = cls.backbone_cls is not None
    backbone_cls = cls.backbone_cls or cls
    own = arguments_of(cls) if is_task else []
    if load_weights and options.get("strict", True):
        check_sizes(folder.config, folder.arrays, str(folder.config_file))
        _check_heads(cls, own, folder, identity)

    backbone = kwargs.pop("backbone", None)
    if backbone is None:
        names = [name for name in arguments_of(backbone_cls) if name not in own]
        overrides = take(kwargs, names if is_task else (*names, *KERAS_ARGUMENTS))
        arguments = dict(folder.backbone_arguments(identity.family))
        if surgery:
            arguments["vocabulary_size"] = edited_size(arguments["vocabulary_size"], **surgery)
        if "masking" not in overrides:
            arguments["masking"] = _masking(cls, folder, identity)
        arguments["pooler"] = _pooler(cls, identity, options, kwargs)
        backbone = backbone_cls(**{**arguments, **overrides})
    if is_task:
        if "head_epsilon" in own:
            # Hugging Face has one epsilon for all norms, the original another for the head
            is_original = folder.layout == "original"
            epsilon = folder.head_epsilon if is_original else backbone.layer_norm_epsilon
            kwargs.setdefault("head_epsilon", epsilon)
        if "preprocessor" not in kwargs:
            kwargs["preprocessor"] = _preprocessor(cls, folder, backbone, surgery, kwargs)
    _check_arguments(cls, kwargs, {*own, *KERAS_ARGUMENTS} if is_task else set())
    model = cls(backbone=backbone, **kwargs) if is_task else backbone
    if load_weights:
        load_checkpoint(model, folder, **options, **surgery)
    return model


def _check_heads(cls, own, folder, identity):
    """Raises `ValueError` if the class needs a pooler or masked-LM head that the files lack."""
    _check_pooler(cls, folder, identity.pooler)
    has_head = any(name.startswith("cls/predictions/") for name in folder.arrays.shapes)
    if "head_epsilon" in own and not has_head and identity.family != "roformer_v2":
        raise ValueError(
            f"{cls.__name__} needs a masked-LM head, and {folder.arrays.source} has none. Classes "
            f"that can be built from it: RoFormerBackbone, {_CLASSIFIERS}. To start with a random "
            "head, pass strict=False."
        )


def _check_pooler(cls, folder, pooler):
    if cls.needs_pooler and pooler is None:
        advice = " To start with a random pooler, pass strict=False."
        raise ValueError(
            f"{cls.__name__} needs a pooler, and the model in {folder.path} has none. Classes that "
            "can be built from it: RoFormerBackbone, RoFormerMaskedLM, RoFormerCausalLM, "
            f"{_CLASSIFIERS}.{advice if folder.layout != 'preset' else ''}"
        )


def _masking(cls, folder, identity):
    if cls.needs_pooler:
        return "unilm"
    if cls.saved_masking is None and cls.backbone_cls:
        return "bidirectional"
    if cls.saved_masking == "causal" and identity.masking != "unilm":
        return "causal"
    identity.warn_if_from_name("masking", folder)
    return identity.masking


def _pooler(cls, identity, options, kwargs):
    if not cls.backbone_cls:
        return identity.pooler
    if cls.needs_pooler:
        return "linear"
    if kwargs.get("pooling") == "pooler":
        return "tanh" if options.get("nsp_head") else identity.pooler or "tanh"
    return None


def _preprocessor(cls, folder, backbone, surgery, kwargs):
    options = take(kwargs, TOKENIZER_ARGUMENTS)
    if "vocabulary" in options:
        vocabulary, source = Vocabulary(options["vocabulary"]), "`vocabulary`"
    else:
        vocabulary, source = folder.vocabulary, str(folder.vocabulary_file)
        if surgery:
            vocabulary = _edited(vocabulary, **surgery)
            options["vocabulary"] = vocabulary.tokens
    check_vocabulary_size(vocabulary, backbone.vocabulary_size, source)
    own = arguments_of(cls)
    arguments = take(kwargs, [n for n in arguments_of(cls.preprocessor_cls) if n not in own])
    limit_to_positions(arguments, backbone.get_config())
    tokenizer = cls.preprocessor_cls.tokenizer_cls(**folder.tokenizer_arguments(**options))
    return cls.preprocessor_cls(tokenizer, **arguments)


def limit_to_positions(arguments, backbone):
    """Makes a sequence no longer than there are learned positions."""
    if backbone["position_scheme"] == "learned":
        arguments.setdefault("sequence_length", min(512, backbone["max_sequence_length"]))


def _edited(vocabulary, keep_tokens=None, compound_tokens=None):
    if compound_tokens is not None:
        raise ValueError(
            "`compound_tokens` adds tokens that have no names yet: pass `vocabulary=[…]`, the list "
            "of all tokens in their new order, or `preprocessor=None`."
        )
    if keep_tokens is None:
        return vocabulary
    tokens = [vocabulary.token(i) for i in keep_tokens]
    if None in tokens:
        wrong = [i for i in keep_tokens if vocabulary.token(i) is None]
        raise ValueError(
            f"`keep_tokens` must hold ids of the vocabulary, which has {vocabulary.size}. "
            f"Received: {wrong[:10]}"
        )
    return Vocabulary(tokens)


# === Folders written by `save_to_preset` ===


def arguments_for_preset(cls, folder, load_weights, kwargs):
    """Builds the backbone or preprocessor that arguments are for; KerasHub takes only the task's."""
    config = folder.backbone_arguments()
    policy = ((config.get("dtype") or {}).get("config") or {}).get("name") or ""
    if policy.startswith("mixed_"):
        # KerasHub 0.32 takes the name of the saved policy for a dtype, which it is not.
        kwargs = {"dtype": policy, **kwargs}
    kwargs = {k: value for k, value in kwargs.items() if value is not None or k == "preprocessor"}
    if cls.backbone_cls is None:
        _check_arguments(cls, kwargs, {*arguments_of(cls), *KERAS_ARGUMENTS})
        return kwargs
    if "backbone" not in kwargs:
        _check_pooler(cls, folder, config.get("pooler"))
    own = arguments_of(cls)
    of_backbone, of_preprocessor = (
        [name for name in arguments_of(part) if name not in own]
        for part in (cls.backbone_cls, cls.preprocessor_cls)
    )
    _check_arguments(cls, kwargs, {*own, *of_backbone, *of_preprocessor, *KERAS_ARGUMENTS})
    overrides = {name: kwargs[name] for name in of_backbone if name in kwargs}
    if cls.saved_masking and config.get("masking") == "bidirectional":
        overrides.setdefault("masking", cls.saved_masking)
    if set(overrides) - {"dtype"} and "backbone" not in kwargs:
        kept = {"dtype"} if _saved_task(folder, cls) else set()
        kwargs = {k: value for k, value in kwargs.items() if k not in overrides or k in kept}
        kwargs["backbone"] = cls.backbone_cls.from_preset(
            folder.path, load_weights=load_weights, **overrides
        )
    if "head_epsilon" in own and (saved := saved_head(folder, cls)):
        kwargs.setdefault("head_epsilon", saved["head_epsilon"])
    options = take(kwargs, of_preprocessor)
    if "preprocessor" not in kwargs:
        if options:
            kwargs["preprocessor"] = cls.preprocessor_cls.from_preset(folder.path, **options)
        elif not _saved_task(folder, cls):
            check_tokenizer(cls.preprocessor_cls, folder)
    return kwargs


def with_new_head(cls, folder, load_weights, kwargs):
    """Returns a task with a new head if the arguments ask for another head than the saved one.

    If they do not, returns `None`. KerasHub makes a new head for `num_classes` alone.
    """
    saved = _saved_task(folder, cls)
    if saved is None or all(
        kwargs.get(name, saved.get(name)) == saved.get(name) for name in cls.head_arguments
    ):
        return None
    own = [name for name in arguments_of(cls) if name not in ("backbone", "preprocessor")]
    arguments = {name: saved[name] for name in own if name in saved} | kwargs
    for name, part in (("backbone", cls.backbone_cls), ("preprocessor", cls.preprocessor_cls)):
        if name not in kwargs:
            weights = {"load_weights": load_weights} if name == "backbone" else {}
            of_part = {n: kwargs[n] for n in arguments_of(part) if n in kwargs and n not in own}
            arguments = {n: value for n, value in arguments.items() if n not in of_part}
            arguments[name] = part.from_preset(folder.path, **weights, **of_part)
    return cls(**arguments)


def load_head(model, folder):
    """Loads the head of a language model that was saved as one of another class.

    KerasHub loads the head of the same class only.

    Raises:
        FileNotFoundError: If KerasHub left a head random, as its file is missing.
    """
    cls, file = type(model), folder.path / "task.weights.h5"
    saved = saved_head(folder, cls)
    if saved is None or not model.has_task_weights():
        return
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is missing. It holds the weights of the head of the model that was saved "
            "there. Copy it from where the model was saved, or load the backbone alone: "
            f"{type(model.backbone).__name__}.from_preset."
        )
    if _saved_task(folder, cls) is None:
        model.quantize_new_layers(saved.get("quantization"))
        model.load_task_weights(str(file))


def saved_head(folder, cls):
    """Returns the config of the task in a folder whose head this class has too, or `None`.

    All language models have the same head.
    """
    saved = _saved_task(folder, keras.Model) or {}
    is_language_model = "head_epsilon" in arguments_of(cls) and "head_epsilon" in saved
    return saved if is_language_model else _saved_task(folder, cls)


def _saved_task(folder, cls):
    """Returns the config of the whole task of this class that the folder holds, or `None`."""
    task = folder.part("task.json")
    if task is None:
        return None
    saved = keras.saving.get_registered_object(task["registered_name"])
    return task["config"] if isinstance(saved, type) and issubclass(saved, cls) else None


# === Arguments ===


def arguments_of(cls):
    """Returns the names of the arguments that a class declares, without `**kwargs`."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


TOKENIZER_ARGUMENTS = [  # the others are those of the preprocessor and the model
    name for name in arguments_of(RoFormerTokenizer) if name not in ("sequence_length", "dtype")
]


def _check_arguments(cls, kwargs, known):
    """Raises `TypeError` if there are arguments that are not known."""
    if unknown := set(kwargs) - known:
        raise TypeError(
            f"`{cls.__name__}.from_preset` has no such arguments. Expected those of the class, its "
            "backbone and its preprocessor and, for checkpoints, of the tokenizer and of "
            f"`load_checkpoint`. Received: {', '.join(sorted(unknown))}"
        )


def take(kwargs, names):
    """Removes the arguments of these names from `kwargs`, and returns them."""
    return {name: kwargs.pop(name) for name in names if name in kwargs}
