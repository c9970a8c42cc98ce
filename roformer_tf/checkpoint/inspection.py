"""What is in a checkpoint, without building a model."""

import io
from dataclasses import asdict, dataclass, field

import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.family import guess_family, is_optimizer_slot
from roformer_tf.checkpoint.original_config import sizes_of_config
from roformer_tf.checkpoint.readers import open_checkpoint
from roformer_tf.checkpoint.vocabulary import read_vocabulary
from roformer_tf.text.vocabulary import has_words


@dataclass(frozen=True)
class StoredVariable:
    """One variable as it lies on disk.

    Attributes:
        name: str.
        shape: tuple of int.
        dtype: str, as NumPy calls it.
        group: what it belongs to (key of `mapping.GROUPS`), `"optimizer"` or `"unknown"`.
    """

    name: str
    shape: tuple
    dtype: str
    group: str

    @property
    def size(self):
        """Number of elements."""
        return int(np.prod(self.shape, dtype="int64"))

    @property
    def num_bytes(self):
        """Size on disk in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class CheckpointReport:
    """What `inspect_checkpoint` found. `str(report)` is a readable table.

    Attributes:
        source: str, the checkpoint.
        layout: `"original"` or `"huggingface"`.
        family: `"roformer"`, `"roformer_v2"`, `"bert"`, `"nezha"`, or `None` if unknown.
        application: `"encoder"`, `"lm"` or `"unilm"`: a guess.
        pooler: `None`, `"tanh"` or `"linear"`.
        reasons: why these were guessed.
        config: dict of settings as stored, `None` if there is no readable file.
        variables: tuple of `StoredVariable`, sorted by name.
        missing: names that the family and the settings ask for and the checkpoint lacks; heads are optional.
        unknown: names that the family does not know.
        wrong_shape: dict from name to `(shape that the settings ask for, stored shape)`.
        optimizer_slots: names left over from training, which loading ignores.
        vocabulary_size: number of tokens in `vocab.txt`, or `None`.
        notes: sentences about what is wrong or worth knowing.

    Example:

    >>> from roformer_tf.checkpoint import CheckpointReport
    >>> report = CheckpointReport("folder/bert_model.ckpt", "original", "roformer", "encoder", None, (), None, ())
    >>> report.complete, report.num_parameters
    (False, 0)
    """

    source: str
    layout: str
    family: str | None
    application: str
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
        """Elements of all weights, without optimizer slots."""
        return sum(v.size for v in self.variables if v.group != "optimizer")

    @property
    def num_bytes(self):
        """Bytes of all weights, without optimizer slots."""
        return sum(v.num_bytes for v in self.variables if v.group != "optimizer")

    @property
    def complete(self):
        """Whether family and settings are known, and nothing is missing, unknown or of wrong shape."""
        known = self.family is not None and self.config is not None
        return known and not (self.missing or self.unknown or self.wrong_shape)

    @property
    def groups(self):
        """Dict from group to number of variables."""
        names = [v.group for v in self.variables]
        return {
            name: names.count(name)
            for name in (*mapping.GROUPS, "unknown", "optimizer")
            if name in names
        }

    def to_dict(self):
        """All of it as plain dicts and lists, for JSON."""
        return {
            **asdict(self),
            "num_parameters": self.num_parameters,
            "num_bytes": self.num_bytes,
            "groups": self.groups,
        }

    def print(self, console=None):
        """Prints the report with `rich`; `console` is a `rich.console.Console`, standard output by default."""
        from roformer_tf.checkpoint.report_table import print_report

        print_report(self, console)

    def __str__(self):
        from rich.console import Console

        console = Console(file=io.StringIO(), width=110, color_system=None)
        self.print(console)
        return console.file.getvalue()


def inspect_checkpoint(path, family=None):
    """Says what a checkpoint is: family, application, settings, variables, what is missing or unknown.

    Reads names, shapes and settings, no weights. A missing or damaged `bert_config.json` or `vocab.txt` is a note, not
    an error.

    Args:
        path: a folder in the original or in Hugging Face's format, the prefix of a TF1 checkpoint, or one of its files.
        family: `"roformer"`, `"roformer_v2"`, `"bert"` or `"nezha"` overrides the guess.

    Returns:
        `CheckpointReport`.

    Raises:
        FileNotFoundError: if there is no checkpoint, or one of its files is missing.
        ValueError: if a file of the checkpoint is damaged or `family` is unknown.

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
    >>> report.family, report.application, report.num_parameters == backbone.count_params()
    ('roformer', 'encoder', True)
    """
    reader = open_checkpoint(path)
    notes = []
    config = _quietly(notes, lambda: reader.config)
    vocabulary = _quietly(notes, lambda: read_vocabulary(reader.folder))
    guess = guess_family(reader.shapes, config, reader.folder.resolve().name, family)
    slots = tuple(name for name in reader.shapes if is_optimizer_slot(name))
    sizes = None if config is None else _quietly(notes, lambda: sizes_of_config(config))
    if sizes is not None and vocabulary is not None:
        notes += _vocabulary_notes(vocabulary, sizes.vocabulary_size)
    expected = {}
    if guess.family and sizes is not None:
        if guess.family == "bert":
            positions = reader.shapes.get(
                "bert/embeddings/position_embeddings", (sizes.num_positions,)
            )[0]
            sizes = mapping.with_positions(sizes, positions)
        expected = {v.name: v for v in mapping.variables(guess.family, sizes)}
    return CheckpointReport(
        source=str(reader.source),
        layout=reader.layout,
        family=guess.family,
        application=guess.application,
        pooler=guess.pooler,
        reasons=guess.reasons,
        config=config,
        variables=tuple(_stored(reader, name, slots, expected) for name in reader.shapes),
        missing=_missing(expected, reader.shapes),
        unknown=tuple(
            n for n in reader.shapes if expected and n not in expected and n not in slots
        ),
        wrong_shape={
            name: (expected[name].shape, shape)
            for name, shape in reader.shapes.items()
            if name in expected and expected[name].shape != shape
        },
        optimizer_slots=slots,
        vocabulary_size=None if vocabulary is None else vocabulary.size,
        notes=tuple(notes),
    )


def _quietly(notes, read):
    try:
        return read()
    except (ValueError, FileNotFoundError) as error:
        notes.append(str(error))
        return None


def _stored(reader, name, slots, expected):
    group = "unknown"
    if name in slots:
        group = "optimizer"
    elif name in expected:
        group = expected[name].group
    return StoredVariable(name, reader.shapes[name], str(reader.dtypes[name]), group)


def _missing(expected, present):
    """Names that are expected and absent; a head is optional, but half a head is not."""
    absent = [v for v in expected.values() if v.name not in present]
    some = {v.group for v in expected.values() if v.name in present}
    optional = ("pooler", "nsp", "mlm")
    return tuple(v.name for v in absent if v.group not in optional or v.group in some)


def _vocabulary_notes(vocabulary, vocabulary_size):
    level = "word level: it has" if has_words(vocabulary.ids) else "character level: it has no"
    notes = [f"vocab.txt is {level} words of several Chinese characters."]
    if vocabulary.size != vocabulary_size:
        notes.append(
            f"vocab.txt has {vocabulary.size} tokens, but bert_config.json says vocab_size {vocabulary_size}."
        )
    return notes
