"""What several commands share: arguments, the model, the texts they read, and how they print."""

import functools
import itertools
import json
import sys
import warnings
from pathlib import Path

WINDOW = 512  # lines read before they are worked on
FEW = 16  # texts that are done sooner without graphs
CLASSES = {
    "classifier": "RoFormerTextClassifier",
    "token_classifier": "RoFormerTokenClassifier",
    "question_answering": "RoFormerQuestionAnswering",
    "multiple_choice": "RoFormerMultipleChoice",
    "masked_lm": "RoFormerMaskedLM",
    "causal_lm": "RoFormerCausalLM",
    "sim": "RoFormerSim",
    "sim_classifier": "RoFormerSimClassifier",
    "seq_2_seq_lm": "RoFormerSeq2SeqLM",
    "backbone": "RoFormerBackbone",
}
TASKS = [task for task in CLASSES if task != "sim_classifier"]  # that a command can ask for
PRETRAINED = ("masked_lm", "causal_lm", "sim", "backbone")


def add_model(parser, folder="original or Hugging Face folder, folder written by save_to_preset"):
    """Adds the arguments `model` and `--dtype`."""
    parser.add_argument(
        "model", help=f"{folder}, .zip file of one, hf://user/name[@revision], or .keras file"
    )
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")


def add_texts(parser, example):
    """Adds the argument `texts`."""
    parser.add_argument(
        "texts",
        nargs="*",
        default=[],
        metavar="TEXT",
        help=f"for example {example}; if omitted, reads the lines of standard input. Texts that "
        "begin with - come after a --",
    )


def add_json(parser, what):
    """Adds the argument `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print a JSON line per text: {what}")


def load_model(path, task=None, dtype=None, sequence_length=None):
    """Loads a model and the preprocessor that goes with it.

    Args:
        path: str. Original or Hugging Face folder, `save_to_preset` folder, `.zip` file of one,
            `hf://user/name`, or `.keras` file.
        task: str. One of `TASKS`, or `None` for what the path holds.
        dtype: str. Name of a dtype policy; `None` as saved. Not for `.keras` files.
        sequence_length: int. Maximum number of tokens; `None` as saved.

    Returns:
        Tuple of the model and its preprocessor, which is `None` if there is none.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it holds no model of this package, or not the task asked for, or
            `sequence_length` is out of range.

    Example:

    >>> load_model("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: No checkpoint at no/such/folder: the folder no/such does not exist. ...
    """
    import roformer_tf
    from roformer_tf.models.roformer_preprocessor import check_sequence_length

    if sequence_length is not None:
        check_sequence_length("--sequence-length", sequence_length)
    _check_dtype(dtype)
    file = Path(path)
    if file.suffix == ".keras" and file.is_file():
        model, preprocessor = _from_keras_file(file, dtype), None
    elif file.is_file() and file.suffix.lower() != ".zip":
        raise ValueError(
            f"{path} is not a .keras or .zip file. Expected one, or the folder of a model."
        )
    else:
        model, preprocessor = _from_folder(path, task, {"dtype": dtype} if dtype else {})
    preprocessor = getattr(model, "preprocessor", preprocessor)
    if task and not isinstance(model, getattr(roformer_tf, CLASSES[task])):
        if task != "backbone" or not hasattr(model, "backbone"):
            raise ValueError(
                f"{path} holds a {type(model).__name__}, not a {task}, whose head would have "
                "random weights. Pass a model that was trained for this task."
            )
        model = model.backbone
    if sequence_length is not None and preprocessor is not None:
        preprocessor.sequence_length = sequence_length
        if hasattr(preprocessor, "encoder_sequence_length"):  # of a translation model
            preprocessor.encoder_sequence_length = sequence_length
    return model, preprocessor


def _check_dtype(dtype):
    import keras

    try:
        keras.dtype_policies.get(dtype)
    except ValueError:
        raise ValueError(
            "--dtype must be the name of a dtype policy: float32, mixed_bfloat16, bfloat16, … "
            f"Received: --dtype {dtype}"
        ) from None


def _from_keras_file(path, dtype):
    import keras

    import roformer_tf
    from roformer_tf.checkpoint.damage import named_errors
    from roformer_tf.checkpoint.loading import check_finite

    if dtype is not None:
        raise ValueError(
            "--dtype cannot change a .keras file. Load it, `save_to_preset`, and give that folder."
        )
    with named_errors(path), warnings.catch_warnings():
        # the optimizer's, which nobody needs here
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        model = keras.saving.load_model(path, compile=False)
        check_finite(model.weights, path)
    if not isinstance(model, tuple(getattr(roformer_tf, name) for name in CLASSES.values())):
        raise ValueError(
            f"{path} holds a {type(model).__name__}; expected one of {', '.join(CLASSES.values())}."
        )
    return model


def _from_folder(path, task, options):
    """Returns a model, and for a bare backbone a preprocessor of the tokenizer in its folder."""
    import roformer_tf
    from roformer_tf.checkpoint import open_folder
    from roformer_tf.checkpoint.damage import named_errors

    with named_errors(path):
        folder = open_folder(path)
        folder.check_files(weights=False)
    if folder.layout == "preset":
        stored = folder.part("task.json")
        name = CLASSES["backbone"] if stored is None else stored["class_name"]
        task = next((key for key, value in CLASSES.items() if value == name), None)
        if task is None:
            raise ValueError(f"{folder.path} holds a {name}, which is not a model of this package.")
    elif task is None:
        task = _pretrained_task(folder)
    elif task not in PRETRAINED:
        raise ValueError(
            f"{path} is a checkpoint of pretraining: it has no {task}, whose weights come from "
            "training. Train one, `save_to_preset(folder)`, and give that folder."
        )
    if folder.layout != "preset":
        _check_masking(folder, task)
    model = getattr(roformer_tf, CLASSES[task]).from_preset(path, **options)
    if task != "backbone" or (folder.layout == "preset" and folder.tokenizer_class is None):
        return model, None
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(path)
    return model, roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)


def _check_masking(folder, task):
    """Raises `ValueError` if the settings name a masking with which the task writes nonsense."""
    from roformer_tf.checkpoint.original_config import masking_of

    masking = masking_of(folder.config)
    if (task, masking) == ("masked_lm", "causal"):
        raise ValueError(
            f"{folder.path} holds a causal language model, which has learned to continue texts and "
            "not to fill [MASK]. Use `generate`."
        )
    if (task, masking) == ("causal_lm", "bidirectional"):
        raise ValueError(
            f"{folder.path} holds a masked language model, which has learned to fill [MASK] and "
            "not to continue texts. Use `fill-mask`."
        )


def _pretrained_task(folder):
    identity = folder.identity()
    identity.warn_if_from_name("masking", folder)
    if identity.masking != "bidirectional":
        return "sim" if identity.pooler else "causal_lm"
    has_head = any(name.startswith("cls/predictions/") for name in folder.arrays.shapes)
    return "masked_lm" if has_head or identity.family == "roformer_v2" else "backbone"


def read_texts(args, keep_blank=False):
    """Returns the texts of the command line, or the lines of standard input, in lists.

    A list has at most `WINDOW` lines, and lines are read when their turn comes, so memory stays
    bounded. Blank texts are dropped unless `keep_blank`.

    Returns:
        Iterator of lists of strings.

    Raises:
        ValueError: If there is no text, or a line of standard input has bytes that are no text.
    """
    lines = iter(args.texts)
    if not args.texts and not sys.stdin.isatty():
        lines = _lines_of_input()
    windows = _windows(lines, keep_blank)
    first = []
    while not any(line.strip() for texts in first for line in texts):
        first.append(next(windows, None))
        if first[-1] is None:
            raise ValueError(
                "Expected at least one text. Received none: pass texts as arguments, or a file "
                "on standard input."
            )
    return itertools.chain(first, windows)


def _lines_of_input():
    if hasattr(sys.stdin, "reconfigure"):  # so that the error below can name the line
        sys.stdin.reconfigure(errors="surrogateescape")
    for number, line in enumerate(sys.stdin, 1):
        try:
            line.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"Expected text in {sys.stdin.encoding} on standard input. Received: bytes that "
                f"are none in line {number}, {line[:40]!r}"
            ) from None
        # a file of Windows may have a byte order mark, and ends its lines in two characters
        yield line.rstrip("\r\n").removeprefix("\ufeff")


def _windows(lines, keep_blank):
    """Yields lists of texts; counts those done on a terminal, if the output goes elsewhere."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    hidden = sys.stdin.isatty() or sys.stdout.isatty() or not sys.stderr.isatty()
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} texts"), TimeElapsedColumn()
    console = Console(stderr=True, quiet=hidden)
    with Progress(*columns, console=console, disable=hidden) as progress:
        task = progress.add_task("", total=None)
        while window := list(itertools.islice(lines, WINDOW)):
            texts = [line for line in window if keep_blank or line.strip()]
            if texts:
                yield texts
            progress.advance(task, len(window))


def graphs_for_many(run):
    """Decorates a command that runs a few texts without graphs: tracing would take longer."""

    @functools.wraps(run)
    def command(args):
        import tensorflow as tf

        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(before or 0 < len(args.texts) <= FEW)
        try:
            return run(args)
        finally:
            tf.config.run_functions_eagerly(before)

    return command


def print_json(record):
    """Prints one line of JSON at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def print_table(rows, columns=(), title=None, show_lines=False):
    """Prints a title and a table of strings, with a header if there are `columns`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # rich would take [MASK] in a plain string for markup

    console = Console(highlight=False)
    if title is not None:  # as a line of its own: a table's title wraps at the table's width
        console.print(Text(title), soft_wrap=True)
    table = Table(*columns, show_header=bool(columns), show_lines=show_lines)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
