"""The settings file of a pretraining run: TOML to checked values, with errors that name the key."""

import dataclasses
import functools
import os
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from roformer_tf.activations import get_activation
from roformer_tf.checkpoint.hub import is_hub_source
from roformer_tf.checks import check_number, check_one_of, check_positive_integer, check_types
from roformer_tf.models.roformer_backbone import check_sizes
from roformer_tf.pretraining.text_files import absolute_pattern, checked_files

OBJECTIVES = ("masked_lm", "causal_lm", "unilm")
PACKINGS = ("none", "full", "block_diagonal")
OPTIMIZERS = ("adamw", "original_adamw", "lamb", "original_lamb", "adafactor")
DTYPES = ("float32", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of pretraining: a number of optimizer steps at one maximum length.

    Args:
        max_length: int. Maximum number of tokens of a sequence, special tokens included.
        global_batch_size: int. Sequences per optimizer step, over all replicas and accumulation
            slices.
        steps: int. Optimizer steps.
        learning_rate: float. The peak.
        learning_rate_factors: dict from a step of this stage to the share of `learning_rate` at
            that step: linear in between and from 0 at step 0, constant after the last. `None` for
            a constant rate.

    Raises:
        ValueError: If a number is out of range.

    Example:

    >>> from roformer_tf.pretraining import Stage
    >>> Stage(max_length=512, global_batch_size=256, steps=200_000, learning_rate=1e-5).positions
    26214400000

    Reference: table 4 of arXiv 2104.09864.
    """

    max_length: int
    global_batch_size: int
    steps: int
    learning_rate: float
    learning_rate_factors: dict | None = None

    def __post_init__(self):
        for name in ("max_length", "global_batch_size", "steps"):
            check_positive_integer(name, getattr(self, name))
        if self.max_length < 8:
            raise ValueError(
                f"`max_length` must be at least 8. Received: max_length={self.max_length}"
            )
        check_number("learning_rate", self.learning_rate, low=0.0)
        if self.learning_rate_factors is not None:
            if not isinstance(self.learning_rate_factors, dict) or not self.learning_rate_factors:
                raise ValueError(
                    "`learning_rate_factors` must name at least one step, such as {20000: 1.0}. "
                    f"Received: learning_rate_factors={self.learning_rate_factors!r}"
                )
            factors = {}
            for step, factor in self.learning_rate_factors.items():
                # the keys of a TOML table are strings
                if not str(step).isdecimal():
                    raise ValueError(
                        "The keys of `learning_rate_factors` must be steps of the stage, integers "
                        f"from 0. Received: {step!r}"
                    )
                check_number(f"learning_rate_factors[{step}]", factor, low=0.0)
                factors[int(step)] = float(factor)
            object.__setattr__(self, "learning_rate_factors", dict(sorted(factors.items())))

    @property
    def positions(self):
        """Maximum number of token positions of the stage: sequences × length × steps."""
        return self.max_length * self.global_batch_size * self.steps


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """`[data]`: the texts, and how they become batches.

    See `prepare_corpus`, `training_batches` and `PretrainingObjective` for the meaning of each key.
    """

    files: tuple
    txt_documents: str = "blocks"
    held_out: float = 0.0
    objective: str = "masked_lm"
    mask_rate: float = 0.15
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1
    whole_word: bool = False
    mask_special_tokens: bool = False
    packing: str = "none"
    separators: str = "\n。"
    chunk_characters: float = 1.5
    window_batches: int = 16
    max_bad_lines: int | None = None
    cache: str | None = None
    service: str | None = None

    def __post_init__(self):
        check_types(self)
        object.__setattr__(self, "files", checked_files(self.files))
        check_one_of("txt_documents", self.txt_documents, ("blocks", "lines"))
        check_one_of("objective", self.objective, OBJECTIVES)
        check_one_of("packing", self.packing, PACKINGS)
        for name in ("held_out", "mask_rate", "mask_token_rate", "random_token_rate"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        if self.mask_token_rate + self.random_token_rate > 1 + 1e-9:
            raise ValueError(
                "`mask_token_rate` and `random_token_rate` together must not exceed 1. "
                f"Received: {self.mask_token_rate} + {self.random_token_rate}"
            )
        if not self.separators:
            raise ValueError("`separators` must have at least one character. Received: ''")
        if self.service is not None:
            service_address(self.service)
        check_number("chunk_characters", self.chunk_characters, 0.1, 100)
        check_positive_integer("window_batches", self.window_batches)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """`[model]`: a checkpoint to start from, or a vocabulary and arguments of `RoFormerBackbone`.

    Defaults to the v1 base model of the paper.
    """

    checkpoint: str | None = None
    vocabulary: str | None = None
    word_level: bool | None = None
    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    intermediate_dim: int = 3072
    embedding_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    norm: str = "layer_norm"
    layer_norm_epsilon: float = 1e-12
    position_scheme: str = "rotary"
    position_options: dict | None = dataclasses.field(default=None, hash=False)
    max_sequence_length: int | None = None
    dtype: str = "float32"

    def __post_init__(self):
        check_types(self)
        if (self.checkpoint is None) == (self.vocabulary is None):
            raise ValueError(
                "needs either `checkpoint` (a folder to start from) or `vocabulary` (for a new "
                f"model). Received: checkpoint={self.checkpoint!r}, vocabulary={self.vocabulary!r}"
            )
        if self.checkpoint is not None:
            free = ("checkpoint", "word_level", "dtype")
            fields = [field for field in dataclasses.fields(self) if field.name not in free]
            given = [f.name for f in fields if getattr(self, f.name) != f.default]
            if given:
                raise ValueError(
                    "`checkpoint` brings its own settings. Change them in its own config file; "
                    "only `word_level` and `dtype` can be set beside it. "
                    f"Received: {', '.join(given)}"
                )
        sizes = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        check_sizes({name: getattr(self, name) for name in sizes})
        for name in ("embedding_dim", "max_sequence_length"):
            check_positive_integer(name, getattr(self, name), optional=True)
        for name in ("dropout", "attention_dropout"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        check_number("layer_norm_epsilon", self.layer_norm_epsilon, 1e-30)
        check_one_of("norm", self.norm, ("layer_norm", "rms_norm"))
        get_activation(self.activation)
        check_one_of("dtype", self.dtype, DTYPES)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """`[optimizer]`: one optimizer, whose state is kept through all stages."""

    name: str = "adamw"
    weight_decay: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    clip_norm: float | None = None

    def __post_init__(self):
        check_types(self)
        check_one_of("name", self.name, OPTIMIZERS)
        check_number("weight_decay", self.weight_decay, 0.0)
        # at 1 the averages would stay 0; without epsilon, weights without gradient become NaN
        check_number("beta_1", self.beta_1, 0.0, 1 - 1e-6)
        check_number("beta_2", self.beta_2, 0.0, 1 - 1e-6)
        check_number("epsilon", self.epsilon, 1e-30)
        check_number("clip_norm", self.clip_norm, 1e-12, optional=True)


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """`[run]`: the seed, what is kept on disk, and how a step is split up."""

    seed: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3
    max_skipped_in_a_row: int = 20
    micro_batch_size: int | None = None
    memory: str | int | None = None
    recompute: bool = False
    jit_compile: bool = False
    deterministic: bool = False
    held_out_batches: int = 50
    log_every: int = 1

    def __post_init__(self):
        if self.memory is not None:
            memory_bytes(self.memory)
        check_types(self)
        if not 0 <= self.seed < 2**31:
            raise ValueError(
                f"`seed` must be an integer from 0 to 2^31 - 1. Received: seed={self.seed!r}"
            )
        positive = "checkpoint_every", "keep_checkpoints", "max_skipped_in_a_row"
        for name in (*positive, "held_out_batches", "log_every", "micro_batch_size"):
            check_positive_integer(name, getattr(self, name), optional=True)
        if self.memory is not None and self.micro_batch_size is not None:
            raise ValueError(
                "`memory` determines the micro-batch: set only one of them. "
                f"Received: memory={self.memory!r}, micro_batch_size={self.micro_batch_size}"
            )


@dataclasses.dataclass(frozen=True)
class PretrainingSettings:
    """All settings of a pretraining run: the values of a settings file.

    Args:
        stages: list of `Stage`.
        data: `DataSettings`.
        model: `ModelSettings`.
        optimizer: `OptimizerSettings`.
        run: `RunSettings`.

    Raises:
        ValueError: If there is no stage.

    Example:

    >>> from roformer_tf.pretraining import PretrainingSettings
    >>> settings = PretrainingSettings.from_dict({
    ...     "data": {"files": ["texts/*.jsonl.xz"]},
    ...     "model": {"vocabulary": "vocab.txt", "num_layers": 3},
    ...     "stages": [
    ...         {"max_length": 128, "global_batch_size": 32, "steps": 100, "learning_rate": 1e-3}
    ...     ],
    ... })
    >>> settings.stages[0].max_length, settings.model.num_layers, settings.optimizer.name
    (128, 3, 'adamw')
    """

    stages: tuple
    data: DataSettings
    model: ModelSettings
    optimizer: OptimizerSettings = OptimizerSettings()
    run: RunSettings = RunSettings()

    tables = {  # not annotated: no field
        "data": DataSettings,
        "model": ModelSettings,
        "optimizer": OptimizerSettings,
        "run": RunSettings,
    }

    def __post_init__(self):
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages:
            raise ValueError("There must be at least one stage (`[[stages]]`). Received: none")

    @property
    def total_steps(self):
        """Number of optimizer steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def max_length(self):
        """Maximum number of tokens of a sequence in the longest stage."""
        return max(stage.max_length for stage in self.stages)

    def first_step(self, stage_index):
        """Number of steps before a stage."""
        return sum(stage.steps for stage in self.stages[:stage_index])

    @classmethod
    def from_dict(cls, values: dict) -> "PretrainingSettings":
        """Makes settings from a nested dict, such as the content of a TOML file.

        Raises:
            ValueError: If a key is unknown or missing, or a value is wrong. Names the key.
        """
        return cls(**cls.parts_from(dict(values)))

    @classmethod
    def parts_from(cls, values):
        """Makes the arguments of the class from a nested dict."""
        stages = values.pop("stages", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise ValueError("Write each stage as a table `[[stages]]`.")
        unknown = sorted(set(values) - set(cls.tables))
        if unknown:
            raise ValueError(
                f"Unknown tables: {', '.join(unknown)}. Known are stages, {', '.join(cls.tables)}"
            )
        made = {name: make(part, values.get(name, {}), name) for name, part in cls.tables.items()}
        made["stages"] = [make(Stage, s, f"stages[{i}]") for i, s in enumerate(stages)]
        return made

    @classmethod
    def from_file(cls, path) -> "PretrainingSettings":
        """Reads settings from a TOML file. Relative paths in it are relative to the file.

        Raises:
            FileNotFoundError: If the file does not exist.
            IsADirectoryError: If it is a folder. The message says how to start from a model.
            ValueError: If the file is not TOML, a key is unknown or missing, or a value is wrong.
                Names the file and the key.
        """
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no settings file {path}.") from None
        except (IsADirectoryError, PermissionError):  # the latter for folders on Windows
            if not path.is_dir():
                raise
            raise IsADirectoryError(
                f"{path} is a folder. Expected a settings file (TOML) that describes the run, such "
                "as examples/stages_tiny.toml. To start from the model in this folder, pass "
                f"`SETTINGS.toml --from {path}`, or set `checkpoint` in [model]. To resume a run, "
                "repeat its command."
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}") from error
        try:
            settings = cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return settings.with_paths_from(path.parent)

    def with_values(self, values: dict) -> "PretrainingSettings":
        """Returns a copy with some values changed.

        Args:
            values: dict from `"table.key"`, such as `"model.position_scheme"`, to the value.

        Raises:
            ValueError: If a key is unknown or a value is wrong. Names the key.
        """
        changed = dataclasses.asdict(self)
        for name, value in values.items():
            *tables, key = name.split(".")
            table = changed
            for part in tables:
                table = table.get(part) if isinstance(table, dict) else None
            if not tables or not isinstance(table, dict) or not key:
                raise ValueError(
                    "Name a setting as TABLE.KEY, such as model.position_scheme, where the table "
                    f"is data, model, optimizer, run or tasks.NAME. Received: {name!r}"
                )
            table[key] = value
        changed["stages"] = list(changed["stages"])
        return type(self).from_dict(changed)

    def starting_from(self, checkpoint) -> "PretrainingSettings":
        """Returns a copy that starts from a checkpoint in place of what `[model]` says.

        The checkpoint brings the vocabulary and the sizes. `word_level` and `dtype` are kept.

        Args:
            checkpoint: str or path. What `from_preset` reads: a folder, `.zip` or `hf://user/name`.

        Example:

        >>> from roformer_tf.pretraining import PretrainingSettings
        >>> settings = PretrainingSettings.from_file("examples/stages_tiny.toml")
        >>> settings.starting_from("/models/chinese_roformer").model.checkpoint
        '/models/chinese_roformer'
        """
        kept = {"word_level": self.model.word_level, "dtype": self.model.dtype}
        model = ModelSettings(checkpoint=absolute_path("", os.fspath(checkpoint)), **kept)
        return dataclasses.replace(self, model=model)

    def with_paths_from(self, folder) -> "PretrainingSettings":
        """Returns a copy whose relative paths are resolved against `folder`."""
        absolute = functools.partial(absolute_path, folder)
        files = tuple(absolute_pattern(folder, name) for name in self.data.files)
        data = dataclasses.replace(self.data, files=files, cache=absolute(self.data.cache))
        paths = {name: absolute(getattr(self.model, name)) for name in ("checkpoint", "vocabulary")}
        model = dataclasses.replace(self.model, **paths)
        return dataclasses.replace(self, data=data, model=model)


def absolute_path(folder, name):
    """Resolves a path against a folder; `None` and models on the hub stay as they are."""
    if name is None or is_hub_source(name):
        return name
    return os.path.abspath(os.path.join(folder, os.path.expanduser(name)))


def service_address(service):
    """Returns host and port of the dispatcher of a tf.data service.

    Raises:
        ValueError: If `service` is not such an address.

    Example:

    >>> from roformer_tf.pretraining.settings import service_address
    >>> service_address("grpc://host:5050")
    ('host', 5050)
    """
    try:
        parts = urlsplit(service)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # such as a port that is not a number
        scheme = host = port = None
    if not (scheme and host and port):
        raise ValueError(
            "`service` must be PROTOCOL://HOST:PORT, such as 'grpc://host:5050'. "
            f"Received: service={service!r}"
        )
    return host, port


_RENAMED = {"piece_characters": "chunk_characters"}


def make(part, values, table):
    """Makes the dataclass `part` from the values of a table."""
    if not isinstance(values, dict):
        raise ValueError(f"`{table}` must be a table. Received: {values!r}")
    names = [field.name for field in dataclasses.fields(part)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        renamed = [f"`{old}` is now `{_RENAMED[old]}`." for old in unknown if old in _RENAMED]
        raise ValueError(
            f"Unknown keys in [{table}]: {', '.join(unknown)}. "
            + " ".join([*renamed, f"Known are {', '.join(names)}"])
        )
    needed = [f.name for f in dataclasses.fields(part) if f.default is dataclasses.MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"[{table}] lacks {', '.join(missing)}")
    try:
        return part(**values)
    except ValueError as error:
        raise ValueError(f"[{table}] {error}") from error


def memory_bytes(memory):
    """Converts an amount of memory to a number of bytes.

    Args:
        memory: int, or str such as `"32GB"` (10^9 bytes) or `"16GiB"` (2^30 bytes).

    Raises:
        ValueError: If it is not an amount of memory.

    Example:

    >>> from roformer_tf.pretraining.settings import memory_bytes
    >>> memory_bytes("32GB"), memory_bytes("1.5 GiB")
    (32000000000, 1610612736)
    """
    amount = r"(\d+(?:\.\d*)?)\s*(?:([KMGT])(i?))?B?"
    match = re.fullmatch(amount, str(memory).strip(), re.IGNORECASE)
    size = 0
    if match:
        power = "KMGT".index(match[2].upper()) + 1 if match[2] else 0
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if size <= 0 or isinstance(memory, bool):
        raise ValueError(
            f"`memory` must be an amount such as '32GB' or '16GiB'. Received: memory={memory!r}"
        )
    return size
