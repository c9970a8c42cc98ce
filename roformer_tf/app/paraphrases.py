"""The page of RoFormer-Sim's paraphrases."""

from roformer_tf.app.generate import streaming
from roformer_tf.app.parts import answer_on, bars, check_texts, example_texts

TITLE = "Paraphrase"


def paraphrase(task, text, n=50, k=10, top_p=0.95, temperature=1.0, seed=0):
    """Returns up to `k` paraphrases, `(text, cosine)`, the most similar of `n` that are sampled.

    Raises:
        ValueError: If there is no text; see also `RoFormerSim.similar`.
    """
    check_texts(text=text)
    task = streaming(task)  # new settings of its sampler need no new graph
    task.sampler.reset(top_p, temperature, seed)
    return task.similar(text, n=n, k=k)


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    task = streaming(task)
    texts = example_texts(
        task,
        ["广州和深圳哪个好？", "怎么学习英语？"],
        ["What is the best way to lose weight?", "How do I learn to cook?"],
    )
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label="Sentence")
            button = gr.Button("Paraphrase", variant="primary")
            with gr.Accordion("Settings", open=False):
                n = gr.Slider(1, 200, 50, step=1, label="Texts to sample")
                k = gr.Slider(1, 50, 10, step=1, label="Texts to keep")
                top_p = gr.Slider(0.05, 1, 0.8, step=0.05, label="Top-p")
                temperature = gr.Slider(0.1, 2, 0.6, step=0.1, label="Temperature")
                seed = gr.Number(1, label="Seed", precision=0)
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            shown = gr.HTML()

    def answer(text, n, k, *sampling):
        found = paraphrase(task, text, int(n), int(k), *sampling)
        if not found:
            return "<p>Only the sentence itself was generated: sample more texts.</p>"
        return bars(found, number="{:.3f}".format)

    inputs = [text, n, k, top_p, temperature, seed]
    answer_on(gr, [button.click, text.submit], answer, inputs, [shown])
