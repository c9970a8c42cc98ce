"""Prints the cosine similarities of texts, or their vectors with --json."""

import functools

from roformer_tf.cli import shared

HELP = "embed texts, with any model but one for translation"


def add_arguments(parser):
    shared.add_model(parser)
    shared.add_texts(parser, "今天天气很好")
    parser.add_argument(
        "--pooling",
        choices=("pooler", "cls", "mean"),
        help="how the tokens' vectors become one: the pooler of RoFormer-Sim (the default where "
        "there is one), that of [CLS], or their mean",
    )
    parser.add_argument("--raw", action="store_true", help="do not normalize the vectors")
    shared.add_json(parser, "its vector")


@shared.graphs_for_many
def run(args):
    from roformer_tf.models.prediction import text_vectors

    windows = shared.read_texts(args)
    model, preprocessor = shared.load_model(args.model, dtype=args.dtype)
    if hasattr(model, "embed"):
        embed = functools.partial(model.embed, pooling=args.pooling)
    elif preprocessor is None:  # of a bare backbone
        raise ValueError("The model was saved without a tokenizer, so it takes no strings.")
    else:
        embed = functools.partial(text_vectors, model, preprocessor, pooling=args.pooling)
    if args.json:
        for texts in windows:
            for text, vector in zip(texts, embed(texts, normalize=not args.raw)):
                # nine digits hold every float32 exactly
                shared.print_json({"text": text, "vector": [float(f"{x:.9g}") for x in vector]})
        return
    texts = [text for window in windows for text in window]
    vectors = embed(texts)
    numbers = [str(number) for number in range(1, len(texts) + 1)]
    rows = [
        (number, text, *(f"{cosine:.3f}" for cosine in cosines))
        for number, text, cosines in zip(numbers, texts, vectors @ vectors.T)
    ]
    shared.print_table(rows, columns=("", "text", *numbers))
