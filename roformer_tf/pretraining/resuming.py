"""Whether a folder's checkpoint may be gone on from with these settings."""

import logging

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
