"""Floor 5: one module per command of `python -m roformer_tf`.

A command is a module with `add_parser(subparsers)` and `run(args)`; `run` returns the exit status. Heavy imports stay
inside `run`, so that `--help` answers at once.
"""
