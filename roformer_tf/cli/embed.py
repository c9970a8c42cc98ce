"""Prints the cosine similarities of texts, or their embeddings with --json."""

from roformer_tf.cli import shared

HELP = "embed texts with RoFormer-Sim"


def add_arguments(parser):
    shared.add_model(parser, "original RoFormer-Sim folder, folder written by save_to_preset")
    shared.add_texts(parser, "今天天气很好")
    parser.add_argument("--raw", action="store_true", help="do not normalize the embeddings")
    shared.add_json(parser, "its embedding")


def run(args):
    from roformer_tf.cli.model_source import load_model

    texts = shared.read_texts(args)
    sim, _ = load_model(args.model, ("sim", "sim_classifier"), args.dtype)
    vectors = sim.embed(texts, normalize=not (args.raw and args.json))
    if args.json:
        for text, vector in zip(texts, vectors):
            # nine digits hold every float32 exactly
            shared.print_json({"text": text, "vector": [float(f"{x:.9g}") for x in vector]})
        return 0
    numbers = [str(number) for number in range(1, len(texts) + 1)]
    rows = [
        (number, text, *(f"{cosine:.3f}" for cosine in cosines))
        for number, text, cosines in zip(numbers, texts, vectors @ vectors.T)
    ]
    shared.print_table(rows, columns=("", "text", *numbers))
    return 0
