"""Serves a page on this machine to try a model in the browser. Depending on the model, it fills
masks, classifies, finds entities, answers questions, chooses, compares sentences, paraphrases,
generates or translates.
"""

from pathlib import Path

from roformer_tf.cli import shared

HELP = "try a model in the browser"


def add_arguments(parser):
    shared.add_model(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (%(default)s); 0.0.0.0 lets other machines in",
    )
    parser.add_argument(
        "--port", type=int, help="port to listen on; by default the first free one from 7860 on"
    )
    parser.add_argument(
        "--share", action="store_true", help="also open a public address through Gradio's servers"
    )


def run(args):
    from roformer_tf.app import launch, make_app
    from roformer_tf.app.parts import import_gradio

    import_gradio()  # fail before the slow part
    model, preprocessor = shared.load_model(args.model, dtype=args.dtype)
    tokenizer = getattr(preprocessor, "tokenizer", None)
    app = make_app(model, Path(args.model).resolve().name, tokenizer)
    address = launch(app, args.host, args.port, args.share)
    print(f"Open {address} in a browser. Ctrl-C ends the app.", flush=True)
    app.block_thread()
