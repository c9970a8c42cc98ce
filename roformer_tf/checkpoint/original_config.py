"""`bert_config.json`: from the original's settings to ours and back."""

import json

from roformer_tf.checkpoint.mapping import FAMILIES, Sizes
from roformer_tf.checkpoint.paths import CONFIG_FILE, existing_file

# our name -> the original's spellings, the first one found counts, as in `build_transformer_model`
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
_COUNTS = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
_RATES = ("dropout", "attention_dropout")

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
_EPSILONS = {"layer_norm": 1e-12, "rms_norm": 1e-7}


def read_config(path):
    """Reads a JSON file of settings.

    Args:
        path: path of the file, or of the folder that holds `bert_config.json`.

    Returns:
        dict.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if it is not a JSON object; names line and column.
    """
    folder, name = (path, CONFIG_FILE) if path.is_dir() else (path.parent, path.name)
    file = existing_file(folder, name, "it tells the sizes of the model. Copy it from the release.")
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Copy it again from the release or put it right by hand."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 text: {error.reason} at byte {error.start}."
        ) from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{file} must hold a JSON object `{{…}}`. Received: {type(config).__name__}"
        )
    return config


def backbone_arguments(config, family, source=CONFIG_FILE):
    """The arguments of `RoFormerBackbone` that a `bert_config.json` asks for.

    Args:
        config: dict, the settings in the original's spelling, either of the two where there are two.
        family: key of `mapping.FAMILIES`.
        source: what error messages call the settings.

    Returns:
        dict of keyword arguments. Dropout rates are 0 if not given; `layer_norm_epsilon` is 1e-12, or 1e-7 in v2, if
        the settings have no `layer_norm_eps`.

    Raises:
        ValueError: if a setting is missing, is no sensible number, or asks for something the model cannot express.

    Example:

    >>> from roformer_tf.checkpoint.original_config import backbone_arguments
    >>> config = {"vocab_size": 200, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
    ...           "intermediate_size": 64, "hidden_act": "relu", "dropout_rate": 0.1}
    >>> arguments = backbone_arguments(config, "roformer_v2")
    >>> arguments["dropout"], arguments["norm"], arguments["layer_norm_epsilon"], arguments["num_segments"]
    (0.1, 'rms_norm', 1e-07, 2)
    """
    norm = "layer_norm" if FAMILIES[family].biases else "rms_norm"
    settings = _settings(config, source)
    _refuse_what_cannot_be_expressed(config, settings, source)
    activation = settings["activation"]
    if not isinstance(activation, str) or activation.lower() not in _ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` in {source} must be one of {sorted(_ACTIVATIONS)}. Received: {activation!r}"
        )
    arguments = {
        **settings,
        "activation": _ACTIVATIONS[activation.lower()],
        "norm": norm,
        "layer_norm_epsilon": settings["layer_norm_epsilon"] or _EPSILONS[norm],
        "position_scheme": FAMILIES[family].position_scheme,
    }
    if FAMILIES[family].positions:
        arguments["max_sequence_length"] = sizes_of_config(config, source).num_positions
    return arguments


def sizes_of_config(config, source=CONFIG_FILE):
    """The `Sizes` that a `bert_config.json` states, whatever the family; raises `ValueError` like the above."""
    settings = _settings(config, source)
    return Sizes(
        vocabulary_size=settings["vocabulary_size"],
        num_layers=settings["num_layers"],
        num_heads=settings["num_heads"],
        hidden_dim=settings["hidden_dim"],
        intermediate_dim=settings["intermediate_dim"],
        embedding_dim=settings["embedding_dim"] or settings["hidden_dim"],
        num_segments=settings["num_segments"],
        num_positions=config.get("max_position", config.get("max_position_embeddings", 512)),
    )


def original_config(backbone):
    """The `bert_config.json` of a backbone, in the spelling of the released files.

    Args:
        backbone: `RoFormerBackbone`.

    Returns:
        dict. `max_position_embeddings` is the number of learned positions, and 512 where there are none: the format
        wants it, no RoFormer reads it.

    Raises:
        ValueError: if the backbone has a setting that the original format cannot hold.
    """
    if backbone.max_wavelength != 10000:
        raise ValueError(
            "The original format has no place for `max_wavelength`: the original always uses 10000, and would compute "
            f"other numbers from the file. Received: max_wavelength={backbone.max_wavelength}. "
            "Use `save_to_preset`, which keeps every setting."
        )
    for name in ("position_options", "rope_scaling", "attention"):
        if getattr(backbone, name) not in (None, {}, "softmax"):
            raise ValueError(
                f"The original format has no place for `{name}`: the original would compute other numbers from "
                f"the file. Received: {name}={getattr(backbone, name)!r}. "
                "Use `save_to_preset`, which keeps every setting."
            )
    config = {
        "attention_probs_dropout_prob": backbone.attention_dropout,
        "hidden_act": backbone.activation,
        "hidden_dropout_prob": backbone.dropout,
        "hidden_size": backbone.hidden_dim,
        "initializer_range": 0.02,
        "intermediate_size": backbone.intermediate_dim,
        "max_position_embeddings": backbone.max_sequence_length,
        "num_attention_heads": backbone.num_heads,
        "num_hidden_layers": backbone.num_layers,
        "type_vocab_size": backbone.num_segments,
        "vocab_size": backbone.vocabulary_size,
    }
    if backbone.embedding_dim not in (None, backbone.hidden_dim):
        config["embedding_size"] = backbone.embedding_dim
    if backbone.position_scheme_name == "sinusoidal_relative":
        # as NEZHA's own file says; its variables are those of RoFormer
        config["use_relative_position"] = True
    if backbone.layer_norm_epsilon != _EPSILONS[backbone.norm]:
        # not a setting of the original, which skips keys that it does not know
        config["layer_norm_eps"] = backbone.layer_norm_epsilon
    return dict(sorted(config.items()))


def _settings(config, source):
    missing = [names[0] for names in _REQUIRED.values() if config.get(names[0]) is None]
    if missing:
        raise ValueError(
            f"{source} lacks {', '.join(f'`{name}`' for name in missing)}. It has: {', '.join(config) or 'nothing'}."
        )
    settings = {ours: config[names[0]] for ours, names in _REQUIRED.items()}
    defaults = {"num_segments": 2, "dropout": 0.0, "attention_dropout": 0.0}
    for ours, names in _OPTIONAL.items():
        given = [config[name] for name in names if config.get(name) is not None]
        settings[ours] = given[0] if given else defaults.get(ours)
    for ours in _COUNTS:
        if not _is_integer(settings[ours]) or settings[ours] <= 0:
            raise ValueError(
                f"`{_REQUIRED[ours][0]}` in {source} must be a positive integer. Received: {settings[ours]!r}"
            )
    for ours in _RATES:
        if not isinstance(settings[ours], (int, float)) or not 0 <= settings[ours] < 1:
            raise ValueError(
                f"`{_OPTIONAL[ours][1]}` in {source} must be a rate from 0 to below 1. Received: {settings[ours]!r}"
            )
    if not _is_integer(settings["num_segments"]) or settings["num_segments"] < 0:
        raise ValueError(
            f"`type_vocab_size` in {source} must be 0 or a positive integer. Received: {settings['num_segments']!r}"
        )
    return settings


def _refuse_what_cannot_be_expressed(config, settings, source):
    hidden_dim, num_heads = settings["hidden_dim"], settings["num_heads"]
    if hidden_dim % num_heads or hidden_dim // num_heads % 2:
        raise ValueError(
            f"`hidden_size` in {source} must be an even multiple of `num_attention_heads`, since RoPE turns pairs of "
            f"features of each head. Received: hidden_size={hidden_dim}, num_attention_heads={num_heads}"
        )
    head_dim = hidden_dim // num_heads
    for name in ("attention_head_size", "attention_key_size"):
        if config.get(name) not in (None, 0, head_dim):
            raise ValueError(
                f"`{name}` in {source} must be hidden_size / num_attention_heads = {head_dim}: RoFormerBackbone has "
                f"heads of one size that together make the hidden size. Received: {name}={config[name]}"
            )
    for name in ("residual_attention_scores", "rotary_value"):
        if config.get(name):
            raise ValueError(
                f"`{name}` in {source} must be absent or false: RoFormerBackbone does not have it. "
                f"Received: {name}={config[name]!r}"
            )


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)
