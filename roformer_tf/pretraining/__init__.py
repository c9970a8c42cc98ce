"""Pretraining: raw text to a trained model, in stages of different lengths, on any replicas."""

from roformer_tf.pretraining.batches import held_out_batches, training_batches
from roformer_tf.pretraining.corpus import Corpus, prepare_corpus
from roformer_tf.pretraining.models import StagesSchedule
from roformer_tf.pretraining.multi_task_pretrainer import MultiTaskPretrainer
from roformer_tf.pretraining.multi_task_run import train_tasks
from roformer_tf.pretraining.multi_task_settings import (
    MultiTaskSettings,
    ReadingTaskSettings,
    TaskSettings,
)
from roformer_tf.pretraining.objective import PretrainingObjective
from roformer_tf.pretraining.plan import ModelSizes, StagePlan, StepMemory, plan_run
from roformer_tf.pretraining.pretrainer import Pretrainer
from roformer_tf.pretraining.run import PretrainingResult, pretrain
from roformer_tf.pretraining.settings import PretrainingSettings, Stage
from roformer_tf.pretraining.strategies import choose_strategy
from roformer_tf.pretraining.training_checkpoints import TrainingCheckpoints

__all__ = [
    "Corpus",
    "ModelSizes",
    "MultiTaskPretrainer",
    "MultiTaskSettings",
    "Pretrainer",
    "PretrainingObjective",
    "PretrainingResult",
    "PretrainingSettings",
    "ReadingTaskSettings",
    "Stage",
    "StagePlan",
    "StagesSchedule",
    "StepMemory",
    "TaskSettings",
    "TrainingCheckpoints",
    "choose_strategy",
    "held_out_batches",
    "plan_run",
    "prepare_corpus",
    "pretrain",
    "train_tasks",
    "training_batches",
]
