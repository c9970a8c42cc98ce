"""Trains a model from raw text through the stages of a settings file. If it is stopped, run
the same command again to resume from the last checkpoint. Uses all visible GPUs, and several
machines if TF_CONFIG names them.
"""

HELP = "train a model from raw text, in stages of different lengths"


def add_arguments(parser, example="examples/stages_*.toml"):
    parser.add_argument("settings", help=f"settings file (TOML); see {example}")
    parser.add_argument("--output", required=True, help="folder of the run")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="FOLDER",
        help="start from this model: an original or Hugging Face checkpoint, a preset, a finished "
        "stage of another run, a .zip file of one, or hf://user/name[@revision]. Replaces "
        "model.checkpoint and, as the model brings its own, model.vocabulary and the sizes",
    )
    parser.add_argument(
        "--files", nargs="+", metavar="FILE", help="text files or patterns; replaces data.files"
    )
    parser.add_argument("--seed", type=int, help="replaces run.seed")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="replaces another setting (not of stages), such as model.position_scheme=learned; may "
        "be repeated. Paths are relative to the current folder, those in the file to the file",
    )
    parser.add_argument(
        "--service",
        metavar="ADDRESS",
        help="tf.data service that makes the batches, such as grpc://host:5050; replaces "
        "data.service",
    )
    parser.add_argument(
        "--cpu-replicas",
        type=int,
        metavar="N",
        help="replicas on logical CPU devices, for a trial",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="resume although the settings have changed since the last checkpoint",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args):
    """Runs the command.

    Returns:
        Exit status: 0 if all stages are done, 128 + the number of the signal that ended the run, 3
        after too many steps with NaN, 4 if another worker was lost or the tf.data service cannot
        be reached.
    """
    from roformer_tf.pretraining import PretrainingSettings, pretrain

    return run_training(args, PretrainingSettings, pretrain)


def run_training(args, settings_class, train):
    """Trains by a function such as `pretrain`; returns the exit status."""
    import sys

    from roformer_tf.pretraining import choose_strategy
    from roformer_tf.pretraining.text_files import absolute_pattern

    settings = settings_class.from_file(args.settings)
    if args.start:
        settings = settings.starting_from(args.start)
    values = dict(map(_key_and_value, args.set))
    if args.files:
        values["data.files"] = [absolute_pattern("", name) for name in args.files]
    if args.service:
        values["data.service"] = args.service
    if args.seed is not None:
        values["run.seed"] = args.seed
    settings = settings.with_values(values)
    try:
        result = train(
            settings,
            args.output,
            strategy=choose_strategy(args.cpu_replicas),
            verbose=not args.quiet,
            allow_changes=args.allow_changes,
        )
    except SystemExit:  # a signal, while nothing was unsaved
        print("Stopped. The same command resumes from here.", file=sys.stderr)
        raise
    except (FloatingPointError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, FloatingPointError) else 4
    if not result.completed:
        print("Stopped and saved. The same command resumes from here.", file=sys.stderr)
        return 128 + result.signal
    return 0


def _key_and_value(text):
    """Splits `"model.num_layers=3"` into `("model.num_layers", 3)`: a TOML value, or a string."""
    import tomllib

    key, _, value = text.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
