"""The page of a text classifier: the probabilities of the classes."""

from roformer_tf.app.parts import answer_on, bars, check_texts, example_texts
from roformer_tf.models.labels import output_kind

TITLE = "Classify"


def classify(task, text, second=""):
    """Returns the classes of a text, or of a pair, as `(label, probability)`, best first.

    A regression has one row: its score.

    Raises:
        ValueError: If there is no text; see also `RoFormerTextClassifier.classify`.
    """
    check_texts(text=text)
    texts = (text, second) if second.strip() else text
    if output_kind(task.num_classes, task.activation) == "scores":
        listed = ([text], [second]) if second.strip() else [text]
        return [("score", float(task.predict(listed, verbose=0)[0, 0]))]
    return [(str(label), share) for label, share in task.classify(texts)]


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    texts = example_texts(
        task, ["房间很干净，服务周到。", "太差了，不推荐。"], ["A lovely little film.", "Boring."]
    )
    is_regression = output_kind(task.num_classes, task.activation) == "scores"
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label="Text", lines=3)
            second = gr.Textbox(label="Second text, if the model takes pairs", lines=2)
            button = gr.Button("Classify", variant="primary")
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            shown = gr.HTML()

    def answer(text, second):
        number = "{:.3f}".format if is_regression else "{:.1%}".format
        return bars(classify(task, text, second), number=number)

    answer_on(gr, [button.click, text.submit], answer, [text, second], [shown])
