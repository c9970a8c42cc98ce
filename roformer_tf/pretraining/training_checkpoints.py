import json
import logging
import os
import re
import shutil
import uuid
from pathlib import Path

import tensorflow as tf

from roformer_tf.checks import check_positive_integer

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
