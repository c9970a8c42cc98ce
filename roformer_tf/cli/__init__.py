"""One module per command of `python -m roformer_tf`.

A module's docstring describes the command. `HELP` is its line in the list of commands,
`add_arguments(parser)` adds its arguments, and `run(args)` returns the exit status if it is not 0.
Imports of Keras and TensorFlow stay inside `run`, so that `--help` answers at once.
"""
