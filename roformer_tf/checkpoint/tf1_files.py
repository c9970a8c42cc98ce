"""Reads and writes TF1 checkpoints, one tensor at a time."""

import numpy as np
import tensorflow as tf

from roformer_tf.checkpoint.original_config import read_config
from roformer_tf.checkpoint.paths import CHECKPOINT_NAME, find_checkpoint


class OriginalReader:
    """A TF1 checkpoint on disk; tensors are read one by one, when asked for.

    Args:
        path: a folder, a prefix (`folder/bert_model.ckpt`) or one of the files.

    Attributes:
        layout: `"original"`.
        source: the prefix, a path.
        folder: the folder it lies in, a path.
        shapes: dict from variable name to shape, sorted by name.
        dtypes: dict from variable name to NumPy dtype.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, cut off or only a Git LFS pointer, or if the checkpoint is not in TF1's
            format.
    """

    layout = "original"

    def __init__(self, path):
        files = find_checkpoint(path)
        self.source, self.folder = files.prefix, files.folder
        try:
            index = tf.train.load_checkpoint(str(files.prefix))
            shapes = index.get_variable_to_shape_map()
            dtypes = index.get_variable_to_dtype_map()
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{files.index} is damaged or not a checkpoint index "
                f"({files.index.stat().st_size} bytes): {_first_line(error)} Copy the file again from its source."
            ) from error
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
            raise ValueError(
                f"{files.prefix} is a TF2 object-based checkpoint (`tf.train.Checkpoint`, Keras `save_weights`), "
                "not a TF1 checkpoint with variable names. Load it with the program that wrote it, and save with "
                "`save_checkpoint` or `save_weights_as_checkpoint` of bert4keras."
            )
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        self.dtypes = {name: np.dtype(dtypes[name].as_numpy_dtype) for name in self.shapes}
        self._check_size(files.shards)

    @property
    def config(self):
        """Dict of the `bert_config.json` beside the checkpoint; raises if it is missing or damaged."""
        return read_config(self.folder)

    def read(self, name):
        """One tensor as a NumPy array of its stored shape and dtype."""
        return np.asarray(self.read_tensor(name))

    def read_tensor(self, name):
        """One tensor as a `tf.Tensor`, which a TensorFlow variable takes over without a copy."""
        try:
            return tf.raw_ops.RestoreV2(
                prefix=str(self.source),
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[tf.as_dtype(self.dtypes[name])],
            )[0]
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"The data of the variable {name!r} in {self.source}.data-* is damaged: {_first_line(error)} "
                "Copy the file again from its source."
            ) from error

    def _check_size(self, shards):
        expected = sum(
            int(np.prod(shape)) * self.dtypes[name].itemsize for name, shape in self.shapes.items()
        )
        present = sum(shard.stat().st_size for shard in shards)
        if present < expected:
            raise ValueError(
                f"{shards[0]} is cut off: the index lists {len(self.shapes)} tensors of {expected:,} bytes, "
                f"but the data has {present:,} bytes. Download or copy it again."
            )


def write_checkpoint(folder, tensors):
    """Writes `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001` and `checkpoint`.

    The files are byte-identical to those of TF1's `Saver`. Existing files are overwritten: write into a new folder
    (`atomic.replace_files`).

    Args:
        folder: path of an existing folder.
        tensors: iterable of `(variable name, NumPy array)`; consumed one by one, so that a generator holds no second
            copy of the model.
    """
    tensors = {name: tf.constant(array) for name, array in tensors}
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(folder / CHECKPOINT_NAME),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )
    lines = (f'{key}: "{CHECKPOINT_NAME}"\n' for key in _STATE_KEYS)
    (folder / "checkpoint").write_text("".join(lines), encoding="utf-8")


_STATE_KEYS = ("model_checkpoint_path", "all_model_checkpoint_paths")


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".") + "."
