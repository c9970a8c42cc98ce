"""Reads Hugging Face's layout of RoFormer as if it were an original checkpoint."""

import json
from pathlib import Path

import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.original_config import read_config, sizes_of_config
from roformer_tf.checkpoint.paths import existing_file

HF_CONFIG_FILE = "config.json"
HF_WEIGHTS_FILE = "model.safetensors"
_HF_INDEX_FILE = "model.safetensors.index.json"
_HF_TORCH_FILE = "pytorch_model.bin"
_WEIGHTS = (HF_WEIGHTS_FILE, _HF_INDEX_FILE, _HF_TORCH_FILE)

# Tables of sines, ids 0, 1, 2, …, and the second name of the tied output: nothing that is learned.
_DERIVED = (
    "encoder.embed_positions.weight",
    "embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)


def is_hugging_face(path):
    """Whether `path` is a folder in Hugging Face's layout, or the weights file of one.

    Example:

    >>> from roformer_tf.checkpoint.hugging_face_reader import is_hugging_face
    >>> is_hugging_face("no/such/folder")
    False
    """
    path = Path(path)
    if path.name in _WEIGHTS:
        return path.is_file()
    return (path / HF_CONFIG_FILE).is_file() and any((path / name).is_file() for name in _WEIGHTS)


class HuggingFaceReader:
    """A checkpoint of `RoFormerModel` or `RoFormerForMaskedLM` on disk, seen through original names and shapes.

    Args:
        path: the folder with `config.json` and `model.safetensors` (whole or in shards) or `pytorch_model.bin`, or the
            weights file.

    Attributes:
        layout: `"huggingface"`.
        source: path of the weights file.
        folder: path.
        config: dict of `config.json`, whose spelling is the original's.
        shapes: dict from *original* name to shape in the original's orientation; a tensor that the table does not know
            keeps its own name.
        dtypes: dict from the same names to NumPy dtype.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or it is another model than RoFormer v1.
        ImportError: if `safetensors`, or `torch` for `pytorch_model.bin`, is not installed.
    """

    layout = "huggingface"

    def __init__(self, path):
        path = Path(path)
        self.folder = path if path.is_dir() else path.parent
        existing_file(self.folder, HF_CONFIG_FILE, "it tells the sizes of the model.")
        self.config = read_config(self.folder / HF_CONFIG_FILE)
        if self.config.get("model_type", "roformer") != "roformer":
            raise ValueError(
                f"{self.folder / HF_CONFIG_FILE} describes another model than RoFormer. "
                f"Expected model_type='roformer'. Received: {self.config['model_type']!r}"
            )
        name = path.name if path.is_file() else next(n for n in _WEIGHTS if (path / n).is_file())
        self.source = existing_file(self.folder, name, "it holds the weights.")
        self._tensors = _open_tensors(self.source)
        sizes = sizes_of_config(self.config, HF_CONFIG_FILE)
        table = {v.hugging_face: v for v in mapping.variables("roformer", sizes) if v.hugging_face}
        self._theirs = {}
        for stored in self._tensors.names:
            name = _with_prefix(stored)
            if not name.endswith(_DERIVED):
                self._theirs[table[name].name if name in table else stored] = stored
        self.shapes, self.dtypes = {}, {}
        for ours in sorted(self._theirs):
            shape, dtype = self._tensors.describe(self._theirs[ours])
            self.shapes[ours] = shape[::-1] if ours.endswith("/kernel") else shape
            self.dtypes[ours] = dtype
        self._refuse_untied_output()

    def read(self, name):
        """One tensor by its original name, as a NumPy array in the original's orientation."""
        array = self._tensors.read(self._theirs[name])
        return np.ascontiguousarray(array.T) if name.endswith("/kernel") else array

    read_tensor = read

    def _refuse_untied_output(self):
        decoder = "cls.predictions.decoder.weight"
        embeddings = self._theirs.get("bert/embeddings/word_embeddings")
        if decoder in self._tensors.names and embeddings is not None:
            if not np.array_equal(self._tensors.read(decoder), self._tensors.read(embeddings)):
                raise ValueError(
                    f"{self.source} has an output projection, {decoder}, that is not the word embedding; the original "
                    "and this package tie the two. Train it with tie_word_embeddings=True."
                )


def _with_prefix(name):
    """The name in `RoFormerForMaskedLM`; `RoFormerModel` saves the same tensors without the prefix."""
    return name if name.startswith(("roformer.", "cls.")) else f"roformer.{name}"


def _open_tensors(file):
    if file.name == _HF_TORCH_FILE:
        return _TorchTensors(file)
    if file.name == _HF_INDEX_FILE:
        shards = sorted(set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()))
        return _SafeTensors([existing_file(file.parent, s, "the index names it.") for s in shards])
    return _SafeTensors([file])


class _SafeTensors:
    def __init__(self, files):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError(
                "Hugging Face's layout needs the package safetensors: pip install safetensors"
            ) from error
        self._of = {}
        for file in files:
            try:
                stream = safe_open(file, framework="numpy")
            except SafetensorError as error:
                raise ValueError(
                    f"{file} is damaged or cut off ({file.stat().st_size:,} bytes): {error}. Copy it again."
                ) from error
            self._of.update(dict.fromkeys(stream.keys(), stream))
        self.names = sorted(self._of)

    def describe(self, name):
        part = self._of[name].get_slice(name)
        kinds = {
            "F64": "float64",
            "F32": "float32",
            "F16": "float16",
            "I64": "int64",
            "I32": "int32",
        }
        kind = part.get_dtype()
        if kind not in kinds:
            raise ValueError(
                f"The tensor {name} has dtype {kind}, which NumPy cannot read. Save the model in float32 first."
            )
        return tuple(part.get_shape()), np.dtype(kinds[kind])

    def read(self, name):
        return self._of[name].get_tensor(name)


class _TorchTensors:
    def __init__(self, file):
        try:
            import torch
        except ImportError as error:
            raise ImportError(
                f"{file.name} needs the package torch: pip install torch. Or convert the folder once with "
                "transformers: `model.save_pretrained(folder)` writes model.safetensors."
            ) from error
        self._state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        self.names = sorted(self._state)

    def describe(self, name):
        tensor = self._state[name]
        return tuple(tensor.shape), np.dtype(str(tensor.dtype).removeprefix("torch."))

    def read(self, name):
        return self._state[name].numpy()
