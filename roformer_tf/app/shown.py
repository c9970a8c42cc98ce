"""How the pages show answers: with bars in HTML, or as spans of a text in colours."""

import html

# Tableau's ten: told apart by most readers, on a light and on a dark page.
COLOURS = "#4e79a7 #f28e2b #59a14f #e15759 #b07aa1 #76b7b2 #edc948 #ff9da7 #9c755f #bab0ac".split()


def bars(rows, title=None, number="{:.1%}".format):
    """Returns HTML that shows each answer with a bar.

    Args:
        rows: list of `(answer, value)` or `(answer, value, note)`, whose values from 0 to 1 are the
            lengths of the bars.
        title: str. A line above the bars.
        number: function from a value to the text that is shown beside its bar.

    Returns:
        str.

    Example:

    >>> from roformer_tf.app.shown import bars
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
    """Returns what Gradio's `HighlightedText` shows.

    Args:
        text: str.
        spans: list of `(start, end, name, ...)` that do not overlap. The name gives the colour.

    Example:

    >>> from roformer_tf.app.shown import marked_text
    >>> marked_text("我在北京", [(2, 4, "LOC", 0.9)])["entities"]
    [{'start': 2, 'end': 4, 'entity': 'LOC'}]
    """
    entities = [{"start": start, "end": end, "entity": name} for start, end, name, *_ in spans]
    return {"text": text, "entities": entities}
