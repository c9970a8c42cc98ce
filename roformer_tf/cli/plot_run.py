"""Plots loss, accuracy and learning rate of a pretraining run over its tokens, with the stages
shaded. It works while the run is in progress.
"""

HELP = "plot the curves of a pretraining run"


def add_arguments(parser):
    parser.add_argument("folder", help="folder of the run, with its log.csv")
    parser.add_argument(
        "--output",
        help="picture to write, .png or .svg, or both without a suffix (default: run.png and "
        "run.svg in FOLDER)",
    )


def run(args):
    from roformer_tf.pretraining.plot import plot_run

    for path in plot_run(args.folder, args.output):
        print(path)
