r"""The names of bert4keras 0.11.5 on Keras 3.

A script runs with its import lines changed:

    sed -E -i 's/^( *from) (bert4keras|keras)\b/\1 roformer_tf.compat.\2/' script.py

docs/moving_from_bert4keras.md says what is offered, and how this library does each part itself.
"""
