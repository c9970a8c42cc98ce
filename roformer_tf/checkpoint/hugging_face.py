"""Hugging Face's layout of RoFormer v1, read through the names of the original."""

import os
import re

import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.damage import check_file, named_errors, read_json
from roformer_tf.checkpoint.tf_h5_file import TensorFlowTensors
from roformer_tf.checkpoint.torch_file import TorchTensors

HF_CONFIG_FILE = "config.json"
HF_WEIGHTS_FILE = "model.safetensors"
_INDEX = ".index.json"  # after the name of a file that is stored in shards
# The first of them that is there is read.
WEIGHTS_FILES = tuple(
    name + ending
    for name in (HF_WEIGHTS_FILE, "tf_model.h5", "pytorch_model.bin")
    for ending in ("", _INDEX)
)

_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")
# Not learned: tables of sines, ids 0, 1, 2, … and the second name of the tied output.
_DERIVED = (
    "encoder.embed_positions.weight",
    "embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)


class HuggingFaceArrays:
    """The tensors of a `RoFormerModel`, `RoFormerForMaskedLM` or `RoFormerForCausalLM` on disk.

    Args:
        path: Path. The folder with `model.safetensors`, `tf_model.h5` or `pytorch_model.bin`, whole
            or in shards, or the weights file.
        config: dict. The content of `config.json`, which has the original's spelling.

    Attributes:
        source: Path. The weights file.
        shapes, dtypes: dict. Map *original* names to shapes in the original's orientation and to
            NumPy dtypes. A tensor that is not in the table keeps its own name.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model is not RoFormer v1.
        ImportError: If `safetensors` is needed and not installed.
    """

    def __init__(self, path, config):
        folder = path if path.is_dir() else path.parent
        if config.get("model_type", "roformer") != "roformer":
            raise ValueError(
                f"{folder / HF_CONFIG_FILE} does not describe a RoFormer. "
                f"Expected model_type='roformer'. Received: {config['model_type']!r}"
            )
        name = path.name
        if path.is_dir():
            present = (name for name in WEIGHTS_FILES if os.path.lexists(path / name))
            name = next(present, HF_WEIGHTS_FILE)
        self.source = folder / name
        check_file(self.source, "it holds the weights.")
        self._tensors = _Tensors(self.source)
        layers = {match[1] for match in map(_LAYER.search, self._tensors.names) if match}
        # any sizes do, as only the names are used
        sizes = mapping.Sizes(2, len(layers), 1, 2, 2, embedding_dim=4, num_segments=1)
        table = {v.hugging_face: v for v in mapping.variables("roformer", sizes) if v.hugging_face}
        self._theirs = {}
        for stored in self._tensors.names:
            # `RoFormerModel` saves the tensors of `RoFormerForMaskedLM` without the prefix
            full = stored if stored.startswith(("roformer.", "cls.")) else f"roformer.{stored}"
            if not full.endswith(_DERIVED):
                self._theirs[table[full].name if full in table else stored] = stored
        self.shapes, self.dtypes = {}, {}
        for ours in sorted(self._theirs):
            shape, dtype = self._tensors.describe(self._theirs[ours])
            if dtype.kind != "f" and ours != self._theirs[ours]:
                raise ValueError(
                    f"{self.source} is damaged: the weight {self._theirs[ours]} must have a float "
                    f"dtype. Received: {dtype}"
                )
            self.shapes[ours] = shape[::-1] if ours.endswith("/kernel") else shape
            self.dtypes[ours] = dtype
        decoder, embeddings = _DERIVED[2], self._theirs.get("bert/embeddings/word_embeddings")
        if decoder in self._tensors.names and embeddings is not None:
            shapes = (self._tensors.describe(name)[0] for name in (decoder, embeddings))
            tied = len(set(shapes)) == 1 and np.array_equal(
                self._tensors.read(decoder), self._tensors.read(embeddings)
            )
            if not tied:
                raise ValueError(
                    f"{self.source} has an output projection, {decoder}, that differs from the "
                    "word embedding. The original and this package tie the two: train the model "
                    "with tie_word_embeddings=True."
                )

    def read(self, name):
        """Returns one tensor by its original name, in the original's orientation."""
        array = self._tensors.read(self._theirs[name])
        return np.ascontiguousarray(array.T) if name.endswith("/kernel") else array

    read_tensor = read


class _Tensors:
    """The tensors of a file, or of all its shards."""

    def __init__(self, file):
        kind = file.name.removesuffix(_INDEX)
        kind, open_file = next(item for item in _READERS.items() if kind.endswith(item[0]))
        files = _shards(file, kind) if file.name.endswith(_INDEX) else [file]
        self._of = {name: part for part in map(open_file, files) for name in part.names}
        self.names = sorted(self._of)

    def describe(self, name):
        return self._of[name].describe(name)

    def read(self, name):
        return self._of[name].read(name)


def _shards(index, ending):
    """Returns the files that an index of shards names."""
    weight_map = read_json(index, "it names the files of weights.").get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not names or not all(
        isinstance(name, str) and name == os.path.basename(name) and name.endswith(ending)
        for name in names
    ):
        raise ValueError(
            f'{index} must hold {{"weight_map": {{tensor: file, …}}}} with the names of '
            f"{ending} files beside it. Received: {str(weight_map)[:100]}"
        )
    shards = [index.parent / name for name in sorted(set(names))]
    for shard in shards:
        check_file(shard, "the index names it.")
    return shards


def import_safetensors():
    """Returns the package `safetensors`, or raises an error that explains how to install it."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "Hugging Face's layout needs the package safetensors: pip install safetensors"
        ) from error
    return safetensors


class _SafeTensors:
    def __init__(self, file):
        self._file = file
        try:
            self._stream = import_safetensors().safe_open(file, framework="numpy")
        except ImportError:
            raise
        except Exception as error:  # SafetensorError, OSError, MemoryError, …
            raise ValueError(
                f"{file} is damaged or cut off ({file.stat().st_size:,} bytes): {error}. "
                "Copy it again."
            ) from error
        self.names = sorted(self._stream.keys())

    def describe(self, name):
        part = self._stream.get_slice(name)
        kind = part.get_dtype()
        if kind not in ("F64", "F32", "F16", "BF16", "I64", "I32"):
            raise ValueError(
                f"The tensor {name} has dtype {kind}, which NumPy cannot read. Save the model in "
                "float32 first."
            )
        kind = {"BF16": "F32"}.get(kind, kind)  # NumPy has no bfloat16, which float32 holds exactly
        return tuple(part.get_shape()), np.dtype(kind.replace("F", "float").replace("I", "int"))

    def read(self, name):
        with named_errors(self._file):
            return self._stream.get_tensor(name).astype(self.describe(name)[1], copy=False)


_READERS = {".safetensors": _SafeTensors, ".h5": TensorFlowTensors, ".bin": TorchTensors}
