"""Exports a task to a folder that takes raw strings and needs only TensorFlow or ONNX Runtime."""

from roformer_tf.export.export_onnx import export_onnx
from roformer_tf.export.export_saved_model import export_saved_model

__all__ = ["export_onnx", "export_saved_model"]
