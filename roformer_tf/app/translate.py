"""The page of a translation model."""

from roformer_tf.app.parts import answer_on, lines_of
from roformer_tf.models import translate

TITLE = "Translate"


def translate_lines(task, text):
    """Returns the translation of each line that is not blank, one on each line.

    Raises:
        ValueError: If there is none; see also `roformer_tf.models.translate`.
    """
    return "\n".join(translate(task, lines_of(text, "text")))


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    with gr.Row():
        with gr.Column():
            text = gr.Textbox("Two dogs run in the snow.", label="Texts, one on each line", lines=6)
            button = gr.Button("Translate", variant="primary")
        with gr.Column():
            shown = gr.Textbox(label="Translation", lines=6, interactive=False)
    answer_on(gr, [button.click], lambda text: translate_lines(task, text), [text], [shown])
