"""How the pages use Gradio: its import, and what a press of a button does."""

import functools
import html
import inspect
import os

REFUSALS = (ValueError, TypeError)  # raised by this package for an input that it cannot take


def import_gradio():
    """Returns the module `gradio`, which then reports nothing to its makers.

    Raises:
        ImportError: If Gradio is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise ImportError(
            'The app needs Gradio: pip install "roformer-tf[app]", or pip install gradio.'
        ) from error
    return gradio


def answer_on(triggers, function, inputs, outputs):
    """Calls a function when a button is pressed, and shows what it returns or yields.

    If this package refuses an input, the page shows the error as a message. One call runs at a
    time, because all pages share the model.

    Args:
        triggers: list of Gradio's events, such as `button.click`.
        function: function, or generator function, of the values of `inputs`.
        inputs: list of Gradio's components.
        outputs: list of Gradio's components.

    Returns:
        Gradio's dependency, for `cancels`.
    """
    nothing = [None] * len(outputs) if len(outputs) > 1 else None

    # Gradio looks at a function to know whether it yields.
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def guarded(*values):
            try:
                yield from function(*values)
            except REFUSALS as error:
                show_refusal(error)
                yield nothing

    else:

        @functools.wraps(function)
        def guarded(*values):
            try:
                return function(*values)
            except REFUSALS as error:
                show_refusal(error)
                return nothing

    return import_gradio().on(
        triggers,
        guarded,
        inputs,
        outputs,
        concurrency_id="model",
        concurrency_limit=1,
        show_progress="minimal",
        api_visibility="private",
    )


def show_refusal(error):
    """Shows why an input is refused, as a message in the page."""
    import_gradio().Warning(html.escape(str(error)))
