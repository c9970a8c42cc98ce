"""The page of vectors: sentences by their similarity to one of them."""

from roformer_tf.app.parts import answer_on, bars, check_texts, example_texts, lines_of
from roformer_tf.models import RoFormerSim, RoFormerSimClassifier
from roformer_tf.models.labels import ranked
from roformer_tf.models.prediction import text_vectors

TITLE = "Compare sentences"


def compare(task, sentence, others):
    """Returns `(other, cosine)` for each line of `others`, the most similar first.

    Raises:
        ValueError: If there is no sentence or nothing to compare with.
    """
    check_texts(sentence=sentence)
    others = lines_of(others, "sentences to compare with")
    texts = [sentence, *others]
    pooling = "pooler" if learned_to_compare(task) else "mean"
    vectors = text_vectors(task.backbone, task.preprocessor, texts, pooling)
    return ranked(others, vectors[1:] @ vectors[0])


def learned_to_compare(task):
    """Returns whether a model was trained to have similar vectors for similar texts."""
    return isinstance(task, RoFormerSim | RoFormerSimClassifier)


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    sentence, *others = example_texts(
        task,
        ["今天天气很好。", "天气真不错。", "今天下雨了。", "我喜欢喝咖啡。"],
        [
            "What is the best way to lose weight?",
            "How can I lose weight quickly?",
            "What is the best way to learn English?",
            "Who was the first man on the moon?",
        ],
    )
    if not learned_to_compare(task):
        gr.HTML(
            "<p>This model was not trained to compare sentences: the numbers are the cosines of "
            "the means of its token vectors. Trust their order more than their size.</p>"
        )
    with gr.Row():
        with gr.Column():
            sentence = gr.Textbox(sentence, label="Sentence")
            others = gr.Textbox("\n".join(others), label="Compare with, one on each line", lines=6)
            button = gr.Button("Compare", variant="primary")
        with gr.Column():
            shown = gr.HTML()

    def answer(sentence, others):
        return bars(compare(task, sentence, others), number="{:.3f}".format)

    answer_on(gr, [button.click, sentence.submit], answer, [sentence, others], [shown])
