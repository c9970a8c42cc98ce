"""The page of a multiple choice model: the probabilities of the choices."""

from roformer_tf.app.parts import answer_on, bars, check_texts, example_texts, lines_of

TITLE = "Choose"


def choose(task, question, choices, context=""):
    """Returns the lines of `choices` with their probabilities, `(choice, probability)`, best first.

    Raises:
        ValueError: If there is no question, or there are fewer than two choices; see also
            `RoFormerMultipleChoice.predict`.
    """
    check_texts(question=question)
    x = {"question": [question], "choices": [lines_of(choices, "choices", at_least=2)]}
    if context.strip():
        x["context"] = [context]
    return [(choice, share) for _, choice, share in task.predict(x, verbose=0)[0]]


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    context, question, *choices = example_texts(
        task,
        ["张三在上海，李四在天津。", "李四在哪里？", "上海", "天津", "北京"],
        ["Ada was born in London in 1815.", "Where was she born?", "Paris", "London", "Rome"],
    )
    with gr.Row():
        with gr.Column():
            context = gr.Textbox(context, label="Context, if the question has one", lines=3)
            question = gr.Textbox(question, label="Question")
            choices = gr.Textbox("\n".join(choices), label="Choices, one on each line", lines=4)
            button = gr.Button("Choose", variant="primary")
        with gr.Column():
            shown = gr.HTML()

    def answer(question, choices, context):
        return bars(choose(task, question, choices, context))

    answer_on(gr, [button.click, question.submit], answer, [question, choices, context], [shown])
