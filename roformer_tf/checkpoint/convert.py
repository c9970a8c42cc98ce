"""Between the original layout and Hugging Face's, file to file, without building a model."""

import shutil
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.family import guess_family, is_optimizer_slot
from roformer_tf.checkpoint.hugging_face_reader import HF_CONFIG_FILE, HF_WEIGHTS_FILE
from roformer_tf.checkpoint.original_config import backbone_arguments, sizes_of_config
from roformer_tf.checkpoint.paths import CONFIG_FILE, VOCABULARY_FILE
from roformer_tf.checkpoint.readers import open_checkpoint
from roformer_tf.checkpoint.tf1_files import write_checkpoint
from roformer_tf.files import replace_files

LAYOUTS = ("original", "huggingface")

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
_GROUPS_OF_HF = ("embeddings", "segments", "encoder", "pooler", "mlm")


@dataclass(frozen=True)
class ConvertReport:
    """What `convert` did.

    Attributes:
        folder: path that was written.
        layout: `"original"` or `"huggingface"`.
        converted: original names of the variables that were written.
        dropped: names that have no place in the other layout (next-sentence head, optimizer slots).

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

    To Hugging Face: `config.json`, `model.safetensors` and `vocab.txt` as `RoFormerForMaskedLM` reads them, or
    `RoFormerModel` if there is no masked-LM head. To the original: `bert_config.json`, `bert_model.ckpt.*`,
    `checkpoint`, `vocab.txt`. Numbers are moved and never changed, so there and back gives the same bytes.

    Args:
        source: a folder in either layout, or a checkpoint in it.
        target: folder to write; other files in it stay.
        to: `"original"` or `"huggingface"`; by default the one that `source` is not.
        family: `"roformer"` overrides the guess, see `inspect_checkpoint`.

    Returns:
        `ConvertReport`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, a variable is missing, unknown or of wrong shape, or the model is not RoFormer
            v1: Hugging Face has no other.

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
    reader = open_checkpoint(source)
    if to is None:
        to = LAYOUTS[1 - LAYOUTS.index(reader.layout)]
    if to not in LAYOUTS:
        raise ValueError(f"`to` must be one of {LAYOUTS} or None. Received: to={to!r}")
    settings = reader.config
    guess = guess_family(reader.shapes, settings, reader.folder.resolve().name, family)
    if guess.family != "roformer":
        found = mapping.FAMILIES.get(guess.family)
        raise ValueError(
            f"Hugging Face's layout has RoFormer v1 only, but {reader.source} holds "
            f"{found.title if found else 'a model of unknown family'}. Guessed because: {guess.reasons[0]}. "
            "If the guess is wrong, pass family='roformer'."
        )
    backbone_arguments(
        settings, guess.family, str(reader.folder)
    )  # refuses what neither layout means the same by
    variables, dropped = _select(reader, sizes_of_config(settings))
    with replace_files(target) as temporary:
        if to == "original":
            write_checkpoint(temporary, ((name, reader.read(name)) for name in variables))
            _write_json(temporary / CONFIG_FILE, _original_settings(settings))
        else:
            _write_hugging_face(temporary, reader, variables, settings)
        if (reader.folder / VOCABULARY_FILE).is_file():
            shutil.copyfile(reader.folder / VOCABULARY_FILE, temporary / VOCABULARY_FILE)
    return ConvertReport(Path(target), to, tuple(variables), dropped)


def _select(reader, sizes):
    """The variables to convert, checked against the table, and the names of those that stay behind."""
    everything = {v.name: v for v in mapping.variables("roformer", sizes)}
    stored = [name for name in reader.shapes if not is_optimizer_slot(name)]
    present = {everything[name].group for name in stored if name in everything}
    needed = [
        v for v in everything.values() if v.group in present or v.group in ("embeddings", "encoder")
    ]
    problems = [f"missing: {v.name} {v.shape}" for v in needed if v.name not in reader.shapes]
    problems += [f"unknown: {name}" for name in stored if name not in everything]
    problems += [
        f"wrong shape: {v.name} {reader.shapes[v.name]}, the settings ask for {v.shape}"
        for v in needed
        if v.name in reader.shapes and reader.shapes[v.name] != v.shape
    ]
    if problems:
        raise ValueError(
            f"{reader.source} is not a complete RoFormer v1 checkpoint of these settings:\n  "
            + "\n  ".join(problems)
        )
    variables = {v.name: v for v in needed if v.group in _GROUPS_OF_HF}
    return variables, tuple(name for name in reader.shapes if name not in variables)


def _write_hugging_face(folder, reader, variables, settings):
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "Hugging Face's layout needs the package safetensors: pip install safetensors"
        ) from error
    sizes = sizes_of_config(settings)
    masked_lm = any(v.group == "mlm" for v in variables.values())
    prefix = (
        "" if masked_lm else "roformer."
    )  # RoFormerModel by itself names its tensors without it
    tensors = {}
    for name, variable in variables.items():
        array = reader.read(name)
        array = np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
        tensors[variable.hugging_face.removeprefix(prefix)] = array
    head_dim = sizes.hidden_dim // sizes.num_heads
    positions = "roformer.encoder.embed_positions.weight".removeprefix(prefix)
    tensors[positions] = _sine_table(sizes.num_positions, head_dim)
    save_file(tensors, folder / HF_WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(folder / HF_CONFIG_FILE, _hugging_face_settings(settings, masked_lm))


def _sine_table(num_positions, head_dim):
    """The buffer `embed_positions`: sines, then cosines, of position · 10000^(-2i / head_dim)."""
    from roformer_tf import rotary

    angles = np.arange(num_positions)[:, None] * rotary.frequencies(head_dim)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def _common_settings(settings):
    arguments = backbone_arguments(settings, "roformer")
    return {
        "attention_probs_dropout_prob": arguments["attention_dropout"],
        "hidden_act": arguments["activation"],
        "hidden_dropout_prob": arguments["dropout"],
        "hidden_size": arguments["hidden_dim"],
        "initializer_range": settings.get("initializer_range", 0.02),
        "intermediate_size": arguments["intermediate_dim"],
        "max_position_embeddings": sizes_of_config(settings).num_positions,
        "num_attention_heads": arguments["num_heads"],
        "num_hidden_layers": arguments["num_layers"],
        "type_vocab_size": arguments["num_segments"],
        "vocab_size": arguments["vocabulary_size"],
    }


def _hugging_face_settings(settings, masked_lm):
    common = _common_settings(settings)
    arguments = backbone_arguments(settings, "roformer")
    activation = common["hidden_act"]
    return {
        **common,
        "architectures": ["RoFormerForMaskedLM" if masked_lm else "RoFormerModel"],
        "embedding_size": arguments["embedding_dim"] or arguments["hidden_dim"],
        "hidden_act": _ACTIVATIONS.get(activation, activation),
        "layer_norm_eps": arguments["layer_norm_epsilon"],
        "model_type": "roformer",
        "pad_token_id": 0,
        "rotary_value": False,
        "tie_word_embeddings": True,
    }


def _original_settings(settings):
    result = _common_settings(settings)
    arguments = backbone_arguments(settings, "roformer")
    if arguments["embedding_dim"] not in (None, arguments["hidden_dim"]):
        result["embedding_size"] = arguments["embedding_dim"]
    if arguments["layer_norm_epsilon"] != 1e-12:
        result["layer_norm_eps"] = arguments["layer_norm_epsilon"]
    return result


def _write_json(file, settings):
    file.write_text(dumps(dict(sorted(settings.items())), indent=2) + "\n", encoding="utf-8")
