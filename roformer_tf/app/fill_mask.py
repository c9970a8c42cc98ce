"""The page of a masked language model: the tokens for each [MASK]."""

from roformer_tf.app.parts import COLOURS, answer_on, bars, example_texts
from roformer_tf.models import fill_mask

TITLE = "Fill masks"


def fill(task, text, top_k=5):
    """Fills each mask of a text.

    Returns:
        Tuple of the text with its masks filled, as a list of `(piece, name)` whose name is `None`
        outside of masks; and a dictionary from each name to its list of `(token, probability)`.

    Raises:
        ValueError: If there is no mask; see also `fill_mask`.
    """
    mask_token = task.preprocessor.tokenizer.mask_token
    masks = fill_mask(task, text, top_k=top_k)
    if not masks:
        raise ValueError(
            f"The text must have at least one {mask_token}, which stands for the token to guess. "
            f"Received: {text!r}"
        )
    names = [f"mask {i}" for i in range(1, len(masks) + 1)]
    between = text.split(mask_token)
    pieces = [(between[0], None)]
    for name, tokens, after in zip(names, masks, between[1:], strict=True):
        pieces += [(tokens[0][0].removeprefix("##"), name), (after, None)]
    return [piece for piece in pieces if piece[0]], dict(zip(names, masks, strict=True))


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    mask_token = task.preprocessor.tokenizer.mask_token
    texts = example_texts(
        task,
        ["房间很[MASK]，服务也很[MASK]。", "这家酒店的[MASK]很干净。", "北京是中国的[MASK]。"],
        ["The capital of [MASK] is Paris.", "The food was [MASK] and the staff [MASK]."],
    )
    texts = [text.replace("[MASK]", mask_token) for text in texts]
    colours = {f"mask {i}": colour for i, colour in enumerate(COLOURS, start=1)}
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label=f"Text with {mask_token}", lines=3)
            top_k = gr.Slider(1, 20, 5, step=1, label="Tokens for each mask")
            button = gr.Button("Fill", variant="primary")
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            filled = gr.HighlightedText(
                label="With the most probable tokens", color_map=colours, interactive=False
            )
            shown = gr.HTML()

    def answer(text, top_k):
        pieces, masks = fill(task, text, int(top_k))
        return pieces, "".join(bars(tokens, title=name) for name, tokens in masks.items())

    answer_on(gr, [button.click, text.submit], answer, [text, top_k], [filled, shown])
