import os
import shutil
import uuid
from pathlib import Path

from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.checkpoint.saving import has_original_format
from roformer_tf.files import replace_files


class StageModels:
    """The models at the ends of the stages, each in a folder such as `stage-1-512` of the run.

    One that is made again, as a checkpoint was damaged or its stage has got more steps, is put aside as
    `stage-1-512-earlier` until the new one is there.

    Args:
        folder: path of the run.
        stages: list of `Stage`.

    Example:

    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.stage_models import StageModels
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
