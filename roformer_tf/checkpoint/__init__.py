"""Floor 3: original checkpoint files to weights of our models, and back."""

from roformer_tf.checkpoint.convert import ConvertReport, convert
from roformer_tf.checkpoint.inspection import CheckpointReport, inspect_checkpoint
from roformer_tf.checkpoint.loading import LoadReport, load_checkpoint
from roformer_tf.checkpoint.original_folder import is_original_folder, load_original
from roformer_tf.checkpoint.saving import save_checkpoint

__all__ = [
    "CheckpointReport",
    "ConvertReport",
    "LoadReport",
    "convert",
    "inspect_checkpoint",
    "is_original_folder",
    "load_checkpoint",
    "load_original",
    "save_checkpoint",
]
