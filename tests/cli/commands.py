"""How the tests call a command."""

from roformer_tf.__main__ import main


def run(*arguments):
    """Its exit status; paths and numbers become text."""
    return main([str(argument) for argument in arguments])
