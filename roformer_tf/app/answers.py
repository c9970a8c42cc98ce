"""The page of a question answering model: the answer, marked in its context."""

from roformer_tf.app.parts import COLOURS, answer_on, bars, check_texts, example_texts, marked_text

TITLE = "Answer questions"


def read(task, question, context, n_best=3, no_answer=False):
    """Returns the best answers as `(start, end, text, score)`.

    Raises:
        ValueError: If a text is blank; see also `RoFormerQuestionAnswering.predict`.
    """
    check_texts(question=question, context=context)
    x = {"question": [question], "context": [context]}
    return task.predict(x, verbose=0, n_best=n_best, no_answer=no_answer)[0]


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    context, *questions = example_texts(
        task,
        ["张三在上海的复旦大学读书，李四去了天津。", "谁去了天津？", "张三在哪里读书？"],
        ["Ada Lovelace was born in London in 1815.", "Where was she born?", "Who was born?"],
    )
    with gr.Row():
        with gr.Column():
            context = gr.Textbox(context, label="Context", lines=6)
            question = gr.Textbox(questions[0], label="Question")
            n_best = gr.Slider(1, 10, 3, step=1, label="Answers")
            no_answer = gr.Checkbox(label="The context may have no answer")
            button = gr.Button("Answer", variant="primary")
            gr.Examples(questions, question, label="Examples")
        with gr.Column():
            marked = gr.HighlightedText(
                label="Best answer in its context",
                color_map={"answer": COLOURS[0]},
                interactive=False,
            )
            shown = gr.HTML()

    def answer(question, context, n_best, no_answer):
        answers = read(task, question, context, int(n_best), no_answer)
        rows = [
            (text, score, f"{start}–{end}") if text else ("no answer", score)
            for start, end, text, score in answers
        ]
        best = [(start, end, "answer") for start, end, text, _ in answers[:1] if text]
        return marked_text(context, best), bars(rows)

    inputs = [question, context, n_best, no_answer]
    answer_on(gr, [button.click, question.submit], answer, inputs, [marked, shown])
