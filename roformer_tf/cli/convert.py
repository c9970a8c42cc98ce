"""`python -m roformer_tf convert SOURCE TARGET`: between the original layout and Hugging Face's."""


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "convert",
        help="convert between the original layout and Hugging Face's",
        description="Converts a RoFormer v1 checkpoint between the original layout (bert_config.json, "
        "bert_model.ckpt.*) and Hugging Face's (config.json, model.safetensors), in either direction.",
    )
    parser.add_argument("source", help="folder in either layout")
    parser.add_argument("target", help="folder to write")
    parser.add_argument(
        "--to", choices=("original", "huggingface"), help="default: the layout that SOURCE is not"
    )
    parser.add_argument("--family", help="override the guess of the family")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when the files are written."""
    from roformer_tf.checkpoint import convert

    report = convert(args.source, args.target, to=args.to, family=args.family)
    print(f"{report.folder}: {len(report.converted)} variables in the {report.layout} layout")
    if report.dropped:
        print(
            f"left out, no place for them there ({len(report.dropped)}): {', '.join(report.dropped)}"
        )
    return 0
