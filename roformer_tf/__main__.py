"""The command line: `python -m roformer_tf COMMAND`."""

import argparse
import importlib
import sys

from roformer_tf import startup

# Each is a module of `roformer_tf.cli`.
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
    """Returns the `argparse.ArgumentParser` of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m roformer_tf", description="RoFormer for TensorFlow and Keras 3."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"roformer_tf.cli.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments=None):
    """Runs the command line.

    Args:
        arguments: list of str. Defaults to `sys.argv[1:]`.

    Returns:
        The exit status of the command. It is 2, with a message on standard error, if an argument is
        wrong.
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
