"""`python -m roformer_tf similar MODEL TEXT…`: paraphrases of texts."""

from roformer_tf.cli.arguments import add_json, add_model, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "similar",
        help="generate paraphrases with RoFormer-Sim",
        description="Samples candidates for each text and prints the most similar ones with their cosine similarity.",
    )
    add_model(parser, "original RoFormer-Sim folder, folder written by save_to_preset")
    add_texts(parser, "广州和深圳哪个好？")
    parser.add_argument("-n", type=int, default=100, help="candidates per text (100)")
    parser.add_argument("-k", type=int, default=20, help="paraphrases to keep (20)")
    parser.add_argument("--top-p", type=float, default=0.95, help="nucleus size (0.95)")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (1)")
    parser.add_argument("--seed", type=int, help="seed of the sampling")
    parser.add_argument(
        "--max-length",
        type=int,
        default=128,
        help="maximum tokens of a text and its paraphrase (128)",
    )
    add_json(parser, "its paraphrases with their similarity")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command and returns the exit status."""
    import keras_hub

    from roformer_tf.cli.generate import check_sampling
    from roformer_tf.cli.model_source import load_model

    texts = read_texts(args)
    check_sampling(args.temperature, args.top_p)
    sim, _ = load_model(args.model, "sim", args.dtype)
    sim.compile(
        sampler=keras_hub.samplers.TopPSampler(
            p=args.top_p, temperature=args.temperature, seed=args.seed
        )
    )
    found = sim.similar(texts, n=args.n, k=args.k, max_length=args.max_length)
    if args.json:
        for text, similar in zip(texts, found):
            answers = [{"text": t, "similarity": s} for t, s in similar]
            print_json({"text": text, "similar": answers})
    else:
        _print(texts, found)
    return 0


def _print(texts, found):
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for text, similar in zip(texts, found):
        table = Table(title=Text(text), title_justify="left", show_header=False)
        if not similar:  # rich shows no title above an empty table
            table.add_row("–", Text("only the text itself was generated; try a larger -n"))
        for other, similarity in similar:
            table.add_row(f"{similarity:.3f}", Text(other))
        console.print(table)
