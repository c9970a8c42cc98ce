"""Opens a checkpoint in whichever layout it is."""

from pathlib import Path

from roformer_tf.checkpoint.hugging_face_reader import HuggingFaceReader, is_hugging_face
from roformer_tf.checkpoint.tf1_files import OriginalReader


def open_checkpoint(path):
    """A reader of the checkpoint at `path`.

    Both readers speak the original's language: `shapes`, `dtypes` and `read(name)` use original names and shapes,
    `config` the original's settings.

    Args:
        path: folder, prefix or file.

    Returns:
        `OriginalReader` or `HuggingFaceReader`.

    Raises:
        FileNotFoundError: if there is none, or a file is missing.
        ValueError: if a file is damaged.
    """
    path = Path(path)
    return HuggingFaceReader(path) if is_hugging_face(path) else OriginalReader(path)
