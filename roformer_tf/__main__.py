"""The command line: `python -m roformer_tf COMMAND`."""

import argparse
import importlib
import sys

from roformer_tf import startup

# Each is a module of `roformer_tf.cli`, see there.
COMMANDS = (
    "inspect",
    "convert",
    "export",
    "fill-mask",
    "generate",
    "similar",
    "embed",
    "translate",
    "plan",
    "plot-run",
    "pretrain",
    "decay",
)


def make_parser():
    """The parser of the whole command line, an `argparse.ArgumentParser`."""
    parser = argparse.ArgumentParser(
        prog="python -m roformer_tf", description="RoFormer for TensorFlow and Keras 3."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"roformer_tf.cli.{name.replace('-', '_')}")
        module.add_parser(subparsers)
    return parser


def main(arguments=None):
    """Runs the command line.

    Args:
        arguments: list of str, `sys.argv[1:]` by default.

    Returns:
        Exit status of the command; 2, with a message on standard error, for wrong arguments and what they name.
    """
    args = make_parser().parse_args(arguments)
    startup.start()
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
