"""Loads the model of a command: from a folder in any layout, or a `.keras` file."""

import json
from pathlib import Path

TASKS = ("classifier", "masked_lm", "causal_lm", "sim", "seq_2_seq_lm", "backbone")


def load_model(path, task=None, dtype=None, sequence_length=None):
    """Loads a model and the preprocessor (or tokenizer) that goes with it.

    Args:
        path: str. Original or Hugging Face folder, `save_to_preset` folder, or `.keras` file.
        task: str. One of `TASKS`, or `"sim_classifier"`; a tuple of them, whose first is for original
            and Hugging Face folders, which hold no heads; or `None` for what the path holds.
        dtype: str. Name of a dtype policy; `None` as saved. Not for `.keras` files.
        sequence_length: int. Maximum number of tokens; `None` as saved.

    Returns:
        Tuple of the model and its preprocessor, which is `None` if there is none.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it holds no model of this package, or not the task asked for.

    Example:

    >>> from roformer_tf.cli.model_source import load_model
    >>> load_model("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: No checkpoint at no/such/folder: the folder no/such does not exist. ...
    """
    from roformer_tf.checkpoint import open_folder

    path = Path(path)
    tasks = (task,) if isinstance(task, str) else task
    if path.suffix == ".keras" and path.is_file():
        model, preprocessor = _from_keras_file(path, dtype)
    else:
        if path.is_file():
            raise ValueError(
                f"{path} is not a .keras file. Expected one, or the folder of a model."
            )
        folder = open_folder(path)
        load = _from_preset if folder.layout == "preset" else _from_checkpoint
        model, preprocessor = load(
            folder, tasks and tasks[0], {} if dtype is None else {"dtype": dtype}
        )
    model, preprocessor = _as_task(path, model, preprocessor, tasks)
    if sequence_length is not None:
        if hasattr(preprocessor, "encoder_sequence_length"):  # of a translation model
            preprocessor.encoder_sequence_length = sequence_length
        if hasattr(preprocessor, "tokenizer"):
            preprocessor.sequence_length = sequence_length
        elif preprocessor is not None:
            from roformer_tf import RoFormerTextClassifierPreprocessor

            preprocessor = RoFormerTextClassifierPreprocessor(
                preprocessor, sequence_length=sequence_length
            )
    return model, preprocessor


def _classes():
    import roformer_tf

    return {
        "classifier": roformer_tf.RoFormerTextClassifier,
        "masked_lm": roformer_tf.RoFormerMaskedLM,
        "causal_lm": roformer_tf.RoFormerCausalLM,
        "sim": roformer_tf.RoFormerSim,
        "sim_classifier": roformer_tf.RoFormerSimClassifier,
        "seq_2_seq_lm": roformer_tf.RoFormerSeq2SeqLM,
        "backbone": roformer_tf.RoFormerBackbone,
    }


def _as_task(path, model, preprocessor, tasks):
    if tasks is None or any(isinstance(model, _classes()[task]) for task in tasks):
        return model, preprocessor
    if "backbone" in tasks and hasattr(model, "backbone"):
        return model.backbone, preprocessor
    raise ValueError(
        f"{path} holds a {type(model).__name__}, not a {' or '.join(tasks)}, whose head would have "
        "random weights. Give a model that was trained as one, or leave --task out."
    )


def _from_keras_file(path, dtype):
    import keras

    classes = _classes()
    if dtype is not None:
        raise ValueError(
            "--dtype cannot change a .keras file. Load it, `save_to_preset`, and give that folder."
        )
    model = keras.saving.load_model(path, compile=False)
    if not isinstance(model, tuple(classes.values())):
        raise ValueError(
            f"{path} holds a {type(model).__name__}; expected one of "
            f"{', '.join(cls.__name__ for cls in classes.values())}."
        )
    return model, getattr(model, "preprocessor", None)


def _from_preset(folder, task, options):
    import roformer_tf

    path = folder.path
    if (path / "task.json").is_file():
        name = json.loads((path / "task.json").read_text(encoding="utf-8")).get("class_name")
        cls = {cls.__name__: cls for cls in _classes().values()}.get(name)
        if cls is None:
            raise ValueError(f"{path} holds a {name}, which is not a model of this package.")
        model = cls.from_preset(path, **options)
        return model, model.preprocessor
    backbone = roformer_tf.RoFormerBackbone.from_preset(path, **options)
    tokenizer = None
    if folder.tokenizer_class is not None:
        tokenizer = roformer_tf.RoFormerTokenizer.from_preset(path)
    return backbone, tokenizer


def _from_checkpoint(folder, task, options):
    import roformer_tf

    if task in ("classifier", "sim_classifier", "seq_2_seq_lm"):
        raise ValueError(
            f"{folder.path} is an original folder: it has no {task}, whose weights come from training. "
            "Train one, `save_to_preset(folder)`, and give that folder."
        )
    if task is None:
        identity = folder.identity()
        identity.warn_if_from_name("masking", folder)
        if identity.masking != "bidirectional":
            task = "sim" if identity.pooler else "causal_lm"
        else:
            has_head = any(name.startswith("cls/predictions/") for name in folder.arrays.shapes)
            task = "masked_lm" if has_head or identity.family == "roformer_v2" else "backbone"
    model = _classes()[task].from_preset(folder.path, **options)
    if task == "backbone":
        return model, roformer_tf.RoFormerTokenizer.from_preset(folder.path)
    return model, model.preprocessor
