"""What a run leaves on disk: checkpoints to resume from, and one model per stage."""

import json
import logging
import os
import re
import shutil
import uuid
from pathlib import Path

import tensorflow as tf

from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.checkpoint.damage import read_json
from roformer_tf.checkpoint.original_files import readable_prefix, write_tensors
from roformer_tf.checkpoint.saving import has_original_format
from roformer_tf.checks import check_positive_integer
from roformer_tf.files import flush_to_disk, remove_temporary, replace_files
from roformer_tf.pretraining.models import make_preprocessor

CHECKPOINT_FORMAT = 2  # raise it when names of settings or variables change
_NAME = re.compile(r"step-(\d{9,})")
_STATE, _PREFIX = "state.json", "variables"
_logger = logging.getLogger(__name__)

# Settings that may change when a run resumes: they have no influence on the weights, but that of
# rounding, and of other masks of dropout for other slices or with XLA.
_FREE = {
    "data": {"files", "cache", "service", "txt_documents", "max_bad_lines"},
    "model": {"checkpoint", "vocabulary"},  # files may have moved; their content is compared
    "run": {
        "checkpoint_every",
        "keep_checkpoints",
        "max_skipped_in_a_row",
        "micro_batch_size",
        "memory",
        "recompute",
        "jit_compile",
        "deterministic",
        "held_out_batches",
        "log_every",
    },
    "tasks": {"files", "max_bad_lines"},
}


class TrainingCheckpoints:
    """Checkpoints of a run: every variable of model and optimizer, and the state of the run.

    Each is a folder such as `step-000001000` that appears at once and complete: it is written under
    a temporary name, flushed to disk and renamed. A process killed at any moment leaves at most a
    temporary folder, which the next save removes.

    Args:
        folder: str or path. Created by the first `save`.
        keep: int. Number of newest checkpoints to keep.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from roformer_tf.pretraining import TrainingCheckpoints
    >>> checkpoints = TrainingCheckpoints(tempfile.mkdtemp())
    >>> weights = {"kernel": tf.Variable([1.0, 2.0])}
    >>> path = checkpoints.save(7, weights, {"stage": 0})
    >>> weights["kernel"].assign([0.0, 0.0])
    <tf.Variable ... numpy=array([0., 0.], dtype=float32)>
    >>> checkpoints.restore(weights), weights["kernel"].numpy().tolist()
    ({'stage': 0, 'step': 7}, [1.0, 2.0])
    """

    def __init__(self, folder, keep=3):
        check_positive_integer("keep", keep)
        self.folder = Path(folder)
        self.keep = keep

    def steps(self):
        """Lists the steps that have a checkpoint, in ascending order."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def save(self, step, variables, state):
        """Writes a checkpoint and removes the oldest beyond `keep`.

        Args:
            step: int. Number of steps done.
            variables: dict from name to variable.
            state: dict, stored beside the variables as JSON.

        Returns:
            Path of the new folder.

        Raises:
            OSError: If it cannot be written, for instance because the disk is full. Earlier
                checkpoints stay as they are.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{step:09d}"
        if target.exists():  # damaged, and an older one was restored
            _move_to_temporary(target)
        remove_temporary(self.folder)
        with replace_files(target) as folder:
            try:
                write_tensors(folder / _PREFIX, variables.items())
            except tf.errors.OpError as error:
                raise OSError(
                    f"The checkpoint of step {step} could not be written to {self.folder}: "
                    f"{error.message} Earlier checkpoints are unchanged. Make room or fix the "
                    "disk, and start again."
                ) from error
            (folder / _STATE).write_text(json.dumps({**state, "step": step}), encoding="utf-8")
            for path in (*folder.iterdir(), folder):
                flush_to_disk(path)
        flush_to_disk(self.folder)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{old:09d}", ignore_errors=True)
        return target

    def newest_state(self):
        """Returns the `state` of the newest checkpoint whose state is readable, or `None`."""
        for step in reversed(self.steps()):
            try:
                return _read_state(self.folder / f"step-{step:09d}")
            except OSError:
                continue
        return None

    def restore(self, variables):
        """Reads the newest undamaged checkpoint; warns about each damaged one.

        Args:
            variables: dict from name to variable. Their values are assigned.

        Returns:
            The `state` it was saved with, and its `step`; `None` if there is no checkpoint.

        Raises:
            ValueError: If the checkpoint belongs to another model or optimizer, or if all
                checkpoints are damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            folder = self.folder / f"step-{step:09d}"
            try:
                state = _read_state(folder)
                values = _read(folder / _PREFIX, variables)
            except (OSError, tf.errors.OpError) as error:
                _logger.warning("%s is damaged and skipped: %s", folder, error)
                damaged.append(str(folder))
                continue
            for name, variable in variables.items():
                variable.assign(values[name])
            return state
        if damaged:
            raise ValueError(
                f"All checkpoints are damaged: {', '.join(damaged)}. Remove them to start over."
            )
        return None


def _read_state(folder):
    try:
        state = read_json(folder / _STATE, "it holds the state of the run.")
    except ValueError as error:
        raise OSError(str(error)) from error
    step = int(_NAME.fullmatch(folder.name)[1])
    if state.get("step") != step or isinstance(state["step"], bool):
        raise OSError(
            f"{folder / _STATE} is damaged: expected step={step}, as in the folder's name. "
            f"Received: step={state.get('step')!r:.50}"
        )
    return state


def _read(prefix, variables):
    try:
        with readable_prefix(prefix) as readable:
            shapes = tf.train.load_checkpoint(readable).get_variable_to_shape_map()
    except (ValueError, RuntimeError) as error:  # how TensorFlow's reader reports broken files
        raise OSError(str(error)) from error
    differences = {
        "missing": sorted(set(variables) - set(shapes)),
        "unexpected": sorted(set(shapes) - set(variables)),
        "of another shape": [
            f"{name} {tuple(shapes[name])}, not {tuple(variable.shape)}"
            for name, variable in variables.items()
            if name in shapes and tuple(shapes[name]) != tuple(variable.shape)
        ],
    }
    found = [
        f"{title}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for title, names in differences.items()
        if names
    ]
    if found:
        raise ValueError(
            f"{prefix.parent} is a checkpoint of another model or optimizer ({'; '.join(found)}). "
            "Resume with the settings it was made with, or start in another folder."
        )
    names = sorted(variables)
    with readable_prefix(prefix) as readable:
        tensors = tf.raw_ops.RestoreV2(
            prefix=readable,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            dtypes=[tf.as_dtype(variables[name].dtype) for name in names],
        )
    return dict(zip(names, tensors))


def _move_to_temporary(path):
    """Takes a folder away in one step, however large it is; `remove_temporary` deletes it."""
    os.rename(path, path.with_name(f".saving-{uuid.uuid4().hex}"))


class StageModels:
    """The models at the ends of the stages, each in a folder such as `stage-1-512` of the run.

    A model that is made again, because a checkpoint was damaged or its stage got more steps, is
    moved to `stage-1-512-earlier` until the new one is there.

    Args:
        folder: str or path. Folder of the run.
        stages: list of `Stage`.

    Example:

    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.training_checkpoints import StageModels
    >>> models = StageModels("run", [Stage(512, 8, 100, 1e-4), Stage(1536, 8, 10, 1e-4)])
    >>> models.path(1).name
    'stage-2-1536'
    """

    def __init__(self, folder, stages):
        self.folder, self.stages = Path(folder), stages

    def path(self, index):
        """Returns the folder of the model of stage `index`, from 0."""
        return self.folder / f"stage-{index + 1}-{self.stages[index].max_length}"

    def check_none_exist(self):
        """Raises `ValueError` if there are models. Call it if there is no checkpoint."""
        models = [str(path) for path in map(self.path, range(len(self.stages))) if path.exists()]
        if models:
            raise ValueError(
                f"{self.folder} has no checkpoint to resume from, but the models of an earlier "
                f"run: {', '.join(models)}. Start in another folder, or move them away."
            )

    def move_unfinished(self, steps_done):
        """Moves models of unfinished stages away, and removes what killed processes left."""
        last_step = 0
        for index, stage in enumerate(self.stages):
            target, last_step = self.path(index), last_step + stage.steps
            if target.exists() and steps_done < last_step:
                earlier = _earlier(target)
                if earlier.exists():
                    _move_to_temporary(earlier)
                os.rename(target, earlier)
        remove_temporary(self.folder)

    def save(self, index, task, tokenizer, classifiers=None):
        """Writes the model of stage `index` in the original format, or as a preset.

        Its positions, or settings of the tokenizer, may need a preset. Each of `classifiers`, a
        dict from names to other tasks on the same backbone, becomes a preset in `tasks/NAME`.
        """
        with replace_files(self.path(index)) as folder:
            if has_original_format(task.backbone, tokenizer):
                save_checkpoint(task, folder, vocabulary=tokenizer.get_vocabulary())
            else:
                task.preprocessor = make_preprocessor(task, tokenizer)
                whole = folder / "whole"  # what is saved to a temporary folder counts as a part
                task.save_to_preset(whole)
                for path in whole.iterdir():
                    os.rename(path, folder / path.name)
                whole.rmdir()
            for name, classifier in (classifiers or {}).items():
                classifier.save_to_preset(folder / "tasks" / name)
        self.remove_earlier(index)

    def remove_earlier(self, index):
        """Removes a model that was moved away, if the new one is there."""
        if self.path(index).exists():
            shutil.rmtree(_earlier(self.path(index)), ignore_errors=True)


def _earlier(target):
    return target.with_name(f"{target.name}-earlier")


def check_same_run(saved, current, allow_changes=False):
    """Raises an error if a checkpoint was made with other settings, texts or vocabulary.

    Stages to come may change. So may the `steps` of the stage of the last step, to any number that
    is not below those done, as its learning rate is given step by step.

    Args:
        saved: dict from the checkpoint, with `step`, `format`, `settings`, `corpus` (fingerprint)
            and `vocabulary` (hash).
        current: dict. The same of this start, without `step`.
        allow_changes: bool. Whether to warn of changed settings instead of raising an error.
            Texts, vocabulary, model, kind of optimizer and the number of steps done in each stage
            must be the same in any case.

    Raises:
        ValueError: If a setting, the texts or the vocabulary differ. Names each difference.
    """
    if saved.get("format") != current["format"]:
        raise ValueError(
            "The run in this folder was started with another version of roformer_tf, whose "
            f"checkpoints have the format {saved.get('format', 1)} instead of {current['format']}. "
            "Finish it with that version, or start in another folder."
        )
    settings = saved.get("settings")
    tables = dict(settings) if isinstance(settings, dict) else {}
    stages = tables.pop("stages", None)
    stages = stages if isinstance(stages, list) else []
    is_settings = all(isinstance(part, dict) for part in (*tables.values(), *stages))
    if not is_settings or not stages or not all(type(s.get("steps")) is int for s in stages):
        raise ValueError(
            "The state of the run is damaged: its settings must be tables, and a list of stages "
            f"with `steps`. Received: settings={settings!r:.200}. Remove the newest checkpoint, or "
            "start in another folder."
        )
    differences = {}  # from the name of what differs to what is said of it
    # as the saved ones were read: tuples are lists, and keys are strings
    for table, values in json.loads(json.dumps(current["settings"])).items():
        if table == "stages":
            differences |= _compare_stages(stages, values, saved["step"])
        else:
            free = _FREE.get(table.split(".")[0], ())
            differences |= _compare(table, tables.get(table, {}), values, free)
    if saved.get("corpus") != current["corpus"]:
        differences["corpus"] = (
            "the texts have changed (`data.files`, or the share that is held out)"
        )
    if saved.get("vocabulary") != current["vocabulary"]:
        differences["vocabulary"] = "the vocabulary has changed"
    fixed = any(map(_is_fixed, differences))
    found = "; ".join(differences.values())
    if fixed or (differences and not allow_changes):
        message = (
            f"The run in this folder was started with other settings: {found}. Use the old settings"
        )
        if fixed:
            raise ValueError(f"{message}, or start in another folder.")
        raise ValueError(
            f"{message}, start in another folder, or pass `allow_changes` (--allow-changes) to "
            "change settings in the middle of the run."
        )
    if differences:
        _logger.warning("The run resumes with other settings: %s.", found)


def _is_fixed(name):
    """Returns whether weights, optimizer or steps done would not fit, or would mean something else."""
    if name.startswith("model."):
        return name not in ("model.dropout", "model.attention_dropout", "model.dtype")
    fixed = ("corpus", "vocabulary", "optimizer.name", "stages")
    return name in fixed or name.endswith((".labels", ".pooling", ".steps"))


def _compare(table, before, now, free=()):
    return {
        f"{table}.{name}": f"{table}.{name} was {before.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if name not in free and before.get(name) != value
    }


def _compare_stages(before, now, step):
    index, done = 0, step  # the stage of the last step, and how many of its steps are done
    while done > before[index]["steps"] and index + 1 < len(before):
        done -= before[index]["steps"]
        index += 1
    if len(now) <= index:
        return {"stages": f"stages: the run is in stage {index + 1}, there are {len(now)}"}
    differences = {}
    for i in range(index + 1):
        differences |= _compare(f"stages[{i}]", before[i], now[i], {"steps"} if i == index else ())
    if now[index]["steps"] < done:
        name = f"stages[{index}].steps"
        differences[name] = (
            f"{name} must be at least {done}, the steps that are done, is {now[index]['steps']}"
        )
    return differences
