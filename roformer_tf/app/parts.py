"""What all pages share: Gradio, the texts that are typed, and how answers are shown."""

import functools
import html
import inspect
import os

# Tableau's ten: told apart by most readers, on a light and on a dark page.
COLOURS = "#4e79a7 #f28e2b #59a14f #e15759 #b07aa1 #76b7b2 #edc948 #ff9da7 #9c755f #bab0ac".split()


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


def answer_on(gr, triggers, function, inputs, outputs):
    """Calls a function when a button is pressed, and shows what it returns or yields.

    If this package refuses an input, the page shows the error as a message. One call runs at a
    time, because all pages share the model.

    Args:
        gr: the module `gradio`.
        triggers: list of Gradio's events, such as `button.click`.
        function: function, or generator function, of the values of `inputs`.
        inputs, outputs: lists of Gradio's components.

    Returns:
        Gradio's dependency, for `cancels`.
    """

    @functools.wraps(function)
    def guarded(*values):
        try:
            result = function(*values)
            if inspect.isgenerator(result):
                yield from result
            else:
                yield result
        except (ValueError, TypeError) as error:  # of this package, for an input that it refuses
            gr.Warning(html.escape(str(error)))
            yield [None] * len(outputs) if len(outputs) > 1 else None

    return gr.on(
        triggers,
        guarded,
        inputs,
        outputs,
        concurrency_id="model",
        concurrency_limit=1,
        show_progress="minimal",
        api_visibility="private",
    )


def example_texts(task, chinese, english):
    """Returns the Chinese texts if the model's vocabulary has Chinese characters."""
    return chinese if "的" in task.preprocessor.tokenizer.get_vocabulary() else english


def check_texts(**texts):
    """Raises `ValueError` if one of the texts is blank.

    Example:

    >>> from roformer_tf.app.parts import check_texts
    >>> check_texts(question=" ")
    Traceback (most recent call last):
    ValueError: Type a question first. Received: ' '
    """
    for name, text in texts.items():
        if not text.strip():
            raise ValueError(f"Type a {name} first. Received: {text!r}")


def lines_of(text, name, at_least=1):
    r"""Returns the lines of a text that are not blank.

    Raises:
        ValueError: If there are fewer than `at_least`.

    Example:

    >>> from roformer_tf.app.parts import lines_of
    >>> lines_of("Paris\n\n Rome", "choices")
    ['Paris', 'Rome']
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < at_least:
        raise ValueError(
            f"Type at least {at_least} {name}, one on each line. Received: {len(lines)} lines"
        )
    return lines


def bars(rows, title=None, number="{:.1%}".format):
    """Returns HTML that shows each answer with a bar.

    Args:
        rows: list of `(answer, value)` or `(answer, value, note)`, whose values from 0 to 1 are the
            lengths of the bars.
        title: str. A line above the bars.
        number: function from a value to the text that is shown beside its bar.

    Example:

    >>> from roformer_tf.app.parts import bars
    >>> page = bars([("天", 0.78), ("<b>", 0.01)], title="mask 1")
    >>> "78.0%" in page, "&lt;b&gt;" in page
    (True, True)
    """
    lines = [] if title is None else [f"<div class='bars-title'>{html.escape(title)}</div>"]
    for answer, value, *notes in rows:
        note = "".join(f"<span class='bar-note'>{html.escape(note)}</span>" for note in notes)
        width = 100 * min(max(value, 0.0), 1.0)
        lines.append(
            f"<div class='bar'><span class='bar-answer'>{html.escape(answer)}{note}</span>"
            f"<span class='bar-value'>{number(value)}</span>"
            f"<span class='bar-track'><span style='width: {width:.1f}%'></span></span></div>"
        )
    return f"<div class='bars'>{''.join(lines)}</div>"


def marked_text(text, spans):
    """Returns what Gradio's `HighlightedText` shows, with spans `(start, end, name, ...)`.

    Example:

    >>> from roformer_tf.app.parts import marked_text
    >>> marked_text("我在北京", [(2, 4, "LOC", 0.9)])["entities"]
    [{'start': 2, 'end': 4, 'entity': 'LOC'}]
    """
    entities = [{"start": start, "end": end, "entity": name} for start, end, name, *_ in spans]
    return {"text": text, "entities": entities}
