"""Translates `bert_config.json` to the arguments of `RoFormerBackbone` and back."""

import re

from roformer_tf.checkpoint.mapping import FAMILIES, Sizes
from roformer_tf.checkpoint.original_files import CONFIG_FILE
from roformer_tf.checks import is_number

MASKINGS = ("bidirectional", "causal", "unilm")

# our name -> the original's spellings. The first one found counts, as in `build_transformer_model`;
# files are written with the last.
_REQUIRED = {
    "vocabulary_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "hidden_dim": ("hidden_size",),
    "intermediate_dim": ("intermediate_size",),
    "activation": ("hidden_act",),
}
_OPTIONAL = {
    "embedding_dim": ("embedding_size",),
    "num_segments": ("segment_vocab_size", "type_vocab_size"),
    "dropout": ("dropout_rate", "hidden_dropout_prob"),
    "attention_dropout": ("attention_dropout_rate", "attention_probs_dropout_prob"),
    "layer_norm_epsilon": ("layer_norm_eps",),
}
_SPELLINGS = {**_REQUIRED, **_OPTIONAL}
# Larger values are mistakes: the largest models have some 10^2 layers of 10^4 features.
_LARGEST = {
    "vocabulary_size": 2**31 - 1,
    "num_layers": 10_000,
    "num_heads": 2**16,
    "hidden_dim": 2**20,
    "intermediate_dim": 2**24,
    "embedding_dim": 2**20,
    "num_segments": 2**16,
}
_NUMBERS = {  # the original's spelling -> the lowest and the highest value
    "layer_norm_eps": (1e-30, 0.1),
    "head_epsilon": (1e-30, 0.1),
    "dropout_rate": (0, 0.999),
    "hidden_dropout_prob": (0, 0.999),
    "attention_dropout_rate": (0, 0.999),
    "attention_probs_dropout_prob": (0, 0.999),
    "initializer_range": (0, 100),
}
_FLAGS = ("rotary_value", "use_relative_position", "is_decoder", "tie_word_embeddings")
_POSITIONS = ("max_position", "max_position_embeddings")

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_erf": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "silu": "silu",
    "swish": "silu",
    "linear": "linear",
}
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_EPSILONS = {"layer_norm": 1e-12, "rms_norm": 1e-7}
HEAD_EPSILON = 1e-12  # of the norm in the masked-LM head, in every version of bert4keras
_DEFAULTS = {"num_segments": 2, "dropout": 0.0, "attention_dropout": 0.0}


def backbone_arguments(config, family, source=CONFIG_FILE):
    """Returns the arguments of `RoFormerBackbone` that a `bert_config.json` describes.

    Args:
        config: dict. The settings, in any of the original's spellings.
        family: str. A key of `mapping.FAMILIES`.
        source: str. Name of the settings in error messages.

    Returns:
        dict of keyword arguments. Dropout rates default to 0, `layer_norm_epsilon` to 1e-12, or
        1e-7 in v2. Hugging Face's `rotary_value` becomes `position_options`.

    Raises:
        ValueError: If a setting is missing, out of range, or not supported by `RoFormerBackbone`.

    Example:

    >>> from roformer_tf.checkpoint.original_config import backbone_arguments
    >>> config = {"vocab_size": 200, "hidden_size": 32, "num_attention_heads": 4,
    ...           "num_hidden_layers": 2, "intermediate_size": 64, "hidden_act": "relu",
    ...           "dropout_rate": 0.1}
    >>> arguments = backbone_arguments(config, "roformer_v2")
    >>> arguments["dropout"], arguments["norm"], arguments["layer_norm_epsilon"]
    (0.1, 'rms_norm', 1e-07)
    """
    traits = FAMILIES[family]
    settings = _settings(config, source)
    _check_supported(config, settings, source)
    activation = settings["activation"]
    known = _is_known(activation)
    _check(known, "hidden_act", source, f"one of {sorted(_ACTIVATIONS)}", repr(activation))
    arguments = {
        **settings,
        "activation": _ACTIVATIONS[activation.lower()],
        "norm": traits.norm,
        "layer_norm_epsilon": settings["layer_norm_epsilon"] or _EPSILONS[traits.norm],
        "position_scheme": traits.position_scheme,
    }
    if traits.positions:
        arguments["max_sequence_length"] = _num_positions(config)
    if config.get("rotary_value"):
        # Hugging Face rotates values, and does not rotate the attention's output back
        arguments["position_options"] = {"on_values": "absolute"}
    return arguments


def masking_of(config):
    """Returns the masking in a dict of settings, or `None` if there is none.

    The original's settings do not contain it. `save_checkpoint` adds the entry `masking`, which
    bert4keras ignores; Hugging Face writes `is_decoder`.
    """
    masking = config.get("masking")
    if masking is None:
        return "causal" if config.get("is_decoder") else None
    where, rule = "the checkpoint's settings", f"one of {MASKINGS}"
    _check(masking in MASKINGS, "masking", where, rule, f"masking={masking!r}")
    return masking


def sizes_of_config(config, source=CONFIG_FILE):
    """Returns the `Sizes` in a `bert_config.json`; raises the errors of `backbone_arguments`."""
    settings = _settings(config, source)
    sizes = {name: settings[name] for name in Sizes.__dataclass_fields__ if name in settings}
    sizes["embedding_dim"] = sizes["embedding_dim"] or sizes["hidden_dim"]
    return Sizes(**sizes, num_positions=_num_positions(config))


def _is_known(activation):
    return isinstance(activation, str) and activation.lower() in _ACTIVATIONS


def _num_positions(config):
    return next((config[name] for name in _POSITIONS if config.get(name) is not None), 512)


def original_config(backbone, head_epsilon=None):
    """Returns the `bert_config.json` of a backbone, in the spelling of the released files.

    Args:
        backbone: A model with the attributes of `RoFormerBackbone`.
        head_epsilon: float. Epsilon of the norm in the masked-LM head, or `None` without a head.

    Returns:
        dict. `max_position_embeddings` is required by the format but used by learned positions
        only. The original ignores our entries `masking`, `pooler`, `layer_norm_eps` and
        `head_epsilon`, which are there if they are not its own.

    Raises:
        ValueError: If the backbone has a setting that the original format cannot hold.
    """
    defaults = {"max_wavelength": 10000, "position_options": None, "rope_scaling": None}
    for name, default in {**defaults, "attention": "softmax"}.items():
        value = getattr(backbone, name)
        if value != default and value != {}:
            raise ValueError(
                f"The original format cannot hold `{name}`, and the original would compute "
                f"different numbers from the file. Received: {name}={value!r}. Use "
                "`save_to_preset`, which keeps every setting."
            )
    if not _is_known(backbone.activation):
        raise ValueError(
            "The original format cannot hold `activation`, unless it is one of "
            f"{sorted(_ACTIVATIONS)}. Received: activation={backbone.activation!r}. Use "
            "`save_to_preset`, which keeps every setting."
        )
    config = spell_settings(
        {name: getattr(backbone, name) for name in (*_SPELLINGS, "norm")},
        masking=backbone.masking,
        max_position_embeddings=backbone.max_sequence_length,
        pooler=backbone.pooler_activation,
        head_epsilon=head_epsilon,
    )
    if backbone.position_scheme_name == "sinusoidal_relative":
        # as in NEZHA's own file; its variables are those of RoFormer
        config["use_relative_position"] = True
    return dict(sorted(config.items()))


def spell_settings(arguments, **others):
    """Returns arguments of `RoFormerBackbone` in the original's spelling, without defaults."""
    settings = {names[-1]: arguments[name] for name, names in _SPELLINGS.items()}
    if arguments["embedding_dim"] == arguments["hidden_dim"]:
        settings["embedding_size"] = None
    if arguments["layer_norm_epsilon"] == _EPSILONS[arguments["norm"]]:
        settings["layer_norm_eps"] = None
    if others.get("head_epsilon") == HEAD_EPSILON:
        others["head_epsilon"] = None
    settings = {"initializer_range": 0.02, **settings, **others}
    return {name: value for name, value in settings.items() if value is not None}


def _settings(config, source):
    """Returns the settings by our names, after a check of every entry that is read."""
    missing = [names[0] for names in _REQUIRED.values() if config.get(names[0]) is None]
    if missing:
        raise ValueError(
            f"{source} lacks {', '.join(f'`{name}`' for name in missing)}. "
            f"It has: {', '.join(config) or 'nothing'}."
        )
    settings = {}
    for name, spellings in _SPELLINGS.items():
        spelling = next((s for s in spellings if config.get(s) is not None), spellings[-1])
        value = config.get(spelling)
        settings[name] = _DEFAULTS.get(name) if value is None else value
        if name in _LARGEST and value is not None:
            rule = "0 or a positive integer" if name == "num_segments" else "a positive integer"
            lowest = 0 if name == "num_segments" else 1
            holds = isinstance(value, int) and is_number(value) and value >= lowest
            _check(holds, spelling, source, rule, repr(value))
            _check(value <= _LARGEST[name], spelling, source, f"at most {_LARGEST[name]:,}", value)
    for name, (low, high) in _NUMBERS.items():
        value = config.get(name, low)
        holds = value is None or (is_number(value) and low <= value <= high)
        _check(holds, name, source, f"a number from {low:g} to {high:g}", repr(value))
    for name in _FLAGS:
        value = config.get(name)
        _check(value in (None, False, True), name, source, "true or false", value)
    for name in _POSITIONS:
        value = config.get(name)
        holds = isinstance(value, int) and is_number(value) and 0 < value < 2**31
        _check(value is None or holds, name, source, "a positive integer", repr(value))
    pooler = config.get("pooler")
    rule = "'tanh', 'linear' or absent"
    _check(pooler in (None, "tanh", "linear"), "pooler", source, rule, pooler)
    return settings


def check_sizes(config, arrays, source=CONFIG_FILE):
    """Returns the `Sizes` in settings. Raises an error if they are not those of the weights.

    Reads shapes only, so that no model of a wrong size is built.
    """
    shapes, sizes = arrays.shapes, sizes_of_config(config, source)
    words = shapes.get("bert/embeddings/word_embeddings", ())
    segments = shapes.get("bert/embeddings/token_type_embeddings", ())
    layers = {match[1] for match in map(_LAYER.match, shapes) if match}
    found = {"num_layers": len(layers) or None}
    if len(words) == 2:
        found |= {"vocabulary_size": words[0], "embedding_dim": words[1]}
    if len(segments) == 2:
        found["num_segments"] = segments[0]
    kernel = shapes.get("bert/encoder/layer_0/intermediate/dense/kernel", ())
    if len(kernel) == 2:
        found |= {"hidden_dim": kernel[0], "intermediate_dim": kernel[1]}
    differences = [
        f"`{_SPELLINGS[name][-1]}` is {getattr(sizes, name)}, the weights have {size}"
        for name, size in found.items()
        if size is not None and size != getattr(sizes, name)
    ]
    if differences:
        raise ValueError(
            f"{source} does not fit {arrays.source}: {'; '.join(differences)}. One of the two "
            "belongs to another model. Copy both from the same release."
        )
    return sizes


def _check_supported(config, settings, source):
    hidden_dim, num_heads = settings["hidden_dim"], settings["num_heads"]
    head_dim, rest = divmod(hidden_dim, num_heads)
    rule = (
        "an even multiple of `num_attention_heads`, since RoPE rotates pairs of features of each "
        "head"
    )
    received = f"hidden_size={hidden_dim}, num_attention_heads={num_heads}"
    _check(rest == 0 and head_dim % 2 == 0, "hidden_size", source, rule, received)
    rule = f"hidden_size / num_attention_heads = {head_dim}, as in RoFormerBackbone"
    for name in ("attention_head_size", "attention_key_size"):
        value = config.get(name)
        _check(value in (None, 0, head_dim), name, source, rule, f"{name}={value}")
    value = config.get("residual_attention_scores")
    rule = "absent or false: RoFormerBackbone does not have them"
    _check(not value, "residual_attention_scores", source, rule, repr(value))


def _check(holds, name, source, rule, received):
    if not holds:
        raise ValueError(f"`{name}` in {source} must be {rule}. Received: {received}")
