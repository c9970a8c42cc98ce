"""Converts files between the original layout and Hugging Face's without building a model."""

import shutil
import warnings
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path

import numpy as np

from roformer_tf import rotary
from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.folder import CheckpointFolder, checked_folder, compare_shapes
from roformer_tf.checkpoint.hugging_face import (
    HF_CONFIG_FILE,
    HF_WEIGHTS_FILE,
    import_safetensors,
)
from roformer_tf.checkpoint.hugging_face_tokenizer import HF_TOKENIZER_FILE, HF_TOKENIZER_FILES
from roformer_tf.checkpoint.model_files import add_digests
from roformer_tf.checkpoint.original_config import (
    check_sizes,
    masking_of,
    spell_settings,
)
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE, write_checkpoint
from roformer_tf.checkpoint.saving import check_layout
from roformer_tf.checks import check_one_of
from roformer_tf.files import replace_files

LAYOUTS = ("original", "huggingface")
# patterns of the files of an overwritten model
_STALE = (
    *HF_TOKENIZER_FILES,
    "*.safetensors*",
    "tf_model*.h5*",
    "pytorch_model*.bin*",
)

# arguments of the tokenizer of a folder in the original layout
_TOKENIZER = {
    "lowercase": True,
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "start_token": "[CLS]",
    "end_token": "[SEP]",
    "mask_token": "[MASK]",
    "added_tokens": [],
}


@dataclass(frozen=True)
class ConvertReport:
    """The result of `convert`.

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


def convert(source, target, to=None, family=None, overwrite=False):
    """Converts a RoFormer v1 checkpoint between the original layout and Hugging Face's.

    To Hugging Face: writes `config.json` and `model.safetensors` for `RoFormerForMaskedLM`, or for
    `RoFormerForCausalLM` if the settings have `masking="causal"`, or for `RoFormerModel` if there
    is no masked-LM head. To the original: writes `bert_config.json`, `bert_model.ckpt.*` and
    `checkpoint`. Both get `SHA256SUMS`, and `vocab.txt` if the source has a vocabulary. From Hugging
    Face to Hugging Face, such as from `pytorch_model.bin` to `model.safetensors`, the files of the
    tokenizer are copied. No number changes, so converting there and back gives the same bytes.

    Args:
        source: str or path. A folder in either layout, a checkpoint in it, a `.zip` file of one,
            or a model on the Hugging Face hub (`hf://user/name` or `hf://user/name@revision`).
        target: str or path. The folder to write; other files in it stay.
        to: str. `"original"` or `"huggingface"`. Defaults to the layout other than that of
            `source`. The original has no place for the settings of a tokenizer: those of
            `tokenizer_config.json` that are not the defaults raise a warning. So does an epsilon of
            the masked-LM head that Hugging Face has no place for.
        family: str. `"roformer"` overrides the family found in the files, see
            `inspect_checkpoint`.
        overwrite: bool. Whether to replace a model in the same layout that `target` holds.

    Returns:
        `ConvertReport`.

    Raises:
        FileNotFoundError: If a file is missing.
        FileExistsError: If `target` holds a model in another layout, or in the same layout and
            `overwrite` is `False`.
        ValueError: If a file is damaged, a variable is missing, unknown or of another shape, the
            model is not RoFormer v1 (Hugging Face has no other), the target layout does not support
            it, `source` is a preset, or `target` is the same folder.
        ImportError: If the package `safetensors` is needed and missing.

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
    with checked_folder(source) as folder:
        to = _checked_layout(folder, target, to, overwrite)
        return _convert(folder, Path(target), to, family)


def _checked_layout(folder, target, to, overwrite):
    """Returns the layout to write, or raises an error if the target must not be written."""
    if folder.layout not in LAYOUTS:
        raise ValueError(
            f"{folder.path} was written by `save_to_preset`. Load it with `from_preset` and write "
            "it with `save_checkpoint`, then convert that folder."
        )
    check_one_of("to", to, LAYOUTS, optional=True)
    to = to or LAYOUTS[1 - LAYOUTS.index(folder.layout)]
    if Path(target).resolve() == folder.path.resolve():
        raise ValueError(
            f"`target` must be another folder than the source. Received: {target} for both"
        )
    check_layout(target, to)
    holds_model = Path(target).is_dir() and CheckpointFolder(Path(target), to).has_weights
    if holds_model and not overwrite:
        raise FileExistsError(
            f"{target} already holds a model. Pass another folder, or `overwrite=True` "
            "(--overwrite) to replace it."
        )
    return to


def _convert(folder, target, to, family):
    config, arrays = folder.config, folder.arrays
    found = folder.identity(family)
    if found.family != "roformer":
        title = getattr(mapping.FAMILIES.get(found.family), "title", "a model of unknown family")
        raise ValueError(
            f"Hugging Face's layout has RoFormer v1 only, but {arrays.source} holds {title}. "
            f"Known from: {found.reasons[0]}. If that is wrong, pass family='roformer'."
        )
    arguments = folder.backbone_arguments("roformer")
    sizes = check_sizes(config, arrays, str(folder.config_file))
    if to == "original" and arguments.get("position_options"):
        raise ValueError(
            "The original has no rotated values, and would compute different numbers from the "
            f"file. Received: rotary_value=True in {folder.path / HF_CONFIG_FILE}"
        )
    variables = _select(arrays, sizes)
    head_epsilon = None
    if any(variable.group == "mlm" for variable in variables.values()):
        head_epsilon = _head_epsilon(folder, arguments["layer_norm_epsilon"], to)
    settings = spell_settings(
        arguments,
        initializer_range=config.get("initializer_range", 0.02),
        masking=masking_of(config),
        max_position_embeddings=sizes.num_positions,
        pooler=config.get("pooler"),
        head_epsilon=head_epsilon,
    )
    add = partial(add_digests, stale=_STALE)
    with replace_files(target, remove=_STALE, before_moving=add) as temporary:
        if to == "original":
            _warn_of_tokenizer_settings(folder)
            write_checkpoint(temporary, ((name, arrays.read(name)) for name in variables))
        else:
            _write_hugging_face(temporary, arrays, variables, settings, arguments)
        config_file = CONFIG_FILE if to == "original" else HF_CONFIG_FILE
        text = dumps(dict(sorted(settings.items())), indent=2) + "\n"
        (temporary / config_file).write_text(text, encoding="utf-8")
        _write_tokenizer(temporary, folder, to)
    dropped = tuple(name for name in arrays.shapes if name not in variables)
    return ConvertReport(target, to, tuple(variables), dropped)


def _head_epsilon(folder, layer_norm_epsilon, to):
    """Returns the epsilon of the head's norm for the settings, or `None` if they have no place."""
    epsilon = folder.head_epsilon
    if to == "original":
        return epsilon
    if epsilon != layer_norm_epsilon:
        warnings.warn(
            "Hugging Face has one epsilon for all norms, so the norm of the masked-LM head gets "
            f"another one, and outputs differ a little. Received: {epsilon:g} in the head and "
            f"layer_norm_eps={layer_norm_epsilon:g} of {folder.config_file}",
            stacklevel=4,
        )
    return None


def _write_tokenizer(target, folder, to):
    """Copies the files of the tokenizer, as far as the layout `to` has them."""
    between_hugging_face = folder.layout == to == "huggingface"
    for name in HF_TOKENIZER_FILES if between_hugging_face else (VOCABULARY_FILE,):
        if (folder.path / name).is_file():
            shutil.copyfile(folder.path / name, target / name)
    if not between_hugging_face and folder.vocabulary_file.name == HF_TOKENIZER_FILE:
        text = "".join(f"{token}\n" for token in folder.vocabulary.tokens)
        (target / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")


def _warn_of_tokenizer_settings(folder):
    """Warns of settings of the tokenizer that get lost, so that texts get other token ids."""
    if folder.tokenizer_class is None:
        return
    arguments = folder.tokenizer_arguments()
    lost = {
        name: arguments[name]
        for name, value in _TOKENIZER.items()
        if arguments.get(name, value) != value
    }
    if lost:
        listed = ", ".join(f"{name}={value!r}" for name, value in lost.items())
        warnings.warn(
            f"The original layout has no place for settings of the tokenizer in {folder.path}. Pass "
            f"them to each tokenizer that reads the new folder: {listed}",
            stacklevel=4,
        )


def _select(arrays, sizes):
    """Returns the variables to convert, after a check against the table."""
    table = {v.name: v for v in mapping.variables("roformer", sizes)}
    missing, unknown, wrong_shape = compare_shapes(table, arrays.shapes)
    problems = [f"missing: {name} {table[name].shape}" for name in missing]
    problems += [f"unknown: {name}" for name in unknown]
    problems += [
        f"wrong shape: {name} {found}, the settings require {expected}"
        for name, (expected, found) in wrong_shape.items()
    ]
    if problems:
        raise ValueError(
            f"{arrays.source} is not a complete RoFormer v1 checkpoint with these settings:\n  "
            + "\n  ".join(problems)
        )
    return {name: v for name, v in table.items() if v.hugging_face and name in arrays.shapes}


def _write_hugging_face(folder, arrays, variables, settings, arguments):
    """Writes the weights and adds Hugging Face's entries to `settings`."""
    safetensors = import_safetensors()
    is_decoder = settings.get("masking") == "causal"
    architecture, prefix = "RoFormerModel", "roformer."  # its tensors have no such prefix
    if any(variable.group == "mlm" for variable in variables.values()):
        architecture = "RoFormerForCausalLM" if is_decoder else "RoFormerForMaskedLM"
        prefix = ""
    tensors = {}
    for name, variable in variables.items():
        array = arrays.read(name)
        array = np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
        tensors[variable.hugging_face.removeprefix(prefix)] = array
    # Hugging Face's buffer: sines, then cosines, of position · 10000^(-2i / head_dim)
    theta = rotary.frequencies(arguments["hidden_dim"] // arguments["num_heads"])
    angles = np.arange(settings["max_position_embeddings"])[:, None] * theta
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
    tensors["roformer.encoder.embed_positions.weight".removeprefix(prefix)] = table
    safetensors.numpy.save_file(tensors, folder / HF_WEIGHTS_FILE, metadata={"format": "pt"})
    if settings["hidden_act"] == "gelu_tanh":
        settings["hidden_act"] = "gelu_pytorch_tanh"
    settings |= {
        "architectures": [architecture],
        "embedding_size": arguments["embedding_dim"] or arguments["hidden_dim"],
        "is_decoder": is_decoder,
        "layer_norm_eps": arguments["layer_norm_epsilon"],
        "model_type": "roformer",
        "pad_token_id": 0,
        "rotary_value": "position_options" in arguments,
        "tie_word_embeddings": True,
    }
