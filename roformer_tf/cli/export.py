"""`python -m roformer_tf export MODEL FOLDER`: a SavedModel that takes raw strings."""

from roformer_tf.cli.arguments import add_model
from roformer_tf.cli.model_source import TASKS, load_model


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "export",
        help="write a SavedModel that takes raw strings",
        description="Writes a model with its tokenizer as a SavedModel. It takes raw strings and needs nothing but "
        "TensorFlow.",
    )
    add_model(parser)
    parser.add_argument("folder", help="folder to write")
    parser.add_argument(
        "--task", choices=TASKS, help="task to export; default: the task that MODEL was saved as"
    )
    parser.add_argument(
        "--labels", help="names of a classifier's classes, such as negative,positive"
    )
    parser.add_argument("--sequence-length", type=int, help="maximum tokens of a text")
    parser.add_argument("--top-k", type=int, default=5, help="masked LM: tokens per [MASK] (5)")
    parser.add_argument("--embedding", help="backbone: mean (default), cls or pooler")
    parser.add_argument(
        "--normalize", action="store_true", help="backbone: L2-normalize the embeddings"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing SavedModel")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command and returns the exit status."""
    from roformer_tf.export import export_saved_model
    from roformer_tf.export.folders import check_target

    check_target(args.folder, args.overwrite)  # fail before the slow part
    model, preprocessor = load_model(args.model, args.task, args.dtype, args.sequence_length)
    folder = export_saved_model(
        model,
        args.folder,
        labels=None if args.labels is None else args.labels.split(","),
        top_k=args.top_k,
        preprocessor=preprocessor,
        embedding=args.embedding,
        normalize=args.normalize,
        overwrite=args.overwrite,
    )
    _print_signatures(type(model).__name__, folder)
    return 0


def _print_signatures(name, folder):
    import tensorflow as tf
    from rich.console import Console
    from rich.table import Table

    # reading it back proves that it loads
    signatures = tf.saved_model.load(folder).signatures
    table = Table("signature", "input", "output")
    for signature, function in sorted(signatures.items()):
        inputs, outputs = function.structured_input_signature[1], function.structured_outputs
        table.add_row(signature, _describe(inputs), _describe(outputs), end_section=True)
    print(f"{name} in {folder}")
    Console(highlight=False).print(table)


def _describe(specs):
    def shape(spec):
        return ", ".join("?" if size is None else str(size) for size in spec.shape)

    return "\n".join(
        f"{name}: {spec.dtype.name} ({shape(spec)})" for name, spec in sorted(specs.items())
    )
