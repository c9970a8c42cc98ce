"""`python -m roformer_tf fill-mask MODEL TEXT…`: what a masked language model writes for `[MASK]`."""

from roformer_tf.cli.text_arguments import add_json, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "fill-mask",
        help="fill [MASK] in texts",
        description="Prints the most probable tokens for each [MASK] in the texts.",
    )
    parser.add_argument(
        "model", help="original folder, folder written by save_to_preset, or .keras file"
    )
    add_texts(parser, "今天[MASK]气很好")
    parser.add_argument("--top-k", type=int, default=5, help="tokens for each [MASK] (5)")
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")
    add_json(parser, "the tokens of each [MASK], with their probabilities")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when every text has its masks filled."""
    from roformer_tf.cli.model_source import load_model
    from roformer_tf.models import fill_mask

    texts = read_texts(args)
    task, _ = load_model(args.model, "masked_lm", args.dtype)
    filled = fill_mask(task, texts, top_k=args.top_k)
    mask_token = task.preprocessor.tokenizer.mask_token
    for text, masks in zip(texts, filled):
        if not masks:
            raise ValueError(
                f"There is no {mask_token} in {text!r}: write it where a token is wanted."
            )
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
