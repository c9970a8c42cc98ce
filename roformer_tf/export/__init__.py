"""Floor 4: a task as a SavedModel that takes raw strings and needs nothing but TensorFlow."""

from roformer_tf.export.export_saved_model import export_saved_model

__all__ = ["export_saved_model"]
