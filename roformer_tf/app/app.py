"""Puts the pages of a model together, and serves them."""

import html
import types

import roformer_tf
from roformer_tf.app import (
    answers,
    choices,
    classify,
    entities,
    fill_mask,
    generate,
    paraphrases,
    similarity,
    translate,
)
from roformer_tf.app.parts import import_gradio

# The first class that a model is an instance of gives its pages.
PAGES = (
    ("RoFormerMaskedLM", (fill_mask, similarity)),
    ("RoFormerTextClassifier", (classify,)),
    ("RoFormerTokenClassifier", (entities,)),
    ("RoFormerQuestionAnswering", (answers,)),
    ("RoFormerMultipleChoice", (choices,)),
    ("RoFormerSim", (similarity, paraphrases)),
    ("RoFormerSimClassifier", (similarity,)),
    ("RoFormerCausalLM", (generate,)),
    ("RoFormerSeq2SeqLM", (translate,)),
    ("RoFormerBackbone", (similarity,)),
)
CSS = """
.gradio-container { width: 100%; max-width: 1100px !important; margin: auto !important; }
.app-title h1 { font-size: 1.6em; font-weight: 650; margin: 0.4em 0 0; overflow-wrap: anywhere; }
.app-title p { opacity: 0.7; margin: 0.2em 0 0.4em; }
.dark .token.highlighted { color: white !important; }
.bars { display: grid; gap: 0.55em; margin: 0.2em 0 1em; }
.bars-title { font-weight: 600; }
.bar { display: grid; grid-template-columns: 1fr auto; gap: 0.15em 1em; }
.bar-answer { overflow-wrap: anywhere; }
.bar-note { opacity: 0.7; font-size: 0.85em; margin-left: 0.6em; }
.bar-value { font-variant-numeric: tabular-nums; }
.bar-track { grid-column: 1 / -1; height: 6px; border-radius: 3px; overflow: hidden;
  background: var(--border-color-primary); }
.bar-track > span { display: block; height: 100%; border-radius: 3px; background: var(--primary-600); }
"""
FONT = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans CJK SC", "sans-serif")
MONO = ("ui-monospace", "Consolas", "monospace")


def make_app(model, name, tokenizer=None):
    """Makes the app of a model: a page for each thing that it can do.

    Args:
        model: a task of this package with a preprocessor, or a `RoFormerBackbone`.
        name: str. Title of the app.
        tokenizer: the tokenizer of a backbone.

    Returns:
        A `gradio.Blocks`, for `launch`.

    Raises:
        ImportError: If Gradio is not installed.
        ValueError: If the model is of another class, or has no preprocessor.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.app import launch, make_app
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    >>> app = make_app(masked_lm, "My model")  # doctest: +SKIP
    >>> launch(app)  # doctest: +SKIP
    'http://127.0.0.1:7860/'
    """
    gr = import_gradio()
    pages, task = pages_of(model), model
    if isinstance(model, roformer_tf.RoFormerBackbone):
        preprocessor = tokenizer and roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
        # under the names that they have in a task
        task = types.SimpleNamespace(backbone=model, preprocessor=preprocessor)
    if task.preprocessor is None:
        raise ValueError(
            "The app takes raw strings, which need a tokenizer. "
            f"Received: a {type(model).__name__} without one"
        )
    backbone = task.backbone
    summary = (
        f"{type(model).__name__} · {backbone.num_layers} layers of {backbone.hidden_dim} · "
        f"{model.count_params():,} weights · {backbone.vocabulary_size:,} tokens"
    )
    with gr.Blocks(title=name, analytics_enabled=False) as app:
        gr.HTML(f"<div class='app-title'><h1>{html.escape(name)}</h1><p>{summary}</p></div>")
        with gr.Tabs():
            for page in pages:
                with gr.Tab(page.TITLE):
                    page.build(gr, task)
    return app


def pages_of(model):
    """Returns the pages of a task or backbone of this package, as a tuple of modules.

    Raises:
        ValueError: If `model` is another object.
    """
    for name, pages in PAGES:
        if isinstance(model, getattr(roformer_tf, name)):
            return pages
    raise ValueError(
        f"Expected one of {', '.join(name for name, _ in PAGES)}. Received: {type(model).__name__}"
    )


def launch(app, host="127.0.0.1", port=None, share=False):
    """Serves an app in the background.

    Args:
        app: what `make_app` returned.
        host: str. Address to listen on. The default can be reached from this machine only.
        port: int. By default the first free port from 7860 on.
        share: bool. Whether to open a public address through Gradio's servers.

    Returns:
        The app's address.

    Raises:
        OSError: If the port is taken or does not exist, or this machine has no such address.

    Example:

    >>> from roformer_tf.app import launch, make_app
    >>> address = launch(make_app(model, "My model"), port=8000)  # doctest: +SKIP
    """
    gr = import_gradio()
    theme = gr.themes.Default(primary_hue="teal", font=FONT, font_mono=MONO)
    try:
        _, local, public = app.launch(
            server_name=host,
            server_port=port,
            share=share,
            theme=theme,
            css=CSS,
            footer_links=[],
            run_history=False,  # what is typed stays in the page
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            inbrowser=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except (OSError, OverflowError) as error:  # Gradio's speaks of its own arguments
        raise OSError(
            f"The app cannot listen on {host}, {'any port' if port is None else f'port {port}'}. "
            "Pass another `port` (--port) or leave it out, and a `host` (--host) of this machine."
        ) from error
    return public or local
