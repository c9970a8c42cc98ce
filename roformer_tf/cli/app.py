"""Opens a page on this machine to try a model in the browser: it fills masks, classifies, colours
entities, answers, chooses, compares sentences, generates or translates, as the model can.
"""

from pathlib import Path

from roformer_tf.cli import shared

HELP = "try a model in the browser"


def add_arguments(parser):
    shared.add_model(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (%(default)s); 0.0.0.0 lets other machines in",
    )
    parser.add_argument("--port", type=int, help="the first free one from 7860 on")
    parser.add_argument(
        "--share", action="store_true", help="open a public address through Gradio's servers too"
    )


def run(args):
    from roformer_tf.app import launch, make_app
    from roformer_tf.app.events import import_gradio
    from roformer_tf.cli.model_source import load_model

    import_gradio()  # fail before the slow part
    model, tokenizer = load_model(args.model, dtype=args.dtype)
    app = make_app(model, Path(args.model).resolve().name, tokenizer)
    address = launch(app, args.host, args.port, args.share)
    print(f"Open {address} in a browser. Ctrl-C ends the app.", flush=True)
    app.block_thread()
    return 0
