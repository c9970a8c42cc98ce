"""The page of a token classifier: the entities, coloured in the text."""

from roformer_tf.app.parts import COLOURS, answer_on, bars, check_texts, example_texts, marked_text

TITLE = "Find entities"


def find(task, text):
    """Returns the entities of a text as `(start, end, type, score)`, from left to right.

    Raises:
        ValueError: If there is no text; see also `RoFormerTokenClassifier.predict`.
    """
    check_texts(text=text)
    return sorted(task.predict([text], verbose=0)[0])


def surest(entities):
    """Returns the entities that overlap no kept entity with a higher score, from left to right.

    Example:

    >>> from roformer_tf.app.entities import surest
    >>> surest([(0, 4, "ORG", 0.9), (0, 2, "LOC", 0.8), (5, 6, "PER", 0.7)])
    [(0, 4, 'ORG', 0.9), (5, 6, 'PER', 0.7)]
    """
    kept = []
    for entity in sorted(entities, key=lambda entity: -entity[3]):
        if all(entity[1] <= other[0] or other[1] <= entity[0] for other in kept):
            kept.append(entity)
    return sorted(kept)


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    texts = example_texts(
        task,
        ["张三在上海的复旦大学读书，李四去了天津。", "王五住在广州。"],
        ["Ada Lovelace was born in London.", "Two teams from Kenya won in Berlin."],
    )
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(task.labels)}
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label="Text", lines=4)
            button = gr.Button("Find", variant="primary")
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            marked = gr.HighlightedText(label="Entities", color_map=colours, interactive=False)
            shown = gr.HTML()

    def answer(text):
        entities = find(task, text)
        rows = [(text[s:e], score, f"{label} {s}–{e}") for s, e, label, score in entities]
        shown = bars(rows) if rows else "<p>No entity was found.</p>"
        return marked_text(text, surest(entities)), shown

    answer_on(gr, [button.click, text.submit], answer, [text], [marked, shown])
