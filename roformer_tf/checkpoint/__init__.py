"""Loads checkpoints into models, saves, converts and inspects them. Imports no model class."""

from roformer_tf.checkpoint.convert import ConvertReport, convert
from roformer_tf.checkpoint.folder import CheckpointFolder, open_folder
from roformer_tf.checkpoint.inspection import CheckpointReport, inspect_checkpoint
from roformer_tf.checkpoint.loading import LoadReport, load_checkpoint
from roformer_tf.checkpoint.saving import save_checkpoint

__all__ = [
    "CheckpointFolder",
    "CheckpointReport",
    "ConvertReport",
    "LoadReport",
    "convert",
    "inspect_checkpoint",
    "load_checkpoint",
    "open_folder",
    "save_checkpoint",
]
