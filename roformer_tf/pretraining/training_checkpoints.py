"""What a run leaves on disk: checkpoints and one model per stage."""

import json
import logging
import os
import re
import shutil
import uuid
from pathlib import Path

import tensorflow as tf

from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.checkpoint.saving import has_original_format
from roformer_tf.checks import check_positive_integer
from roformer_tf.files import replace_files

_NAME = re.compile(r"step-(\d{9,})")
_STATE, _PREFIX = "state.json", "variables"
_logger = logging.getLogger(__name__)


class TrainingCheckpoints:
    """Checkpoints of a run: every variable of model and optimizer, and where the run is.

    Each is a folder `step-000001000` that appears at once and complete: it is written under a temporary name, flushed
    to disk and renamed. A process killed at any moment leaves at most a temporary folder, which the next save removes.

    Args:
        folder: path; made when the first checkpoint is saved.
        keep: positive integer, how many of the newest stay.

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
        """Steps at which there is a checkpoint, in ascending order."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def save(self, step, variables, state):
        """Writes a checkpoint and removes those beyond `keep`.

        Args:
            step: integer, steps done.
            variables: dict from name to variable.
            state: dict for JSON, kept beside the variables.

        Returns:
            Path of the new folder.

        Raises:
            OSError: if it cannot be written, for instance as the disk is full; what was there before stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_temporary()
        target = self.folder / f"step-{step:09d}"
        temporary = self.folder / f".saving-{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            names = sorted(variables)
            try:
                tf.raw_ops.SaveV2(
                    prefix=str(temporary / _PREFIX),
                    tensor_names=names,
                    shape_and_slices=[""] * len(names),
                    tensors=[tf.convert_to_tensor(variables[name]) for name in names],
                )
            except tf.errors.OpError as error:
                raise OSError(
                    f"The checkpoint of step {step} could not be written to {self.folder}: {error.message} "
                    "Earlier checkpoints are untouched; make room or mend the disk, and start again."
                ) from error
            (temporary / _STATE).write_text(json.dumps({**state, "step": step}), encoding="utf-8")
            for file in temporary.iterdir():
                _flush(file)
            if target.exists():  # a damaged one, when an older one was restored
                os.rename(target, self.folder / f".saving-{uuid.uuid4().hex}")
            os.rename(temporary, target)
            _flush(self.folder)
            self._remove_temporary()
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{old:09d}", ignore_errors=True)
        return target

    def newest_state(self):
        """The `state` of the newest checkpoint that has a readable one; `None` if there is none."""
        for step in reversed(self.steps()):
            try:
                return _read_state(self.folder / f"step-{step:09d}")
            except OSError:
                continue
        return None

    def restore(self, variables):
        """Reads the newest checkpoint that is whole; a damaged one is passed over with a warning.

        Args:
            variables: dict from name to variable, to be assigned.

        Returns:
            The `state` it was saved with, and its `step`; `None` if there is no checkpoint.

        Raises:
            ValueError: if the checkpoint is of another model or optimizer, or if all of them are damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            folder = self.folder / f"step-{step:09d}"
            try:
                state = _read_state(folder)
                values = _read(folder / _PREFIX, variables)
            except (OSError, tf.errors.OpError) as error:
                _logger.warning("%s is damaged and passed over: %s", folder, error)
                damaged.append(str(folder))
                continue
            for name, variable in variables.items():
                variable.assign(values[name])
            return state
        if damaged:
            raise ValueError(
                f"All checkpoints are damaged: {', '.join(damaged)}. Remove them to begin anew."
            )
        return None

    def _remove_temporary(self):
        for path in self.folder.glob(".saving-*"):
            shutil.rmtree(path, ignore_errors=True)


def _read_state(folder):
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        return {**state, "step": int(state["step"])}
    except (ValueError, KeyError, TypeError) as error:  # no JSON, or not ours
        raise OSError(f"{folder / _STATE} is damaged: {error!r}") from error


def _read(prefix, variables):
    try:
        shapes = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    except (ValueError, RuntimeError) as error:  # TensorFlow's reader raises these for broken files
        raise OSError(str(error)) from error
    missing, surplus = sorted(set(variables) - set(shapes)), sorted(set(shapes) - set(variables))
    wrong = [
        f"{name} {tuple(shapes[name])}, not {tuple(variable.shape)}"
        for name, variable in variables.items()
        if name in shapes and tuple(shapes[name]) != tuple(variable.shape)
    ]
    if missing or surplus or wrong:
        found = [
            f"{title}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            for title, names in (
                ("missing", missing),
                ("not expected", surplus),
                ("of another shape", wrong),
            )
            if names
        ]
        raise ValueError(
            f"{prefix.parent} is a checkpoint of another model or optimizer ({'; '.join(found)}). Go on with the "
            "settings it was made with, or begin in another folder."
        )
    names = sorted(variables)
    tensors = tf.raw_ops.RestoreV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[tf.as_dtype(variables[name].dtype) for name in names],
    )
    return dict(zip(names, tensors))


def _flush(path):
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class StageModels:
    """The models at the ends of the stages, each in a folder such as `stage-1-512` of the run.

    One that is made again, as a checkpoint was damaged or its stage has got more steps, is put aside as
    `stage-1-512-earlier` until the new one is there.

    Args:
        folder: path of the run.
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
        """Folder of the model of stage `index`, counted from 0."""
        return self.folder / f"stage-{index + 1}-{self.stages[index].max_length}"

    def refuse_any(self):
        """Raises ValueError if there are models, to be called where no checkpoint is."""
        models = [str(path) for path in map(self.path, range(len(self.stages))) if path.exists()]
        if models:
            raise ValueError(
                f"{self.folder} has no checkpoint to go on from, but the models of an earlier run: "
                f"{', '.join(models)}. Begin in another folder, or move them away."
            )

    def clear_away(self, steps_done):
        """Puts aside models of stages that are not done, and removes what killed processes left."""
        last_step = 0
        for index, stage in enumerate(self.stages):
            target, last_step = self.path(index), last_step + stage.steps
            if target.exists() and steps_done < last_step:
                earlier = _earlier(target)
                if earlier.exists():  # all of it at once
                    os.rename(earlier, self.folder / f".saving-{uuid.uuid4().hex}")
                os.rename(target, earlier)
        for left in self.folder.glob(".saving-*"):
            shutil.rmtree(left, ignore_errors=True)

    def save(self, index, task, tokenizer):
        """Writes a model in the original format, or as a preset where that has no place for its position scheme."""
        target = self.path(index)
        if has_original_format(task.backbone):
            save_checkpoint(task, target, vocabulary=tokenizer.get_vocabulary())
        else:
            task.preprocessor = task.preprocessor_cls(tokenizer)
            with replace_files(target) as folder:
                task.save_to_preset(str(folder))
        self.remove_earlier(index)

    def remove_earlier(self, index):
        """Removes a model that was put aside, where the new one is there."""
        if self.path(index).exists():
            shutil.rmtree(_earlier(self.path(index)), ignore_errors=True)


def _earlier(target):
    return target.with_name(f"{target.name}-earlier")


_logger = logging.getLogger(__name__)

# What may change between one start and the next: it has no influence on the weights, or only on steps to come.
_FREE = {
    "data": {"files", "cache", "service", "txt_documents", "max_bad_lines"},
    "model": {"checkpoint", "vocabulary"},  # the files may have moved; what is in them is compared
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
}


def check_same_run(saved, current, stage_index, stage_step, allow_changes=False):
    """Refuses to go on with other settings, texts or words than those the checkpoint was made with.

    Args:
        saved: dict from the checkpoint, with `settings`, `corpus` (fingerprint) and `vocabulary` (hash).
        current: the same of this start.
        stage_index: integer, stage where the run goes on.
        stage_step: integer, steps of it that are done.
        allow_changes: whether other settings are only reported, with a warning; texts, words, the model and the kind of
            optimizer must be the same.

    Raises:
        ValueError: naming each setting that differs. Stages to come may change; so may the `steps` of this one, where
            its learning rate is given step by step.
    """
    differences = []
    for table, values in current["settings"].items():
        before = saved["settings"].get(table, {})
        if table == "stages":
            differences += _of_stages(before, values, stage_index, stage_step)
            continue
        for name, value in values.items():
            if name not in _FREE.get(table, ()) and before.get(name) != _plain(value):
                differences.append(f"{table}.{name} was {before.get(name)!r}, is {value!r}")
    fixed = []
    if saved["corpus"] != current["corpus"]:
        fixed.append("the texts have changed (`data.files`, or the share that is held out)")
    if saved["vocabulary"] != current["vocabulary"]:
        fixed.append("the vocabulary has changed")
    fixed += [d for d in differences if _changes_the_weights(d)]
    if fixed or (differences and not allow_changes):
        message = "; ".join(dict.fromkeys(differences + fixed))
        message = (
            f"The run in this folder was begun otherwise: {message}. Go on with the old settings"
        )
        if fixed:
            raise ValueError(f"{message}, or begin in another folder.")
        raise ValueError(
            f"{message}, begin in another folder, or, if settings are meant to change in the middle of the run, say "
            "`allow_changes` (--allow-changes)."
        )
    if differences:
        _logger.warning("The run goes on with other settings: %s.", "; ".join(differences))


def _changes_the_weights(difference):
    """Whether the model's weights or the optimizer's state would not fit, or mean something else."""
    name = difference.split(" ")[0]
    free = ("model.dropout", "model.attention_dropout", "model.dtype")
    return name == "optimizer.name" or (name.startswith("model.") and name not in free)


def _of_stages(before, now, stage_index, stage_step):
    if len(now) < stage_index or (len(now) == stage_index and stage_step):
        return [f"stages: the run is in stage {stage_index + 1}, there are {len(now)}"]
    differences = []
    for index in range(min(stage_index + 1, len(now), len(before))):
        free = set()
        if index == stage_index:
            if not stage_step:
                continue
            free = {"steps"}
        differences += [
            f"stages[{index}].{name} was {before[index].get(name)!r}, is {value!r}"
            for name, value in now[index].items()
            if name not in free and before[index].get(name) != _plain(value)
        ]
    return differences


def _plain(value):
    """As it comes back from JSON."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return value
