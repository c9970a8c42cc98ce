"""Prints the most probable tokens for each [MASK] in the texts."""

from roformer_tf.cli import shared

HELP = "fill [MASK] in texts"


def add_arguments(parser):
    shared.add_model(parser)
    shared.add_texts(parser, "今天[MASK]气很好")
    parser.add_argument("--top-k", type=int, default=5, help="tokens per [MASK] (5)")
    shared.add_json(parser, "the tokens of each [MASK] with their probabilities")


@shared.graphs_for_many
def run(args):
    from roformer_tf.models import fill_mask

    windows = shared.read_texts(args)
    task, _ = shared.load_model(args.model, "masked_lm", args.dtype)
    mask_token = task.preprocessor.tokenizer.mask_token
    for texts in windows:
        for text, masks in zip(texts, fill_mask(task, texts, top_k=args.top_k)):
            if not masks:
                raise ValueError(f"Expected {mask_token} in every text. Received: {text!r}")
            if args.json:
                masks = [[{"token": t, "probability": p} for t, p in mask] for mask in masks]
                shared.print_json({"text": text, "masks": masks})
                continue
            several = len(masks) > 1
            columns = [f"mask {number}" for number in range(1, len(masks) + 1)] if several else ()
            rows = [
                [f"{probability:6.1%}  {token}" for token, probability in tokens]
                for tokens in zip(*masks)
            ]
            shared.print_table(rows, columns, title=text)
