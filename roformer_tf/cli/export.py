"""Writes a model with its tokenizer as a folder that takes raw strings.

A SavedModel needs nothing but TensorFlow (and TensorFlow Text for translation), and an ONNX model
nothing but onnxruntime.
"""

import shlex

from roformer_tf.cli import shared

HELP = "write a SavedModel or an ONNX model that takes raw strings"


def add_arguments(parser):
    shared.add_model(parser)
    parser.add_argument("folder", help="folder to write")
    parser.add_argument(
        "--task",
        choices=shared.TASKS,
        help="task to export; default: the task that MODEL was saved as",
    )
    parser.add_argument(
        "--labels", help="names of a classifier's classes, such as negative,positive"
    )
    parser.add_argument("--sequence-length", type=int, help="maximum tokens of a text")
    parser.add_argument(
        "--top-k",
        type=int,
        default=5,
        help="masked LM: tokens per [MASK]; question answering: answers (%(default)s)",
    )
    parser.add_argument("--embedding", help="backbone: mean (default), cls or pooler")
    parser.add_argument(
        "--normalize", action="store_true", help="backbone: L2-normalize the embeddings"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an exported model")
    parser.add_argument(
        "--format", choices=("saved_model", "onnx"), default="saved_model", help="%(default)s"
    )
    parser.add_argument("--quantize", choices=("int8",), help="ONNX: int8 weights")


def run(args):
    from roformer_tf.export.export_onnx import MODEL_FILE, export_onnx
    from roformer_tf.export.export_saved_model import (
        SAVED_MODEL_FILE,
        check_target,
        export_saved_model,
    )

    is_onnx = args.format == "onnx"
    if args.quantize and not is_onnx:
        raise ValueError(
            "A SavedModel is not quantized: pass `--format onnx` too, if the model does not generate "
            f"text. Received: --quantize {args.quantize}"
        )
    # fail before the slow part
    check_target(args.folder, args.overwrite, MODEL_FILE if is_onnx else SAVED_MODEL_FILE)
    model, preprocessor = shared.load_model(args.model, args.task, args.dtype, args.sequence_length)
    options = {
        "labels": None if args.labels is None else args.labels.split(","),
        "preprocessor": preprocessor,
        "embedding": args.embedding,
        "normalize": args.normalize,
        "top_k": args.top_k,
        "overwrite": args.overwrite,
    }
    if is_onnx:
        folder = export_onnx(model, args.folder, quantize=args.quantize, **options)
        client = shlex.quote(str(folder / "client.py"))
        print(f"{type(model).__name__} in {folder}. Try it: python {client} TEXT")
        return
    folder = export_saved_model(model, args.folder, **options)
    _print_signatures(model, folder)


def _print_signatures(model, folder):
    import tensorflow as tf

    # reading it back proves that it loads
    signatures = tf.saved_model.load(folder).signatures
    rows = [
        (name, _lines(function.structured_input_signature[1]), _lines(function.structured_outputs))
        for name, function in sorted(signatures.items())
    ]
    print(f"{type(model).__name__} in {folder}")
    shared.print_table(rows, columns=("signature", "input", "output"), show_lines=True)


def _lines(specs):
    """Lists names, dtypes and shapes, such as `logits: float32 (?, 2)`."""
    lines = []
    for name, spec in sorted(specs.items()):
        shape = ", ".join("?" if size is None else str(size) for size in spec.shape)
        lines.append(f"{name}: {spec.dtype.name} ({shape})")
    return "\n".join(lines)
