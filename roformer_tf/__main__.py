"""The command line: `python -m roformer_tf COMMAND`."""

import argparse
import contextlib
import importlib
import os
import sys

from roformer_tf import startup

# Each is a module of `roformer_tf.cli`.
COMMANDS = (
    "inspect",
    "convert",
    "export",
    "fill-mask",
    "classify",
    "generate",
    "similar",
    "embed",
    "translate",
    "app",
    "plan",
    "plot-run",
    "pretrain",
    "train-tasks",
    "decay",
)


class CommandParser(argparse.ArgumentParser):
    """Parses a command whose texts may stand before, between and after its options."""

    _is_parsing = False

    def parse_known_args(self, args=None, namespace=None):
        takes_texts = any(action.nargs == "*" for action in self._get_positional_actions())
        if self._is_parsing or not takes_texts:  # what follows calls this method
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False


def make_parser():
    """Returns the `argparse.ArgumentParser` of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m roformer_tf", description="RoFormer for TensorFlow and Keras 3."
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    for name in COMMANDS:
        module = importlib.import_module(f"roformer_tf.cli.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments=None):
    """Runs the command line with a list of arguments, by default `sys.argv[1:]`.

    Returns the exit status of the command: 2, with a message on standard error, if an argument or a
    file is wrong; 130 after Ctrl-C; 141 (1 for tables) if the reader of the output has ended.
    """
    args = make_parser().parse_args(arguments)
    startup.start()
    try:
        return args.run(args) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as with `| head`
        with contextlib.suppress(OSError):  # Python flushes the output when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if args.debug:
            raise
        expected = isinstance(error, ValueError | TypeError | OSError | ImportError)
        kind = "" if expected else f"{type(error).__name__}: "
        hint = "" if expected else " Run it with --debug before the command for the traceback."
        print(f"error: {kind}{error}{hint}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
