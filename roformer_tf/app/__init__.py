"""Floor 5: a page in the browser to try a model, with Gradio.

`pages.py` says which pages a model has, and each page is a file: a function that answers, and
`build`, which puts it on the page.
"""

from roformer_tf.app.app import launch, make_app

__all__ = ["launch", "make_app"]
