"""Prints the most probable classes of texts, by a classifier that was trained and saved."""

from roformer_tf.cli import shared

HELP = "classify texts"


def add_arguments(parser):
    shared.add_model(parser, "folder written by save_to_preset")
    shared.add_texts(parser, "房间很干净")
    parser.add_argument("--top-k", type=int, help="classes per text (all)")
    shared.add_json(parser, "its classes with their probabilities")


@shared.graphs_for_many
def run(args):
    windows = shared.read_texts(args)
    task, _ = shared.load_model(args.model, "classifier", args.dtype)
    for texts in windows:
        for text, classes in zip(texts, task.classify(texts, top_k=args.top_k)):
            if args.json:
                classes = [{"label": label, "probability": p} for label, p in classes]
                shared.print_json({"text": text, "classes": classes})
                continue
            rows = [[f"{probability:6.1%}  {label}"] for label, probability in classes]
            shared.print_table(rows, title=text)
