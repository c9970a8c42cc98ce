"""`python -m roformer_tf similar MODEL TEXT…`: texts that say the same."""

from roformer_tf.cli.text_arguments import add_json, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "similar",
        help="texts that say the same, by a RoFormer-Sim",
        description="Generates texts at random, and prints those that are most similar to the given ones, with the "
        "cosine.",
    )
    parser.add_argument(
        "model",
        help="original RoFormer-Sim folder, folder written by save_to_preset, or .keras file",
    )
    add_texts(parser, "广州和深圳哪个好？")
    parser.add_argument("-n", type=int, default=100, help="texts to generate for each (100)")
    parser.add_argument("-k", type=int, default=20, help="texts to keep (20)")
    parser.add_argument("--top-p", type=float, default=0.95, help="of the sampling (0.95)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling (1)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same texts")
    parser.add_argument(
        "--max-length", type=int, default=128, help="most tokens of a text and its answer (128)"
    )
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")
    add_json(parser, "those that say the same, with their cosines")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when texts were generated."""
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
        if not similar:  # a table without rows would not even show its title
            table.add_row("–", Text("no other text was generated; a larger -n gives more"))
        for other, similarity in similar:
            table.add_row(f"{similarity:.3f}", Text(other))
        console.print(table)
