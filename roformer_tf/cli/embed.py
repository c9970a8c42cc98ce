"""`python -m roformer_tf embed MODEL TEXT…`: embeddings of texts, or their cosine similarities."""

from roformer_tf.cli.arguments import add_json, add_model, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "embed",
        help="embed texts with RoFormer-Sim",
        description="Prints the cosine similarities of the texts, or their embeddings with --json.",
    )
    add_model(parser, "original RoFormer-Sim folder, folder written by save_to_preset")
    add_texts(parser, "今天天气很好")
    parser.add_argument("--raw", action="store_true", help="do not normalize the embeddings")
    add_json(parser, "its embedding")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command and returns the exit status."""
    from roformer_tf.cli.model_source import load_model

    texts = read_texts(args)
    sim, _ = load_model(args.model, ("sim", "sim_classifier"), args.dtype)
    vectors = sim.embed(texts, normalize=not (args.raw and args.json))
    if args.json:
        for text, vector in zip(texts, vectors):
            # nine digits hold every float32 exactly
            numbers = [float(f"{x:.9g}") for x in vector]
            print_json({"text": text, "vector": numbers})
    else:
        _print(texts, vectors @ vectors.T)
    return 0


def _print(texts, cosines):
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "text", *(str(number) for number in range(1, len(texts) + 1)))
    for number, (text, row) in enumerate(zip(texts, cosines), 1):
        table.add_row(str(number), Text(text), *(f"{cosine:.3f}" for cosine in row))
    Console(highlight=False).print(table)
