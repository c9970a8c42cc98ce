"""Loads the model of a command: from a folder in any layout, an archive, the hub, or `.keras`."""

from pathlib import Path

HEADS = ("classifier", "token_classifier", "question_answering", "multiple_choice")
TASKS = (*HEADS, "masked_lm", "causal_lm", "sim", "seq_2_seq_lm", "backbone")


def load_model(path, task=None, dtype=None, sequence_length=None):
    """Loads a model and the preprocessor that goes with it.

    Args:
        path: str. Original or Hugging Face folder, `save_to_preset` folder, `.zip` file of one,
            `hf://user/name`, or `.keras` file.
        task: str. One of `TASKS`, or `"sim_classifier"`; a tuple of them, whose first is for
            original and Hugging Face folders, which hold no heads; or `None` for what the path
            holds.
        dtype: str. Name of a dtype policy; `None` as saved. Not for `.keras` files.
        sequence_length: int. Maximum number of tokens; `None` as saved.

    Returns:
        Tuple of the model and its preprocessor, which is `None` if there is none.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it holds no model of this package, or not the task asked for.

    Example:

    >>> load_model("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: No checkpoint at no/such/folder: the folder no/such does not exist. ...
    """
    import roformer_tf

    tasks = (task,) if isinstance(task, str) else task
    classes = {
        "classifier": roformer_tf.RoFormerTextClassifier,
        "token_classifier": roformer_tf.RoFormerTokenClassifier,
        "question_answering": roformer_tf.RoFormerQuestionAnswering,
        "multiple_choice": roformer_tf.RoFormerMultipleChoice,
        "masked_lm": roformer_tf.RoFormerMaskedLM,
        "causal_lm": roformer_tf.RoFormerCausalLM,
        "sim": roformer_tf.RoFormerSim,
        "sim_classifier": roformer_tf.RoFormerSimClassifier,
        "seq_2_seq_lm": roformer_tf.RoFormerSeq2SeqLM,
        "backbone": roformer_tf.RoFormerBackbone,
    }
    file = Path(path)
    if file.suffix == ".keras" and file.is_file():
        model, preprocessor = _from_keras_file(file, tuple(classes.values()), dtype), None
    elif file.is_file() and file.suffix.lower() != ".zip":
        raise ValueError(
            f"{path} is not a .keras or .zip file. Expected one, or the folder of a model."
        )
    else:
        model, preprocessor = _from_folder(path, classes, tasks, {"dtype": dtype} if dtype else {})
    preprocessor = getattr(model, "preprocessor", preprocessor)
    if tasks and not isinstance(model, tuple(classes[task] for task in tasks)):
        if "backbone" not in tasks or not hasattr(model, "backbone"):
            raise ValueError(
                f"{path} holds a {type(model).__name__}, not a {' or '.join(tasks)}, whose head "
                "would have random weights. Give a model that was trained as one, or leave --task "
                "out."
            )
        model = model.backbone
    if sequence_length is not None and preprocessor is not None:
        preprocessor.sequence_length = sequence_length
        if hasattr(preprocessor, "encoder_sequence_length"):  # of a translation model
            preprocessor.encoder_sequence_length = sequence_length
    return model, preprocessor


def _from_keras_file(path, classes, dtype):
    import keras

    from roformer_tf.checkpoint.damage import named_errors
    from roformer_tf.checkpoint.loading import check_finite

    if dtype is not None:
        raise ValueError(
            "--dtype cannot change a .keras file. Load it, `save_to_preset`, and give that folder."
        )
    with named_errors(path):
        model = keras.saving.load_model(path, compile=False)
        check_finite(model.weights, path)
    if not isinstance(model, classes):
        raise ValueError(
            f"{path} holds a {type(model).__name__}; expected one of "
            f"{', '.join(cls.__name__ for cls in classes)}."
        )
    return model


def _from_folder(path, classes, tasks, options):
    """Returns a model, and for a bare backbone a preprocessor of the tokenizer in its folder."""
    import roformer_tf
    from roformer_tf.checkpoint import open_folder
    from roformer_tf.checkpoint.damage import named_errors

    with named_errors(path):
        folder = open_folder(path)
        folder.check_files(weights=False)
    if folder.layout == "preset":
        task = _saved_task(folder, classes)
    else:
        task = tasks[0] if tasks else _pretrained_task(folder)
        if task in (*HEADS, "sim_classifier", "seq_2_seq_lm"):
            raise ValueError(
                f"{path} is a checkpoint of pretraining: it has no {task}, whose weights come from "
                "training. Train one, `save_to_preset(folder)`, and give that folder."
            )
    model = classes[task].from_preset(path, **options)
    if task != "backbone" or (folder.layout == "preset" and folder.tokenizer_class is None):
        return model, None
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(path)
    return model, roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)


def _saved_task(folder, classes):
    stored = folder.part("task.json")
    if stored is None:
        return "backbone"
    name = stored["class_name"]
    for task, cls in classes.items():
        if cls.__name__ == name:
            return task
    raise ValueError(f"{folder.path} holds a {name}, which is not a model of this package.")


def _pretrained_task(folder):
    identity = folder.identity()
    identity.warn_if_from_name("masking", folder)
    if identity.masking != "bidirectional":
        return "sim" if identity.pooler else "causal_lm"
    has_head = any(name.startswith("cls/predictions/") for name in folder.arrays.shapes)
    return "masked_lm" if has_head or identity.family == "roformer_v2" else "backbone"
