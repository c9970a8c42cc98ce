"""Where the commands take a model from: an original folder, a `save_to_preset` folder, a `.keras` file."""

import json
from pathlib import Path

TASKS = ("classifier", "masked_lm", "causal_lm", "sim", "seq_2_seq_lm", "backbone")


def load_model(path, task=None, dtype=None, sequence_length=None):
    """Loads a model and the preprocessor (or tokenizer) that goes with it.

    Args:
        path: str. Original or Hugging Face folder, `save_to_preset` folder, or `.keras` file.
        task: one of `TASKS`, or `"sim_classifier"`; a tuple of them, the first for original folders, which hold no
            heads; or `None` for what the path holds.
        dtype: name of a dtype policy; `None` as saved. Not for `.keras` files.
        sequence_length: integer, the most tokens of a text; `None` as saved.

    Returns:
        Tuple of the model and its preprocessor, which is `None` when there is none.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: if it holds no model of this package, or not the one asked for.

    Example:

    >>> from roformer_tf.cli.model_source import load_model
    >>> load_model("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: There is no no/such/folder. Expected an original folder (bert_config.json), ...
    """
    from roformer_tf.checkpoint import is_original_folder

    path = Path(path)
    tasks = (task,) if isinstance(task, str) else task
    expected = (
        "Expected an original folder (bert_config.json), a folder written by save_to_preset (config.json), or a "
        ".keras file"
    )
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}. {expected}.")
    if path.is_file():
        if path.suffix != ".keras":
            raise ValueError(f"{path} is a file, but no .keras file. {expected}.")
        model, preprocessor = _from_keras_file(path, dtype)
    elif is_original_folder(path):
        model, preprocessor = _from_original(path, tasks and tasks[0], dtype)
    elif (path / "config.json").is_file():
        model, preprocessor = _from_preset(path, dtype)
    else:
        raise ValueError(f"{path} holds no model. {expected}.")
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
        f"{path} holds a {type(model).__name__}, which is no {' or '.join(tasks)}: a head for it would have random "
        "weights. Give a model that was trained as one, or leave --task out."
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


def _from_preset(path, dtype):
    import roformer_tf

    options = {} if dtype is None else {"dtype": dtype}
    if (path / "task.json").is_file():
        name = json.loads((path / "task.json").read_text(encoding="utf-8")).get("class_name")
        cls = {cls.__name__: cls for cls in _classes().values()}.get(name)
        if cls is None:
            raise ValueError(f"{path} holds a {name}, which is no model of this package.")
        model = cls.from_preset(str(path), **options)
        return model, model.preprocessor
    backbone = roformer_tf.RoFormerBackbone.from_preset(str(path), **options)
    tokenizer = None
    if (path / "tokenizer.json").is_file():
        tokenizer = roformer_tf.RoFormerTokenizer.from_preset(str(path))
    return backbone, tokenizer


def _from_original(path, task, dtype):
    import roformer_tf
    from roformer_tf.checkpoint import inspect_checkpoint

    if task in ("classifier", "sim_classifier", "seq_2_seq_lm"):
        raise ValueError(
            f"{path} is an original folder: it has no {task}, whose weights come from training. Train "
            "one, `save_to_preset(folder)`, and give that folder."
        )
    if task is None:
        report = inspect_checkpoint(path)
        if report.application != "encoder":
            task = "sim" if report.application == "unilm" else "causal_lm"
        elif "mlm" in report.groups or report.family == "roformer_v2":
            task = "masked_lm"
        else:
            task = "backbone"
    options = {} if dtype is None else {"dtype": dtype}
    model = _classes()[task].from_preset(str(path), **options)
    if task == "backbone":
        return model, roformer_tf.RoFormerTokenizer.from_preset(str(path))
    return model, model.preprocessor
