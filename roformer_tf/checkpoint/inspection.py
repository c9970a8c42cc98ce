"""Inspects the folder of a model without building the model."""

import io
import math
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.damage import named_errors
from roformer_tf.checkpoint.folder import compare_shapes, is_optimizer_slot, open_folder
from roformer_tf.checkpoint.original_config import sizes_of_config
from roformer_tf.checkpoint.vocabulary import has_words

_SETTINGS = (
    "vocab_size hidden_size embedding_size num_hidden_layers num_attention_heads intermediate_size "
    "hidden_act max_position max_position_embeddings segment_vocab_size type_vocab_size "
    "dropout_rate hidden_dropout_prob attention_dropout_rate attention_probs_dropout_prob "
    "layer_norm_eps head_epsilon masking pooler"
).split()


@dataclass(frozen=True)
class StoredVariable:
    """One variable on disk.

    Attributes:
        name: str.
        shape: tuple of int.
        dtype: str. NumPy's name.
        group: str. A key of `mapping.GROUPS`, `"optimizer"` or `"unknown"`; `"model"` in a preset.
    """

    name: str
    shape: tuple
    dtype: str
    group: str

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self):
        """Number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class CheckpointReport:
    """The result of `inspect_checkpoint`. `str(report)` is a readable table.

    Attributes:
        source: str. The checkpoint.
        layout: str. `"original"`, `"huggingface"` or `"preset"`.
        family: str. `"roformer"`, `"roformer_v2"`, `"bert"`, `"nezha"`, or `None` if unknown.
        masking: str. `"bidirectional"`, `"causal"` or `"unilm"`.
        pooler: str. `None`, `"tanh"` or `"linear"`.
        reasons: tuple of str. How family, masking and pooler are known.
        config: dict. The settings as stored, or `None` if there is no readable file.
        variables: tuple of `StoredVariable`, sorted by name.
        missing: tuple of str. Variables that family and settings require. Whole heads are optional.
        unknown: tuple of str. Variables that the family does not have.
        wrong_shape: dict. Maps names to `(shape that the settings require, stored shape)`.
        optimizer_slots: tuple of str. Variables left over from training, which loading ignores.
        vocabulary_size: int. Number of tokens in the vocabulary, or `None`.
        notes: tuple of str. Problems, and other facts worth knowing.

    Example:

    >>> from roformer_tf.checkpoint import CheckpointReport
    >>> report = CheckpointReport(
    ...     "bert_model.ckpt", "original", "roformer", "causal", None, (), config=None, variables=()
    ... )
    >>> report.complete, report.num_parameters
    (False, 0)
    """

    source: str
    layout: str
    family: str | None
    masking: str
    pooler: str | None
    reasons: tuple
    config: dict | None
    variables: tuple
    missing: tuple = ()
    unknown: tuple = ()
    wrong_shape: dict = field(default_factory=dict)
    optimizer_slots: tuple = ()
    vocabulary_size: int | None = None
    notes: tuple = ()

    @property
    def num_parameters(self):
        """Number of elements of all weights, without optimizer slots."""
        return sum(v.size for v in self.variables if v.group != "optimizer")

    @property
    def num_bytes(self):
        """Bytes of all weights, without optimizer slots."""
        return sum(v.num_bytes for v in self.variables if v.group != "optimizer")

    @property
    def complete(self):
        """Whether family and settings are known, and every variable and shape is as expected."""
        known = self.family is not None and self.config is not None
        return known and not (self.missing or self.unknown or self.wrong_shape)

    @property
    def groups(self):
        """Maps groups to their number of variables."""
        names = [v.group for v in self.variables]
        groups = (*mapping.GROUPS, "model", "unknown", "optimizer")
        return {name: names.count(name) for name in groups if name in names}

    def to_dict(self):
        """Returns everything as plain dicts and lists, for JSON."""
        computed = ("num_parameters", "num_bytes", "groups")
        return asdict(self) | {name: getattr(self, name) for name in computed}

    def print(self, console=None):
        """Prints the report to a `rich.console.Console`, standard output by default."""
        console = console or Console()
        console.print(_summary(self))
        if self.config is not None:
            console.print(_settings(self.config))
        console.print(_variables(self.variables))
        shapes = [f"{n}: settings {a}, stored {b}" for n, (a, b) in self.wrong_shape.items()]
        for title, lines in (
            ("Missing", self.missing),
            ("Unknown", self.unknown),
            ("Wrong shape", shapes),
            ("Notes", self.notes),
        ):
            if lines:
                console.print(f"{title} ({len(lines)})", style="bold")
                for line in lines:
                    console.print(Text(f"  {line}"))

    def __str__(self):
        console = Console(file=io.StringIO(), width=110, color_system=None)
        self.print(console)
        return console.file.getvalue()


def inspect_checkpoint(path, family=None):
    """Finds out the family, masking, settings and variables of the model in a folder.

    Reads names, shapes and settings, but no weights. A missing or damaged `bert_config.json` or
    `vocab.txt` is a note, not an error.

    Args:
        path: str or path. A folder in the original or in Hugging Face's layout, or written by
            `save_to_preset`; a `.zip` file of one; a model on the Hugging Face hub
            (`hf://user/name`); the prefix of a TF1 checkpoint, or one of its files.
        family: str. `"roformer"`, `"roformer_v2"`, `"bert"` or `"nezha"`. Overrides the family
            found in the files.

    Returns:
        `CheckpointReport`.

    Raises:
        FileNotFoundError: If there is no checkpoint, or one of its files is missing.
        ValueError: If a file of the checkpoint is damaged or `family` is unknown.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import inspect_checkpoint, save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> _ = save_checkpoint(backbone, folder)
    >>> report = inspect_checkpoint(folder)
    >>> report.family, report.masking, report.num_parameters == backbone.count_params()
    ('roformer', 'bidirectional', True)
    """
    with named_errors(path):
        return _inspect(open_folder(path), family)


def _inspect(folder, family):
    notes, arrays = [], folder.arrays
    _or_note(notes, lambda: folder.check_files(weights=False))
    config = _or_note(notes, lambda: folder.config)
    size = None
    if folder.tokenizer_class != "RoFormerSentencePieceTokenizer":
        vocabulary = _or_note(notes, lambda: folder.vocabulary)
        if vocabulary is not None:
            size = vocabulary.size
            word_level = has_words(vocabulary.ids)
            level = "word level: it has" if word_level else "character level: it has no"
            notes.append(f"The vocabulary is {level} words of several Chinese characters.")
    found = folder.identity(family, strict=False)
    expected, slots = {}, ()
    if folder.layout == "preset":
        config = config.get("config")
        groups = {name: "optimizer" if "optimizer/" in name else "model" for name in arrays.shapes}
    else:
        source = str(folder.config_file)
        sizes = None if config is None else _or_note(notes, lambda: sizes_of_config(config, source))
        if sizes is not None and size not in (None, sizes.vocabulary_size):
            notes.append(
                f"{folder.vocabulary_file.name} has {size} tokens, but vocab_size in "
                f"{folder.config_file.name} is {sizes.vocabulary_size}."
            )
        if sizes is not None and found.family is not None:
            table = arrays.shapes.get("bert/embeddings/position_embeddings", (sizes.num_positions,))
            sizes = replace(sizes, num_positions=table[0])
            expected = {v.name: v for v in mapping.variables(found.family, sizes)}
        slots = tuple(filter(is_optimizer_slot, arrays.shapes))
        groups = {name: v.group for name, v in expected.items()} | dict.fromkeys(slots, "optimizer")
    differences = compare_shapes(expected, arrays.shapes) if expected else ((), (), {})
    variables = tuple(
        StoredVariable(name, tuple(shape), str(arrays.dtypes[name]), groups.get(name, "unknown"))
        for name, shape in arrays.shapes.items()
    )
    known = found.family, found.masking, found.pooler, found.reasons
    return CheckpointReport(
        str(arrays.source),
        folder.layout,
        *known,
        config,
        variables,
        *differences,  # missing, unknown, wrong_shape
        optimizer_slots=slots,
        vocabulary_size=size,
        notes=tuple(notes),
    )


def _or_note(notes, read):
    try:
        return read()
    except (ValueError, OSError) as error:
        notes.append(str(error))
        return None


def _summary(report):
    columns = Column(style="bold", no_wrap=True), Column(overflow="fold")
    table = Table(*columns, title="Checkpoint", show_header=False, title_justify="left")
    counts = ", ".join(f"{count} {group}" for group, count in report.groups.items())
    size = report.vocabulary_size
    problems = len(report.missing) + len(report.unknown) + len(report.wrong_shape)
    verdict = "complete: nothing missing or unknown"
    if report.family is None:
        verdict = "cannot be loaded: unknown family"
    elif report.config is None:
        verdict = "cannot be checked without settings"
    elif problems:
        verdict = f"{problems} problems, see below"
    for name, value in {
        "source": report.source,
        "layout": report.layout,
        "family": report.family or "unknown",
        "masking": report.masking + (f", {report.pooler} pooler" if report.pooler else ""),
        "because": "\n".join(report.reasons),
        "parameters": f"{report.num_parameters:,} ({report.num_bytes / 1e6:,.1f} MB)",
        "variables": f"{len(report.variables)}: {counts}",
        "vocabulary": "none" if size is None else f"{size} tokens",
        "verdict": verdict,
    }.items():
        table.add_row(name, Text(value))
    return table


def _settings(config):
    table = Table("name", Column("value", justify="right"), title="Settings", title_justify="left")
    for name in dict.fromkeys((*_SETTINGS, *config)):
        if name in config:
            table.add_row(Text(name), Text(str(config[name])))
    return table


def _variables(variables):
    """Makes one row per variable; encoder layers of the same shape share a row."""
    table = Table(
        Column("name", overflow="fold"),
        Column("shape", no_wrap=True),
        *("dtype", "group"),
        Column("parameters", justify="right"),
        title="Variables",
        title_justify="left",
    )
    rows = defaultdict(list)
    for variable in variables:
        if variable.group != "optimizer":
            general = re.sub(r"/layer_(\d+)/", "/layer_*/", variable.name)
            rows[general, variable.shape, variable.dtype, variable.group].append(variable)
    for (name, shape, dtype, group), members in rows.items():
        name, count = (name, f"{len(members)} × ") if len(members) > 1 else (members[0].name, "")
        table.add_row(Text(name), str(shape), dtype, group, f"{count}{members[0].size:,}")
    return table
