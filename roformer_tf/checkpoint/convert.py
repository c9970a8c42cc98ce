"""Between the original layout and Hugging Face's, file to file, without building a model."""

import shutil
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import numpy as np

from roformer_tf import rotary
from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.folder import is_optimizer_slot, open_folder
from roformer_tf.checkpoint.hugging_face import HF_CONFIG_FILE, HF_WEIGHTS_FILE
from roformer_tf.checkpoint.original_config import masking_of, sizes_of_config
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE, write_checkpoint
from roformer_tf.checks import check_one_of
from roformer_tf.files import replace_files

LAYOUTS = ("original", "huggingface")

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
_GROUPS_OF_HF = ("embeddings", "segments", "encoder", "pooler", "mlm")


@dataclass(frozen=True)
class ConvertReport:
    """What `convert` did.

    Attributes:
        folder: Path. The folder that was written.
        layout: str. `"original"` or `"huggingface"`.
        converted: tuple of str. Original names of the variables that were written.
        dropped: tuple of str. Variables that the other layout cannot hold (next-sentence head,
            optimizer slots).

    Example:

    >>> from roformer_tf.checkpoint import ConvertReport
    >>> ConvertReport("folder", "huggingface", converted=("a",), dropped=()).layout
    'huggingface'
    """

    folder: Path
    layout: str
    converted: tuple
    dropped: tuple


def convert(source, target, to=None, family=None):
    """Converts a RoFormer v1 checkpoint between the original layout and Hugging Face's.

    To Hugging Face: writes `config.json`, `model.safetensors` and `vocab.txt` as `RoFormerForMaskedLM`
    reads them, or `RoFormerForCausalLM` if the settings have `masking="causal"`, or `RoFormerModel` if
    there is no masked-LM head. To the original: writes `bert_config.json`, `bert_model.ckpt.*`,
    `checkpoint` and `vocab.txt`. Numbers are moved and never changed, so converting there and back
    gives the same bytes.

    Args:
        source: str or path. A folder in either layout, or a checkpoint in it.
        target: str or path. The folder to write; other files in it stay.
        to: str. `"original"` or `"huggingface"`. Defaults to the one that `source` is not.
        family: str. `"roformer"` overrides what the files tell, see `inspect_checkpoint`.

    Returns:
        `ConvertReport`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, a variable is missing, unknown or wrongly shaped, the model
            is not RoFormer v1 (Hugging Face has no other), or the target layout cannot hold it.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import convert, save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> original = save_checkpoint(backbone, tempfile.mkdtemp())
    >>> report = convert(original, tempfile.mkdtemp())
    >>> report.layout, len(report.converted), report.dropped
    ('huggingface', 36, ())

    Reference: `RoFormerForMaskedLM` of Hugging Face's transformers.
    """
    folder = open_folder(source)
    if folder.layout not in LAYOUTS:
        raise ValueError(
            f"{folder.path} was written by `save_to_preset`. Load it with `from_preset` and write it with "
            "`save_checkpoint`, then convert that folder."
        )
    check_one_of("to", to, LAYOUTS, optional=True)
    to = to or LAYOUTS[1 - LAYOUTS.index(folder.layout)]
    config, arrays = folder.config, folder.arrays
    found = folder.identity(family)
    if found.family != "roformer":
        title = getattr(mapping.FAMILIES.get(found.family), "title", "a model of unknown family")
        raise ValueError(
            f"Hugging Face's layout has RoFormer v1 only, but {arrays.source} holds {title}. "
            f"Known from: {found.reasons[0]}. If that is wrong, pass family='roformer'."
        )
    arguments = folder.backbone_arguments("roformer")
    if to == "original" and arguments.get("position_options"):
        raise ValueError(
            "The original has no rotated values, and would compute different numbers from the file. "
            f"Received: rotary_value=True in {folder.path / HF_CONFIG_FILE}"
        )
    variables, dropped = _select(arrays, sizes_of_config(config))
    with replace_files(target) as temporary:
        if to == "original":
            write_checkpoint(temporary, ((name, arrays.read(name)) for name in variables))
            settings = _common_settings(config, arguments)
            if arguments["embedding_dim"] not in (None, arguments["hidden_dim"]):
                settings["embedding_size"] = arguments["embedding_dim"]
            if arguments["layer_norm_epsilon"] != 1e-12:
                settings["layer_norm_eps"] = arguments["layer_norm_epsilon"]
            _write_json(temporary / CONFIG_FILE, settings)
        else:
            _write_hugging_face(temporary, arrays, variables, config, arguments)
        if (folder.path / VOCABULARY_FILE).is_file():
            shutil.copyfile(folder.path / VOCABULARY_FILE, temporary / VOCABULARY_FILE)
    return ConvertReport(Path(target), to, tuple(variables), dropped)


def _select(arrays, sizes):
    """Returns the variables to convert, checked against the table, and the names that are dropped."""
    everything = {v.name: v for v in mapping.variables("roformer", sizes)}
    stored = [name for name in arrays.shapes if not is_optimizer_slot(name)]
    present = {everything[name].group for name in stored if name in everything}
    needed = [
        v for v in everything.values() if v.group in present or v.group in ("embeddings", "encoder")
    ]
    problems = [f"missing: {v.name} {v.shape}" for v in needed if v.name not in arrays.shapes]
    problems += [f"unknown: {name}" for name in stored if name not in everything]
    problems += [
        f"wrong shape: {v.name} {arrays.shapes[v.name]}, the settings require {v.shape}"
        for v in needed
        if v.name in arrays.shapes and arrays.shapes[v.name] != v.shape
    ]
    if problems:
        raise ValueError(
            f"{arrays.source} is not a complete RoFormer v1 checkpoint with these settings:\n  "
            + "\n  ".join(problems)
        )
    variables = {v.name: v for v in needed if v.group in _GROUPS_OF_HF}
    return variables, tuple(name for name in arrays.shapes if name not in variables)


def _write_hugging_face(folder, arrays, variables, config, arguments):
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "Hugging Face's layout needs the package safetensors: pip install safetensors"
        ) from error
    architecture = "RoFormerModel"
    if any(variable.group == "mlm" for variable in variables.values()):
        is_causal = masking_of(config) == "causal"
        architecture = "RoFormerForCausalLM" if is_causal else "RoFormerForMaskedLM"
    # RoFormerModel by itself names its tensors without the prefix
    prefix = "roformer." if architecture == "RoFormerModel" else ""
    tensors = {}
    for name, variable in variables.items():
        array = arrays.read(name)
        array = np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
        tensors[variable.hugging_face.removeprefix(prefix)] = array
    # the buffer of sines, then cosines, of position · 10000^(-2i / head_dim)
    theta = rotary.frequencies(arguments["hidden_dim"] // arguments["num_heads"])
    angles = np.arange(sizes_of_config(config).num_positions)[:, None] * theta
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
    tensors["roformer.encoder.embed_positions.weight".removeprefix(prefix)] = table
    save_file(tensors, folder / HF_WEIGHTS_FILE, metadata={"format": "pt"})
    settings = _common_settings(config, arguments)
    settings |= {
        "architectures": [architecture],
        "embedding_size": arguments["embedding_dim"] or arguments["hidden_dim"],
        "hidden_act": _ACTIVATIONS.get(settings["hidden_act"], settings["hidden_act"]),
        "is_decoder": masking_of(config) == "causal",
        "layer_norm_eps": arguments["layer_norm_epsilon"],
        "model_type": "roformer",
        "pad_token_id": 0,
        "rotary_value": bool(config.get("rotary_value")),
        "tie_word_embeddings": True,
    }
    _write_json(folder / HF_CONFIG_FILE, settings)


def _common_settings(config, arguments):
    ours = {name: config[name] for name in ("masking", "pooler") if config.get(name) is not None}
    if masking_of(config) is not None:
        ours["masking"] = masking_of(config)
    return {
        "attention_probs_dropout_prob": arguments["attention_dropout"],
        "hidden_act": arguments["activation"],
        "hidden_dropout_prob": arguments["dropout"],
        "hidden_size": arguments["hidden_dim"],
        "initializer_range": config.get("initializer_range", 0.02),
        "intermediate_size": arguments["intermediate_dim"],
        "max_position_embeddings": sizes_of_config(config).num_positions,
        "num_attention_heads": arguments["num_heads"],
        "num_hidden_layers": arguments["num_layers"],
        "type_vocab_size": arguments["num_segments"],
        "vocab_size": arguments["vocabulary_size"],
        **ours,
    }


def _write_json(file, settings):
    file.write_text(dumps(dict(sorted(settings.items())), indent=2) + "\n", encoding="utf-8")
