"""The page of a causal language model: a text that grows token by token."""

from roformer_tf.app.events import answer_on, import_gradio
from roformer_tf.app.streaming import StreamingSampler, stream
from roformer_tf.app.texts import check_texts, example_texts

TITLE = "Generate"


def generate(task, prompt, max_length=64, top_p=0.9, temperature=1.0, seed=0):
    """Yields the text of a prompt as it grows; see `stream`.

    Raises:
        ValueError: If there is no prompt; see also `RoFormerCausalLM.generate`.
    """
    check_texts(prompt=prompt)
    if not isinstance(task.sampler, StreamingSampler):
        task.compile(sampler=StreamingSampler())
    yield from stream(task, prompt, max_length, top_p, temperature, seed)


def build(task):
    """Adds the page to the Gradio app that is being built."""
    gr = import_gradio()
    texts = example_texts(
        task, ["房间很", "物流很快", "这本书"], ["The room was", "I bought this book"]
    )
    answers = task.backbone.masking == "unilm"  # and does not continue
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label="Source" if answers else "Beginning", lines=3)
            with gr.Row():
                button = gr.Button("Generate", variant="primary")
                stop = gr.Button("Stop")
            with gr.Accordion("Settings", open=False):
                max_length = gr.Slider(
                    4,
                    task.preprocessor.sequence_length,
                    64,
                    step=1,
                    label="Maximum number of tokens",
                )
                top_p = gr.Slider(
                    0, 1, 0.9, step=0.05, label="Top-p; 0 takes the most likely token"
                )
                temperature = gr.Slider(0.1, 2, 0.7, step=0.1, label="Temperature")
                seed = gr.Number(1, label="Seed", precision=0)
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            shown = gr.Textbox(label="Text", lines=10, interactive=False)

    def answer(text, max_length, *sampling):
        yield from generate(task, text, int(max_length), *sampling)

    inputs = [text, max_length, top_p, temperature, seed]
    running = answer_on([button.click, text.submit], answer, inputs, [shown])
    stop.click(None, cancels=[running])
