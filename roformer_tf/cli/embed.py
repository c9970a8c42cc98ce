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

    windows = shared.read_texts(args)
    sim, _ = load_model(args.model, ("sim", "sim_classifier"), args.dtype)
    if args.json:
        for texts in windows:
            for text, vector in zip(texts, sim.embed(texts, normalize=not args.raw)):
                # nine digits hold every float32 exactly
                shared.print_json({"text": text, "vector": [float(f"{x:.9g}") for x in vector]})
        return 0
    texts = [text for window in windows for text in window]
    vectors = sim.embed(texts)
    numbers = [str(number) for number in range(1, len(texts) + 1)]
    rows = [
        (number, text, *(f"{cosine:.3f}" for cosine in cosines))
        for number, text, cosines in zip(numbers, texts, vectors @ vectors.T)
    ]
    shared.print_table(rows, columns=("", "text", *numbers))
    return 0
