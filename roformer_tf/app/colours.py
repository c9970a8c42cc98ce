"""Spans of a text, in colours."""

# Tableau's ten: told apart by most readers, on a light and on a dark page.
COLOURS = "#4e79a7 #f28e2b #59a14f #e15759 #b07aa1 #76b7b2 #edc948 #ff9da7 #9c755f #bab0ac".split()


def marked_text(text, spans):
    """Returns what Gradio's `HighlightedText` shows.

    Args:
        text: str.
        spans: list of `(start, end, name, ...)` that do not overlap. The name gives the colour.

    Example:

    >>> from roformer_tf.app.colours import marked_text
    >>> marked_text("我在北京", [(2, 4, "LOC", 0.9)])["entities"]
    [{'start': 2, 'end': 4, 'entity': 'LOC'}]
    """
    entities = [{"start": start, "end": end, "entity": name} for start, end, name, *_ in spans]
    return {"text": text, "entities": entities}
