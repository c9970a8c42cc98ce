"""TF1 checkpoints on disk: finding the files, reading tensors one at a time, writing them."""

import contextlib
import glob
import math
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from roformer_tf.checkpoint.damage import check_file, first_line

CONFIG_FILE = "bert_config.json"
VOCABULARY_FILE = "vocab.txt"
CHECKPOINT_NAME = "bert_model.ckpt"

_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_STATE_KEYS = ("model_checkpoint_path", "all_model_checkpoint_paths")


def find_checkpoint(path):
    """Finds a TF1 checkpoint and checks that its files exist.

    Args:
        path: str or path. A folder, a prefix such as `folder/bert_model.ckpt`, or one of the
            checkpoint's files. A folder is searched for `bert_model.ckpt`, then for the checkpoint
            named in the file `checkpoint`, then for the only `.index` file.

    Returns:
        Tuple of the prefix that TensorFlow expects, and the list of paths of its data shards.

    Raises:
        FileNotFoundError: If there is no checkpoint, or its index or a data shard is missing.
        ValueError: If a folder holds several checkpoints, or a file is a Git LFS pointer.
    """
    path = Path(path)
    if path.name in (CONFIG_FILE, VOCABULARY_FILE, "checkpoint") and path.is_file():
        path = path.parent
    if path.is_dir():
        prefix = _prefix_in_folder(path)
    elif path.name.endswith((".index", ".meta")):
        prefix = path.with_suffix("")
    else:
        prefix = path.with_name(_SHARD.sub("", path.name))
    index = Path(f"{prefix}.index")
    shards = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))
    if not os.path.lexists(index) and shards:
        raise FileNotFoundError(
            f"The index of the checkpoint is missing: expected {index} beside {shards[0].name}. "
            "Copy the `.index` file from the checkpoint's source; it cannot be rebuilt."
        )
    if not os.path.lexists(index):
        raise FileNotFoundError(nothing_found(path))
    check_file(index, "it lists the weights.")
    count = max((int(_SHARD.search(s.name)[2]) for s in shards if _SHARD.search(s.name)), default=1)
    expected = [Path(f"{prefix}.data-{i:05d}-of-{count:05d}") for i in range(count)]
    missing = [file.name for file in expected if not os.path.lexists(file)][:5]
    if missing:
        raise FileNotFoundError(
            f"The data of the checkpoint {prefix} is missing: expected {', '.join(missing)} in "
            f"{prefix.parent}. The index alone holds no weights: copy the data file next to it."
        )
    for shard in shards:
        check_file(shard, "it holds weights.")
    return prefix, shards


def _prefix_in_folder(folder):
    if (folder / f"{CHECKPOINT_NAME}.index").exists():
        return folder / CHECKPOINT_NAME
    if (folder / "checkpoint").is_file():
        text = (folder / "checkpoint").read_text(encoding="utf-8", errors="replace")
        named = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
        # often an absolute path on the machine that trained the model, so use the last part only
        if named and (folder / f"{Path(named[1]).name}.index").exists():
            return folder / Path(named[1]).name
    found = sorted(folder.glob("*.index"))
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds {len(found)} checkpoints: {', '.join(file.name for file in found)}. "
            f"Pass the prefix of one of them, for example {folder / found[0].stem!s}"
        )
    return folder / (found[0].stem if found else CHECKPOINT_NAME)


def nothing_found(path, names=None):
    """Returns the error message for a place without a model; `names` are those of its files."""
    kinds = (
        f"Expected an original folder ({CONFIG_FILE}, {CHECKPOINT_NAME}.index and "
        f"{CHECKPOINT_NAME}.data-00000-of-00001), a Hugging Face folder (config.json and "
        "model.safetensors, tf_model.h5 or pytorch_model.bin), a folder written by "
        "`save_to_preset` (config.json), a .zip file of one of these (x.zip, or x.zip/folder), a "
        "model on the Hugging Face hub (hf://user/name, or hf://user/name@revision)"
    )
    if names is not None or path.is_dir():
        names = [entry.name for entry in path.iterdir()] if names is None else names
        present = ", ".join(sorted(names)[:10]) or "nothing"
        return f"No checkpoint in {path}. {kinds}; found {present}."
    reason = f"it is not a folder, and there is no {path.name}.index in {path.parent}"
    if not path.exists() and not path.parent.is_dir():
        reason = f"the folder {path.parent} does not exist"
    return f"No checkpoint at {path}: {reason}. {kinds}, or the prefix of a TF1 checkpoint."


@contextlib.contextmanager
def readable_prefix(prefix):
    """Gives a checkpoint's prefix as TensorFlow reads it, which takes `*`, `?` and `[` for a pattern.

    A prefix with such characters is replaced by links to its files in a temporary folder.

    Args:
        prefix: Path, such as `model [1]/bert_model.ckpt`.
    """
    if not re.search(r"[*?\[\\]", str(prefix)):
        yield str(prefix)
        return
    with tempfile.TemporaryDirectory(prefix="roformer_tf_") as folder:
        for file in prefix.parent.absolute().iterdir():
            if file.name.startswith(f"{prefix.name}."):
                ending = file.name.removeprefix(prefix.name)
                Path(folder, CHECKPOINT_NAME + ending).symlink_to(file)
        yield os.path.join(folder, CHECKPOINT_NAME)


class OriginalArrays:
    """The tensors of a TF1 checkpoint, read one at a time.

    Args:
        path: str or path. A folder, a prefix (`folder/bert_model.ckpt`) or one of the files.

    Attributes:
        source: Path. The prefix.
        shapes, dtypes: dict. Map variable names, which are sorted, to shapes and NumPy dtypes.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, cut off or a Git LFS pointer, or the format is not TF1's.
    """

    def __init__(self, path):
        self.source, shards = find_checkpoint(path)
        index = Path(f"{self.source}.index")
        size = index.stat().st_size
        with _explain(f"{index} is damaged or not a checkpoint index ({size} bytes)"):
            with readable_prefix(self.source) as prefix:
                reader = tf.train.load_checkpoint(prefix)
            shapes = reader.get_variable_to_shape_map()
            dtypes = reader.get_variable_to_dtype_map()
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
            raise ValueError(
                f"{self.source} is a TF2 object-based checkpoint (`tf.train.Checkpoint`, Keras "
                "`save_weights`), not a TF1 checkpoint with variable names. Load it with the "
                "program that wrote it, then save it with `save_checkpoint` or bert4keras' "
                "`save_weights_as_checkpoint`."
            )
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        self.dtypes = {name: np.dtype(dtypes[name].as_numpy_dtype) for name in self.shapes}
        sizes = (math.prod(s) * self.dtypes[name].itemsize for name, s in self.shapes.items())
        expected, present = sum(sizes), sum(shard.stat().st_size for shard in shards)
        if present < expected:
            raise ValueError(
                f"{shards[0]} is cut off: the index lists {len(self.shapes)} tensors of "
                f"{expected:,} bytes, but the data has {present:,} bytes. Download or copy it "
                "again."
            )

    def read(self, name):
        """Returns one tensor as a NumPy array of its stored shape and dtype."""
        return np.asarray(self.read_tensor(name))

    def read_tensor(self, name):
        """Returns one tensor as a `tf.Tensor`, which a TensorFlow variable uses without a copy."""
        problem = f"The data of the variable {name!r} in {self.source}.data-* is damaged"
        with _explain(problem), readable_prefix(self.source) as prefix:
            return tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[tf.as_dtype(self.dtypes[name])],
            )[0]


@contextlib.contextmanager
def _explain(problem):
    try:
        yield
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{problem}: {first_line(error)}. Copy the file again from its source."
        ) from error


def write_tensors(prefix, tensors):
    """Writes `(name, array or variable)` pairs to the files `prefix.…` of a TF1 checkpoint."""
    tensors = {name: tf.convert_to_tensor(value) for name, value in tensors}
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )


def write_checkpoint(folder, tensors):
    """Writes `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001` and `checkpoint`.

    The files are byte-identical to those of TF1's `Saver`. Existing files are overwritten.

    Args:
        folder: Path. An existing folder.
        tensors: iterable of `(variable name, NumPy array)`. A generator needs no second copy of
            the model.
    """
    write_tensors(folder / CHECKPOINT_NAME, tensors)
    lines = (f'{key}: "{CHECKPOINT_NAME}"\n' for key in _STATE_KEYS)
    (folder / "checkpoint").write_text("".join(lines), encoding="utf-8")
