"""Trains labelled tasks and the masked LM on one model, as RoFormer v2 was trained. Each step
trains one of them, drawn by its frequency. If it is stopped, run the same command again to
resume from the last checkpoint. A task classifies texts or pairs, or answers questions by spans of
a context. Each stage ends with a checkpoint in the original format, and a preset of each task in
its folder `tasks`.
"""

from roformer_tf.cli import pretrain

HELP = "train labelled tasks and the masked LM on one model"


def add_arguments(parser):
    pretrain.add_arguments(parser, example="examples/train_tasks.toml")


def run(args):
    from roformer_tf.pretraining import MultiTaskSettings, train_tasks

    return pretrain.run_training(args, MultiTaskSettings, train_tasks)
