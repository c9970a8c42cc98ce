"""Floor 5: one module per command of `python -m roformer_tf`.

A command is a module with `add_parser(subparsers)` and `run(args)`, which returns the exit status. Imports of Keras and
TensorFlow stay inside `run`, so that `--help` answers at once.
"""
