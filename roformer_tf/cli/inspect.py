"""`python -m roformer_tf inspect FOLDER`: says what a checkpoint is."""

import json


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what a checkpoint is",
        description="Says what a checkpoint is: family, application, settings, variables with shapes, what is missing "
        "or unknown, and what was guessed and why.",
    )
    parser.add_argument(
        "path", help="original or Hugging Face folder, or the prefix of a TF1 checkpoint"
    )
    parser.add_argument("--family", help="override the guess: roformer, roformer_v2, bert, nezha")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 if the checkpoint is complete, 1 if not."""
    from roformer_tf.checkpoint import inspect_checkpoint

    report = inspect_checkpoint(args.path, family=args.family)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    else:
        report.print()
    return 0 if report.complete else 1
