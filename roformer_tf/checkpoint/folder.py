"""Opens the folder of a model: finds its layout, family, settings, vocabulary and arrays."""

import contextlib
import glob
import os
import re
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from roformer_tf.checkpoint import hugging_face_tokenizer
from roformer_tf.checkpoint.damage import named_errors, read_json
from roformer_tf.checkpoint.hub import download, is_hub_source
from roformer_tf.checkpoint.hugging_face import HF_CONFIG_FILE, WEIGHTS_FILES, HuggingFaceArrays
from roformer_tf.checkpoint.hugging_face_tokenizer import (
    HF_TOKENIZER_CONFIG_FILE,
    HF_TOKENIZER_FILE,
    read_tokenizer_json,
    tokenizer_settings,
)
from roformer_tf.checkpoint.mapping import FAMILIES, find_family
from roformer_tf.checkpoint.model_files import check_digests
from roformer_tf.checkpoint.original_config import HEAD_EPSILON, backbone_arguments, masking_of
from roformer_tf.checkpoint.original_files import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    OriginalArrays,
    nothing_found,
)
from roformer_tf.checkpoint.preset import PresetArrays, check_part, check_preset
from roformer_tf.checkpoint.vocabulary import Vocabulary, has_words
from roformer_tf.checkpoint.zip_file import split_zip, unpack
from roformer_tf.checks import check_one_of
from roformer_tf.files import finish_replacing

# Variables of optimizers of TF1, Google's BERT and NEZHA, and counters of the training loop.
_SLOT = re.compile(
    r"/(adam_[mv]|Adam(_\d+)?|AdamW\w*|AdamWeightDecay\w*|LAMB\w*|lamb_[mv]|Momentum|m|v"
    r"|ExponentialMovingAverage)$"
)
_COUNTER = re.compile(
    r"^(training/)?(global_step|beta[12]_power(_\d+)?|(loss|current)_scale\w*|(good|bad)_steps\w*"
    r"|learning_rate|iterations)$"
)


def open_folder(path, weights=True):
    """Opens the folder of a model in any layout.

    Settings, vocabulary and arrays are read on first use, so a damaged file raises an error only
    where it is needed.

    Args:
        path: str or path. An original folder (`bert_config.json`, `bert_model.ckpt.*`,
            `vocab.txt`), a Hugging Face folder (`config.json`, `vocab.txt` or `tokenizer.json`, and
            `model.safetensors`, `tf_model.h5` or `pytorch_model.bin`), or one written by
            `save_to_preset`. Also a `.zip` file of one, a model on the Hugging Face hub
            (`hf://user/name` or `hf://user/name@revision`), the prefix of a TF1 checkpoint, or one
            of a checkpoint's files.
        weights: bool. Whether to download the weights of a model on the hub.

    Returns:
        `CheckpointFolder`.

    Raises:
        FileNotFoundError: If there is no such folder at `path`.
        ValueError: If a `.zip` file is damaged or holds several models.
        ConnectionError: If the hub cannot be reached and its cache does not have the model.
        PermissionError: If the hub asks for a token, or refuses it.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import open_folder, save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> folder = open_folder(save_checkpoint(backbone, tempfile.mkdtemp()))
    >>> folder.layout, folder.identity().family, folder.identity().masking
    ('original', 'roformer', 'bidirectional')
    >>> folder.arrays.read("bert/embeddings/word_embeddings").shape
    (100, 16)
    """
    if is_hub_source(path):
        path, name = download(path, weights)
    else:
        path, name = Path(str(path)), None
        archive = None if path.is_dir() else split_zip(path)
        path = path if archive is None else unpack(*archive)
    return CheckpointFolder(path, find_layout(path), name)


@contextlib.contextmanager
def checked_folder(path, weights=True):
    """Opens a folder as `open_folder` does, checks its files, and names it in every error."""
    with named_errors(path):
        folder = open_folder(path, weights)
        folder.check_files(weights)
        yield folder


def is_kerashub_source(source):
    """Whether KerasHub downloads a model: from `kaggle://…` and others, but not `hf://…`."""
    return "://" in str(source) and not is_hub_source(source)


def find_layout(path):
    """Returns the layout of the model at a path, after completing a save that was killed."""
    if not path.is_dir():
        if path.name in WEIGHTS_FILES and path.is_file():
            return "huggingface"
        if path.is_file() or any(path.parent.glob(f"{glob.escape(path.name)}.*")):
            return "original"
        raise FileNotFoundError(nothing_found(path))
    try:
        finish_replacing(path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"A process was killed while it wrote to {path}, and the rest of its files cannot be "
            f"moved there ({error.strerror}). Make the folder writable and load it once, or save "
            "the model again",
        ) from error
    if (path / "task.json").exists():
        return "preset"
    if any(path.glob(CONFIG_FILE)) or any(path.glob("*.index")):
        return "original"
    if (path / HF_CONFIG_FILE).is_file() and (path / "metadata.json").exists():
        return "preset"
    # a preprocessor or tokenizer alone has no `config.json`
    for name in (HF_CONFIG_FILE, "preprocessor.json", HF_TOKENIZER_FILE, HF_TOKENIZER_CONFIG_FILE):
        if (path / name).is_file():
            with contextlib.suppress(ValueError, OSError):  # what reads the file explains them
                if "registered_name" in read_json(path / name, ""):
                    return "preset"
            return "huggingface"
    if any(path.glob(VOCABULARY_FILE)) or any(path.glob("*.data-*-of-*")):
        return "original"
    raise FileNotFoundError(nothing_found(path))


class CheckpointFolder:
    r"""The folder of a model in any layout. Use `open_folder` to create it.

    Attributes:
        path: Path. The folder.
        layout: str. `"original"`, `"huggingface"` or `"preset"` (written by `save_to_preset`).
        config: dict. The settings as stored in `bert_config.json` or `config.json`.
        arrays: The weights: `shapes`, `dtypes`, `read(name)` and the file, `source`. Both
            checkpoint layouts have the original's names and shapes; a preset has its own.
        vocabulary: `Vocabulary` of `vocab.txt`, or of the tokenizer of a preset or of transformers 5.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf.checkpoint import CheckpointFolder
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (path / "vocab.txt").write_text("[PAD] [UNK] [CLS] [SEP] [MASK] a".replace(" ", "\n"))
    >>> folder = CheckpointFolder(path, layout="original")
    >>> folder.vocabulary.size, folder.tokenizer_class
    (6, 'RoFormerTokenizer')
    """

    def __init__(self, path, layout, name=None):
        self.path = path if path.is_dir() else path.parent
        self.layout = layout
        self._name = name  # of the repository; its folder in the cache is called otherwise
        self._path = path

    @property
    def config_file(self):
        """Path of the settings."""
        return self.path / (CONFIG_FILE if self.layout == "original" else HF_CONFIG_FILE)

    @cached_property
    def config(self):
        purpose = "it holds the sizes of the model. Copy it from the release."
        config = read_json(self.config_file, purpose)
        return check_part(config, self.config_file) if self.layout == "preset" else config

    @cached_property
    def arrays(self):
        if self.layout == "original":
            return OriginalArrays(self._path)
        if self.layout == "huggingface":
            return HuggingFaceArrays(self._path, self.config)
        return PresetArrays(self.path)

    @cached_property
    def vocabulary(self):
        file = self.vocabulary_file
        return Vocabulary(read_tokenizer_json(file)[0] if file.suffix == ".json" else file)

    @property
    def vocabulary_file(self):
        """Path of the vocabulary of a `RoFormerTokenizer`."""
        if self.layout == "preset":
            return self.path / "assets" / "tokenizer" / "vocabulary.txt"
        if self.layout == "huggingface":
            return hugging_face_tokenizer.vocabulary_file(self.path)
        return self.path / VOCABULARY_FILE

    @property
    def backbone_class(self):
        """Name of the backbone's class."""
        return self.config["class_name"] if self.layout == "preset" else "RoFormerBackbone"

    @cached_property
    def tokenizer_class(self):
        """Name of the tokenizer's class, or `None` if the folder holds no tokenizer."""
        if self.layout == "preset":
            part = self.part("tokenizer.json")
            return None if part is None else part["class_name"]
        return "RoFormerTokenizer" if self.vocabulary_file.exists() else None

    def part(self, name):
        """Returns the stored configuration of a part of a preset, or `None` if there is none.

        Args:
            name: str. `"task.json"`, `"preprocessor.json"` or `"tokenizer.json"`.

        Raises:
            ValueError: If the file is damaged.
        """
        file = self.path / name
        if not os.path.lexists(file):
            return None
        return check_part(read_json(file, "it holds a part of the model."), file)

    def check_files(self, weights=True):
        """Raises an error if a file has changed since it was saved, or a preset is damaged.

        Args:
            weights: bool. Whether to check the files of weights, too.
        """
        check_digests(self.path, weights)
        if self.layout == "preset":
            check_preset(self, weights)

    @property
    def has_weights(self):
        """Whether the folder contains an original or Hugging Face checkpoint."""
        files = (self.path / name for name in WEIGHTS_FILES)
        return any(self.path.glob("*.index")) or any(file.is_file() for file in files)

    def identity(self, family=None, strict=True):
        """Finds out family, masking and pooler.

        Args:
            family: str. Overrides the family of a checkpoint.
            strict: bool. Whether to raise if a checkpoint's settings are missing or damaged. If
                not, variables and the folder's name decide.

        Returns:
            `Identity`.

        Raises:
            ValueError: If `family` is unknown.
        """
        if self.layout == "preset":
            arguments = self.config.get("config", {})
            return Identity(
                find_family(arguments.get("norm"), arguments.get("position_scheme")),
                arguments.get("masking", "bidirectional"),
                arguments.get("pooler"),
                ("family, masking and pooler: config.json",),
            )
        check_one_of("family", family, tuple(FAMILIES), optional=True)
        try:
            config = self.config
        except (FileNotFoundError, ValueError):
            if strict:
                raise
            config = {}
        names, from_name = self.arrays.shapes, {}
        name = self._name or self.path.resolve().name
        words = re.split(r"[^a-z0-9]+", name.lower())
        reason = f"family {family!r}: passed as `family`"
        if family is None:
            family, reason = _family(names, config, words, from_name)
        masking, pooler, reasons = _masking_and_pooler(names, config, words, family, from_name)
        return Identity(family, masking, pooler, (reason, *reasons), from_name)

    def backbone_arguments(self, family=None):
        """Returns the arguments of the backbone's class, except `masking` and `pooler`."""
        if self.layout == "preset":
            return self.config["config"]
        if self.layout == "original" and self.config.get("rotary_value"):
            raise ValueError(
                f"`rotary_value` in {self.config_file} must be absent or false: the original does "
                "not rotate values, only Hugging Face's layout has it."
            )
        family = family or self.identity().family
        return backbone_arguments(self.config, family, str(self.config_file))

    @property
    def head_epsilon(self):
        """Epsilon of the norm in a checkpoint's masked-LM head. Hugging Face has one for all norms."""
        name = "head_epsilon" if self.layout == "original" else "layer_norm_eps"
        return self.config.get(name) or HEAD_EPSILON

    def check_tokenizer_class(self, cls):
        """Raises an error unless the folder contains a tokenizer of a class or one of its bases."""
        if self.tokenizer_class is None:
            file = "tokenizer.json" if self.layout == "preset" else VOCABULARY_FILE
            raise FileNotFoundError(
                f"{self.path} has no vocabulary: expected {file}. A model saved without a "
                "preprocessor has none; original and Hugging Face releases have one."
            )
        is_other = self.tokenizer_class not in {base.__name__ for base in cls.__mro__}
        if is_other and self.tokenizer_class.startswith("RoFormer"):
            raise ValueError(
                f"{cls.__name__} cannot be built from {self.path}, which holds the vocabulary of a "
                f"{self.tokenizer_class}. Use `{self.tokenizer_class}.from_preset`."
            )

    def tokenizer_arguments(self, vocabulary=None, **overrides):
        """Returns the arguments of `RoFormerTokenizer` for a checkpoint.

        The vocabulary decides between word and character level. Case and special tokens are read
        from Hugging Face's `tokenizer_config.json`, if there is one, and added tokens from
        `tokenizer.json`, if there is no `vocab.txt`.

        Args:
            vocabulary: Path, list of tokens or dict of token to id. Defaults to the folder's own.
            **overrides: More arguments of the tokenizer.
        """
        parsed = self.vocabulary if vocabulary is None else Vocabulary(vocabulary)
        arguments = {}
        if self.layout == "huggingface":
            arguments = tokenizer_settings(self.path, parsed.ids)
        words = set(parsed.ids) - set(arguments.get("added_tokens", ()))
        arguments |= {"vocabulary": parsed.tokens, "word_level": has_words(words)}
        return {**arguments, **overrides}


@dataclass(frozen=True)
class Identity:
    """Family, masking and pooler of a model, and how they are known.

    Attributes:
        family: str. A key of `mapping.FAMILIES`, or `None` if unknown.
        masking: str. `"bidirectional"`, `"causal"` or `"unilm"`.
        pooler: str. `None`, `"tanh"` or `"linear"`.
        reasons: tuple of str. Sentences that explain the three.
        from_name: dict. What was guessed from the folder's name, as `{"masking": "causal"}`.
    """

    family: str | None
    masking: str
    pooler: str | None
    reasons: tuple
    from_name: dict = field(default_factory=dict)

    def warn_if_from_name(self, argument, folder):
        """Warns if `argument`, `"family"` or `"masking"`, was guessed from the folder's name."""
        if argument in self.from_name:
            value = self.from_name[argument]
            entry = f'"masking": "{value}"'
            if argument == "family":
                entry = '"use_relative_position": true'
            warnings.warn(
                f"{folder.path}: took {argument}={value!r} from the name of the folder, since no "
                f"file in it contains it. Pass {argument}={value!r}, or another, to `from_preset`; "
                f"or add {entry} to {folder.config_file.name}.",
                UserWarning,
                stacklevel=4,
            )


def is_optimizer_slot(name):
    """Whether a variable is left over from training and not a weight.

    >>> name = "bert/pooler/dense/kernel"
    >>> is_optimizer_slot(name), is_optimizer_slot(f"{name}/adam_m")
    (False, True)
    """
    return bool(_SLOT.search(name) or _COUNTER.match(name))


def compare_shapes(expected, shapes, optional=("pooler", "nsp", "mlm")):
    """Compares the shapes of a checkpoint with the `mapping.Variable`s that it should have.

    The `optional` groups may be missing, but only as a whole. Returns the missing names, the
    unknown ones without those of optimizers, and a dict of name to `(expected shape, stored shape)`
    where the two differ.
    """
    stored = {name: v for name, v in expected.items() if name in shapes}
    groups = {v.group for v in stored.values()}
    missing = tuple(
        name
        for name, v in expected.items()
        if name not in stored and (v.group in groups or v.group not in optional)
    )
    unknown = tuple(n for n in shapes if n not in expected and not is_optimizer_slot(n))
    wrong_shape = {n: (v.shape, shapes[n]) for n, v in stored.items() if v.shape != shapes[n]}
    return missing, unknown, wrong_shape


def _family(names, config, words, from_name):
    """Returns the family and how it is known."""
    if "bert/embeddings/word_embeddings" not in names:
        prefixes = sorted({name.split("/")[0] for name in names if not is_optimizer_slot(name)})
        return None, (
            "family unknown: there is no variable bert/embeddings/word_embeddings (ALBERT, "
            "ELECTRA, GPT-2 and T5 are not supported); names begin with "
            f"{', '.join(prefixes[:5]) or 'nothing'}"
        )
    if "bert/embeddings/position_embeddings" in names:
        return "bert", "family 'bert': there is a variable bert/embeddings/position_embeddings"
    encoder = [name for name in names if name.startswith("bert/encoder/layer_")]
    if encoder and not any(re.search(r"/(bias|beta|gamma)$", name) for name in encoder):
        return "roformer_v2", "family 'roformer_v2': the encoder has no bias, beta or gamma"
    if config.get("use_relative_position") or str(config.get("model_type")).lower() == "nezha":
        return "nezha", "family 'nezha': the settings have relative positions"
    if "nezha" in words:
        from_name["family"] = "nezha"
        return "nezha", (
            "family 'nezha': the name of the folder (NEZHA and RoFormer v1 have the same variables)"
        )
    return "roformer", (
        "family 'roformer': biases and norm weights, no position embeddings, and no mention of "
        "NEZHA (which has the same variables)"
    )


def _masking_and_pooler(names, config, words, family, from_name):
    """Returns masking, pooler and how they are known."""
    has_pooler = any(name.startswith("bert/pooler/dense/") for name in names)
    has_nsp = any(name.startswith("cls/seq_relationship/") for name in names)
    # of the RoFormer releases only RoFormer-Sim has a pooler and no next-sentence head
    looks_like_sim = has_pooler and not has_nsp and family in ("roformer", "roformer_v2")
    masking, why = masking_of(config), "the settings"
    if masking is None and "gpt" in words:
        masking = from_name["masking"] = "causal"
        why = "the name of the folder contains GPT"
    elif masking is None and looks_like_sim:
        masking = "unilm"
        why = "of the RoFormer releases only RoFormer-Sim has a pooler and no next-sentence head"
    elif masking is None and has_pooler and "sim" in words:
        masking = from_name["masking"] = "unilm"
        why = "the name of the folder contains Sim, and there is a pooler"
    elif masking is None:
        masking, why = "bidirectional", "the default"
    reasons = [f"masking {masking!r}: {why}"]
    if not has_pooler:
        return masking, None, reasons
    pooler, why = config.get("pooler"), "the settings"
    if pooler not in ("tanh", "linear"):
        is_sim = masking == "unilm"
        pooler, why = ("linear", "as in RoFormer-Sim") if is_sim else ("tanh", "as in BERT")
    return masking, pooler, [*reasons, f"pooler {pooler!r}: {why}"]
