"""A page in the browser to try a model, with Gradio.

`app.py` says which pages a model has. Each page is a file with a function that computes the
answer, and `build`, which makes the page.
"""

from roformer_tf.app.app import launch, make_app

__all__ = ["launch", "make_app"]
