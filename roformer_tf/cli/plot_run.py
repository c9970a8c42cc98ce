"""`python -m roformer_tf plot-run FOLDER`: plots the curves of a pretraining run."""


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "plot-run",
        help="plot the curves of a pretraining run",
        description="Plots loss, accuracy and learning rate of a pretraining run over its tokens, with the stages "
        "shaded. It works while the run is in progress.",
    )
    parser.add_argument("folder", help="folder of the run, with its log.csv")
    parser.add_argument(
        "--output",
        help="picture to write, .png or .svg, or both without a suffix (default: run.png and run.svg in FOLDER)",
    )
    parser.set_defaults(run=run)


def run(args):
    """Runs the command. Returns 0 if the pictures are written."""
    from roformer_tf.pretraining.plot import plot_run

    for path in plot_run(args.folder, args.output):
        print(path)
    return 0
