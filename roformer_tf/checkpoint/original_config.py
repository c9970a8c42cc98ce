"""`bert_config.json`: from the original's settings to the arguments of `RoFormerBackbone` and back."""

import json

from roformer_tf.checkpoint.mapping import FAMILIES, Sizes
from roformer_tf.checkpoint.original_files import CONFIG_FILE, existing_file

MASKINGS = ("bidirectional", "causal", "unilm")

# our name -> the original's spellings; the first one found counts, as in `build_transformer_model`
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
        path: Path. The file, or the folder that holds `bert_config.json`.

    Returns:
        dict.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If it is not a JSON object. The message names line and column.
    """
    folder, name = (path, CONFIG_FILE) if path.is_dir() else (path.parent, path.name)
    file = existing_file(folder, name, "it holds the sizes of the model. Copy it from the release.")
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Copy it again from the release or correct it by hand."
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
    """Returns the arguments of `RoFormerBackbone` that a `bert_config.json` asks for.

    Args:
        config: dict. The settings in the original's spelling; where there are two spellings, either.
        family: str. A key of `mapping.FAMILIES`.
        source: str. What error messages call the settings.

    Returns:
        dict of keyword arguments. Dropout rates are 0 if not given; `layer_norm_epsilon` is 1e-12, or
        1e-7 in v2, if there is no `layer_norm_eps`. Hugging Face's `rotary_value` becomes
        `position_options`.

    Raises:
        ValueError: If a setting is missing or out of range, or asks for something that
            `RoFormerBackbone` does not have.

    Example:

    >>> from roformer_tf.checkpoint.original_config import backbone_arguments
    >>> config = {"vocab_size": 200, "hidden_size": 32, "num_attention_heads": 4, "dropout_rate": 0.1,
    ...           "num_hidden_layers": 2, "intermediate_size": 64, "hidden_act": "relu"}
    >>> arguments = backbone_arguments(config, "roformer_v2")
    >>> arguments["dropout"], arguments["norm"], arguments["layer_norm_epsilon"]
    (0.1, 'rms_norm', 1e-07)
    """
    norm = FAMILIES[family].norm
    settings = _settings(config, source)
    _check_expressible(config, settings, source)
    activation = settings["activation"]
    if not isinstance(activation, str) or activation.lower() not in _ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` in {source} must be one of {sorted(_ACTIVATIONS)}. "
            f"Received: {activation!r}"
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
    if config.get("rotary_value"):
        # Hugging Face rotates the values and does not rotate their average back
        arguments["position_options"] = {"on_values": "absolute"}
    return arguments


def masking_of(config, source=CONFIG_FILE):
    """Returns the masking that a file of settings names, or `None`.

    The original's settings do not hold it. `save_checkpoint` adds the entry `masking`, which bert4keras
    ignores; Hugging Face writes `is_decoder`.

    Raises:
        ValueError: If the entry `masking` is not a masking.
    """
    masking = config.get("masking")
    if masking is None:
        return "causal" if config.get("is_decoder") else None
    if masking not in MASKINGS:
        raise ValueError(
            f"`masking` in {source} must be one of {MASKINGS}. Received: masking={masking!r}"
        )
    return masking


def sizes_of_config(config, source=CONFIG_FILE):
    """Returns the `Sizes` in a `bert_config.json` of any family, or raises like `backbone_arguments`."""
    settings = _settings(config, source)
    sizes = {name: settings[name] for name in Sizes.__dataclass_fields__ if name in settings}
    sizes["embedding_dim"] = sizes["embedding_dim"] or sizes["hidden_dim"]
    positions = config.get("max_position", config.get("max_position_embeddings", 512))
    return Sizes(**sizes, num_positions=positions)


def original_config(backbone):
    """Returns the `bert_config.json` of a backbone, in the spelling of the released files.

    Args:
        backbone: A model with the attributes of `RoFormerBackbone`.

    Returns:
        dict. `max_position_embeddings` is the number of learned positions, or 512 where there are
        none: the format requires it, but no RoFormer reads it. `masking` and `pooler` are entries of
        our own, which the original ignores.

    Raises:
        ValueError: If the backbone has a setting that the original format cannot hold.
    """
    defaults = {"max_wavelength": 10000, "position_options": None, "rope_scaling": None}
    for name, default in {**defaults, "attention": "softmax"}.items():
        value = getattr(backbone, name)
        if value != default and value != {}:
            raise ValueError(
                f"The original format cannot hold `{name}`, and the original would compute different "
                f"numbers from the file. Received: {name}={value!r}. Use `save_to_preset`, which keeps "
                "every setting."
            )
    config = {
        "attention_probs_dropout_prob": backbone.attention_dropout,
        "hidden_act": backbone.activation,
        "hidden_dropout_prob": backbone.dropout,
        "hidden_size": backbone.hidden_dim,
        "initializer_range": 0.02,
        "intermediate_size": backbone.intermediate_dim,
        "masking": backbone.masking,
        "max_position_embeddings": backbone.max_sequence_length,
        "num_attention_heads": backbone.num_heads,
        "num_hidden_layers": backbone.num_layers,
        "type_vocab_size": backbone.num_segments,
        "vocab_size": backbone.vocabulary_size,
    }
    if backbone.pooler_activation is not None:
        config["pooler"] = backbone.pooler_activation
    if backbone.embedding_dim not in (None, backbone.hidden_dim):
        config["embedding_size"] = backbone.embedding_dim
    if backbone.position_scheme_name == "sinusoidal_relative":
        # as in NEZHA's own file; its variables are those of RoFormer
        config["use_relative_position"] = True
    if backbone.layer_norm_epsilon != _EPSILONS[backbone.norm]:
        # not a setting of the original, which ignores keys that it does not know
        config["layer_norm_eps"] = backbone.layer_norm_epsilon
    return dict(sorted(config.items()))


def _settings(config, source):
    missing = [names[0] for names in _REQUIRED.values() if config.get(names[0]) is None]
    if missing:
        raise ValueError(
            f"{source} lacks {', '.join(f'`{name}`' for name in missing)}. "
            f"It has: {', '.join(config) or 'nothing'}."
        )
    settings = {ours: config[names[0]] for ours, names in _REQUIRED.items()}
    defaults = {"num_segments": 2, "dropout": 0.0, "attention_dropout": 0.0}
    for ours, names in _OPTIONAL.items():
        given = [config[name] for name in names if config.get(name) is not None]
        settings[ours] = given[0] if given else defaults.get(ours)
    for ours in _COUNTS:
        if not _is_integer(settings[ours]) or settings[ours] <= 0:
            raise ValueError(
                f"`{_REQUIRED[ours][0]}` in {source} must be a positive integer. "
                f"Received: {settings[ours]!r}"
            )
    for ours in _RATES:
        if not isinstance(settings[ours], (int, float)) or not 0 <= settings[ours] < 1:
            raise ValueError(
                f"`{_OPTIONAL[ours][1]}` in {source} must be a number in [0, 1). "
                f"Received: {settings[ours]!r}"
            )
    if not _is_integer(settings["num_segments"]) or settings["num_segments"] < 0:
        raise ValueError(
            f"`type_vocab_size` in {source} must be 0 or a positive integer. "
            f"Received: {settings['num_segments']!r}"
        )
    return settings


def _check_expressible(config, settings, source):
    hidden_dim, num_heads = settings["hidden_dim"], settings["num_heads"]
    if hidden_dim % num_heads or hidden_dim // num_heads % 2:
        raise ValueError(
            f"`hidden_size` in {source} must be an even multiple of `num_attention_heads`, since RoPE "
            "rotates pairs of features of each head. "
            f"Received: hidden_size={hidden_dim}, num_attention_heads={num_heads}"
        )
    head_dim = hidden_dim // num_heads
    for name in ("attention_head_size", "attention_key_size"):
        if config.get(name) not in (None, 0, head_dim):
            raise ValueError(
                f"`{name}` in {source} must be hidden_size / num_attention_heads = {head_dim}, as in "
                f"RoFormerBackbone. Received: {name}={config[name]}"
            )
    if config.get("residual_attention_scores"):
        raise ValueError(
            f"`residual_attention_scores` in {source} must be absent or false: RoFormerBackbone does "
            f"not have them. Received: {config['residual_attention_scores']!r}"
        )


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)
