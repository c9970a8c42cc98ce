"""`python -m roformer_tf fill-mask MODEL TEXT…`: predicts the tokens behind `[MASK]`."""

from roformer_tf.cli.arguments import add_json, add_model, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "fill-mask",
        help="fill [MASK] in texts",
        description="Prints the most probable tokens for each [MASK] in the texts.",
    )
    add_model(parser)
    add_texts(parser, "今天[MASK]气很好")
    parser.add_argument("--top-k", type=int, default=5, help="tokens per [MASK] (5)")
    add_json(parser, "the tokens of each [MASK] with their probabilities")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command and returns the exit status."""
    from roformer_tf.cli.model_source import load_model
    from roformer_tf.models import fill_mask

    texts = read_texts(args)
    task, _ = load_model(args.model, "masked_lm", args.dtype)
    filled = fill_mask(task, texts, top_k=args.top_k)
    mask_token = task.preprocessor.tokenizer.mask_token
    for text, masks in zip(texts, filled):
        if not masks:
            raise ValueError(f"Expected {mask_token} in every text. Received: {text!r}")
    if args.json:
        for text, masks in zip(texts, filled):
            masks = [[{"token": t, "probability": p} for t, p in mask] for mask in masks]
            print_json({"text": text, "masks": masks})
    else:
        _print(texts, filled)
    return 0


def _print(texts, filled):
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for text, masks in zip(texts, filled):
        table = Table(title=Text(text), title_justify="left", show_header=len(masks) > 1)
        for number in range(len(masks)):
            table.add_column(f"mask {number + 1}")
        for row in zip(*masks):
            table.add_row(*(Text(f"{probability:6.1%}  {token}") for token, probability in row))
        console.print(table)
