"""Finds the folder of a model on this machine, wherever the model comes from."""

from pathlib import Path

from roformer_tf.checkpoint.hub import download, is_hub_source
from roformer_tf.checkpoint.zip_file import split_zip, unpack


def is_kerashub_source(source):
    """Whether KerasHub downloads a model: from `kaggle://…` and others, but not `hf://…`."""
    return "://" in str(source) and not is_hub_source(source)


def local_path(source, weights=True):
    """Returns the path of a model's files on this machine, after fetching or unpacking them.

    Args:
        source: str or path. A folder, a `.zip` file, a folder in one (`x.zip/folder`), or a model
            on the Hugging Face hub (`hf://user/name`, `hf://user/name@revision`). Any other path
            is returned as it is.
        weights: bool. Whether to fetch the weights too.

    Returns:
        Tuple of the path and the model's name, which is `None` if the path ends in it.
    """
    if is_hub_source(source):
        return download(source, weights)
    path = Path(str(source))
    archive = None if path.is_dir() else split_zip(path)
    return (path if archive is None else unpack(*archive)), None
