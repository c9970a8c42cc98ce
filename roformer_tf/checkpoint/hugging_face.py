"""Hugging Face's layout of RoFormer v1, read through the names of the original.

The tensors are in `model.safetensors`, in `pytorch_model.bin` (see `torch_file.py`), or in
`tf_model.h5` of the TensorFlow models. The names in the latter become those of the PyTorch models,
by the rule of Hugging Face's own conversion:

    roformer/tf_ro_former_model/roformer/encoder/layer_._0/attention/self/query/kernel:0
    roformer.encoder.layer.0.attention.self.query.weight

Reference: `modeling_tf_roformer.py` and `modeling_tf_pytorch_utils.py` of transformers 4.
"""

import os
import re
from pathlib import Path

import h5py
import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.damage import (
    check_file,
    files_of_index,
    largest_size,
    named_errors,
    open_h5,
    read_errors,
)
from roformer_tf.checkpoint.torch_file import TorchTensors

HF_CONFIG_FILE = "config.json"
HF_WEIGHTS_FILE = "model.safetensors"
INDEX = ".index.json"  # ends the name of the index of shards
# Of these the first one that exists is read.
WEIGHTS_FILES = tuple(
    name + ending
    for name in (HF_WEIGHTS_FILE, "tf_model.h5", "pytorch_model.bin")
    for ending in ("", INDEX)
)

_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")
# Not learned: tables of sines, ids 0, 1, 2, …, and the tied output by its second name.
_DERIVED = (
    "encoder.embed_positions.weight",
    "embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)
# Keras' name of a weight -> the name in PyTorch
_LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}


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
        ending = Path(name.removesuffix(INDEX)).suffix
        files = files_of_index(self.source, ending) if name.endswith(INDEX) else [self.source]
        # Hugging Face's name -> the file that holds the tensor
        self._files = {name: file for file in map(_READERS[ending], files) for name in file.names}
        self._theirs = self._original_names()
        self.shapes, self.dtypes = {}, {}
        for ours in sorted(self._theirs):
            stored = self._theirs[ours]
            shape, dtype = self._files[stored].describe(stored)
            if dtype.kind != "f" and ours != stored:
                raise ValueError(
                    f"{self.source} is damaged: the weight {stored} must have a float dtype. "
                    f"Received: {dtype}"
                )
            self.shapes[ours] = shape[::-1] if ours.endswith("/kernel") else shape
            self.dtypes[ours] = dtype
        self._check_tied_output()

    def _original_names(self):
        """Maps the original's names of the tensors to Hugging Face's."""
        layers = {match[1] for match in map(_LAYER.search, self._files) if match}
        # only the names are used, so the sizes do not matter
        sizes = mapping.Sizes(2, len(layers), 1, 2, 2, embedding_dim=4, num_segments=1)
        table = {v.hugging_face: v for v in mapping.variables("roformer", sizes) if v.hugging_face}
        names = {}
        for stored in sorted(self._files):
            # `RoFormerModel` saves the tensors of `RoFormerForMaskedLM` without the prefix
            full = stored if stored.startswith(("roformer.", "cls.")) else f"roformer.{stored}"
            if not full.endswith(_DERIVED):
                names[table[full].name if full in table else stored] = stored
        return names

    def _check_tied_output(self):
        decoder, embeddings = _DERIVED[2], self._theirs.get("bert/embeddings/word_embeddings")
        if decoder not in self._files or embeddings is None:
            return
        files = [(self._files[name], name) for name in (decoder, embeddings)]
        shapes = {file.describe(name)[0] for file, name in files}
        if len(shapes) > 1 or not np.array_equal(*(file.read(name) for file, name in files)):
            raise ValueError(
                f"{self.source} has an output projection, {decoder}, that differs from the "
                "word embedding. The original and this package tie the two: train the model "
                "with tie_word_embeddings=True."
            )

    def read(self, name):
        """Returns one tensor by its original name, in the original's orientation."""
        stored = self._theirs[name]
        array = self._files[stored].read(stored)
        return np.ascontiguousarray(array.T) if name.endswith("/kernel") else array

    read_tensor = read


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
    """The tensors of one `.safetensors` file. All readers have these names and methods."""

    def __init__(self, file):
        self._file = file
        safetensors = import_safetensors()
        with read_errors(file):  # SafetensorError, OSError, MemoryError, …
            self._stream = safetensors.safe_open(file, framework="numpy")
        self.names = self._stream.keys()

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


class _H5Tensors:
    """The tensors of one `.h5` file, under the names and in the orientation of PyTorch."""

    def __init__(self, file):
        self._file, self._about = file, {}
        self.names = {}  # PyTorch's name -> the path in the file
        with open_h5(file) as stored:
            paths = []
            stored.visititems(lambda path, node: paths.append((path, node)))
            for path, node in sorted(paths, key=lambda item: item[0], reverse=True):
                if isinstance(node, h5py.Dataset):
                    self._add(path, node, stored)

    def _add(self, path, node, stored):
        if node.external or node.is_virtual:
            raise ValueError(
                f"{self._file} is refused: {path} is stored in another file, which need not be one "
                "of weights. Copy the model again from where it was saved."
            )
        # HDF5 compresses, and does not store what was never written: a file may claim any size
        if node.nbytes > largest_size(self._file.stat().st_size):
            raise ValueError(
                f"{self._file} is refused: {path} has {node.nbytes:,} bytes, far more than the file, "
                "and would fill the memory. Copy the model again from where it was saved."
            )
        name = _torch_name(path)
        about = node.shape, node.dtype
        first = self.names.setdefault(name, path)
        if first == path:
            self._about[name] = about
        # the group of the output head repeats the embeddings that it shares
        elif self._about[name] != about or not np.array_equal(stored[first][()], node[()]):
            raise ValueError(
                f"{self._file} is damaged: {path} and {first} are the same tensor, but their "
                "numbers differ. Copy it again from where it was saved."
            )

    def describe(self, name):
        shape, dtype = self._about[name]
        return (shape[::-1] if self._is_kernel(name) else shape), dtype

    def read(self, name):
        with open_h5(self._file) as stored:
            array = stored[self.names[name]][()]
        return array.T if self._is_kernel(name) else array

    def _is_kernel(self, name):
        return self.names[name].endswith(("/kernel:0", "/kernel"))


def _torch_name(path):
    """Translates the path of a variable of the TensorFlow model to its name in PyTorch's.

    >>> _torch_name("mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/bias:0")
    'cls.predictions.bias'
    >>> _torch_name("roformer/encoder/layer_._0/output/LayerNorm/gamma:0")
    'roformer.encoder.layer.0.output.LayerNorm.weight'
    """
    parts = path.split(":")[0].split("/")
    tops = [i for i, part in enumerate(parts) if part == "roformer" or "___" in part]
    parts = parts[tops[-1] if tops else 0 :]  # without the layer's group and the model's name
    parts = [part.split("___")[-1].replace("_._", ".") for part in parts]
    return ".".join([*parts[:-1], _LAST.get(parts[-1], parts[-1])])


_READERS = {".safetensors": _SafeTensors, ".h5": _H5Tensors, ".bin": TorchTensors}
