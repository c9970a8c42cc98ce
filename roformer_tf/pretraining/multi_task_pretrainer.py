import tensorflow as tf

from roformer_tf.layers.attention_mask import tokens_at
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.pretraining.pretrainer import Pretrainer, cross_entropy_sums


class MultiTaskPretrainer(Pretrainer):
    """Trains a masked LM and labelled tasks that share its backbone, one of them in each step.

    A step is one of `Pretrainer` for the model of one task: it updates the backbone and the head of
    this task. The other heads and their optimizer state stay as they are. The optimizer counts the
    steps of all tasks.

    Args:
        task: a `RoFormerMaskedLM`.
        classifiers: dict from the name of a task to a `RoFormerTextClassifier`, or to a
            `RoFormerQuestionAnswering` with `head="joint"`, on the backbone of `task`. They are
            tasks 1, 2, …; the masked LM is task 0.
        **kwargs: Arguments of `Pretrainer`.

    Attributes:
        window, index: int64 variables `(tasks,)`. Place of the last batch of each task in its
            stream; the index is -1 before the first.

    Raises:
        ValueError: If a classifier has another backbone, dropout of its own, or another head.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> import roformer_tf
    >>> from roformer_tf.pretraining import MultiTaskPretrainer
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> classifier = roformer_tf.RoFormerTextClassifier(backbone, 3, dropout=0.0)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone)
    >>> pretrainer = MultiTaskPretrainer(masked_lm, {"topics": classifier})
    >>> pretrainer.compile_for(keras.optimizers.AdamW(1e-3, global_clipnorm=1.0))
    >>> ids = np.array([[2, 4, 31, 3]] * 2, "int32")
    >>> batch = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> batch |= {"mask_positions": ids[:, :1] * 0, "labels": ids[:, :1] * 0 + 2}
    >>> place = {"task": np.ones(2, "int32"), "window": np.zeros(2, "int64")}
    >>> batch |= place | {"index": np.zeros(2, "int64"), "label_weights": np.ones((2, 1), "float32")}
    >>> history = pretrainer.fit(batch, batch_size=2, verbose=0)
    >>> history.history["task"], pretrainer.places
    ([1.0], [(0, -1), (0, 0)])

    Reference: `multi-task/main.py` of the original's v2.
    """

    def __init__(self, task, classifiers, **kwargs):
        self.place_shape = (1 + len(classifiers),)
        super().__init__(task, **kwargs)
        for name, classifier in classifiers.items():
            if classifier.backbone is not task.backbone or classifier.dropout:
                raise ValueError(
                    "Classifiers must have the backbone of the masked LM, and `dropout=0.0`. "
                    f"Received: {name!r} with dropout={classifier.dropout}"
                )
            if getattr(classifier, "head", "joint") != "joint":
                raise ValueError(
                    'A `RoFormerQuestionAnswering` must have `head="joint"`. Received: '
                    f"{name!r} with head={classifier.head!r}"
                )
        self.classifiers = classifiers
        self.forget_places()

    def forget_places(self):
        """Restarts the stream of batches of every task."""
        self.window.assign(tf.zeros(self.place_shape, tf.int64))
        self.index.assign(tf.fill(self.place_shape, tf.constant(-1, tf.int64)))

    @property
    def places(self):
        """List of the `(window, index)` of each task."""
        window, index = (
            tf.convert_to_tensor(x).numpy().tolist() for x in (self.window, self.index)
        )
        return list(zip(window, index))

    @property
    def last_place(self):
        raise AttributeError("Each task has a place of its own: see `places`.")

    def note_place(self, batch):
        here = tf.one_hot(
            batch["task"][0], len(self.classifiers) + 1, on_value=True, off_value=False
        )
        for name in ("window", "index"):
            variable = getattr(self, name)
            variable.assign(tf.where(here, batch.pop(name)[0], tf.convert_to_tensor(variable)))

    def train_step(self, batch):
        batch = dict(batch[0] if isinstance(batch, tuple) else batch)
        task = tf.cast(batch["task"][0], tf.float32)
        logs = super().train_step(batch)
        return {**logs, "task": tf.reshape(task, tf.shape(logs["loss"]))}

    def loss_sum(self, batch, training=False):
        """Computes the loss of the task of a batch; see `Pretrainer.loss_sum`.

        Args:
            batch: dict of tensors, with the number of the `task` for each sequence, the same for
                all. A label of a classifier is a class. One of reading is `start * width + end` in
                tokens, for a batch of this width, and `answer_mask` is 1 where an answer may be.
            training: bool. Whether to apply dropout.

        Returns:
            As `Pretrainer.loss_sum`, for a labelled task over its examples.
        """
        outputs = self.run_backbone(batch, training)

        def classifier_loss(classifier):
            mask = batch["padding_mask"]
            if "answer_mask" in classifier.input_dtypes:
                mask = batch.get("answer_mask", mask)
            logits = classifier.head_outputs(outputs, mask, training)
            # spans are classes too: all pairs of a start and an end
            logits = tf.reshape(logits, [tf.shape(logits)[0], -1])
            return cross_entropy_sums(logits, batch["labels"][:, 0], batch["label_weights"][:, 0])

        def masked_lm_loss():
            hidden_states = tokens_at(sequence_output(outputs), batch["mask_positions"])
            return self.masked_lm_loss(hidden_states, batch, training)

        branches = [masked_lm_loss]
        branches += [lambda c=c: classifier_loss(c) for c in self.classifiers.values()]
        return tf.switch_case(batch["task"][0], branches)

    def apply_gradients(self, gradients, batch):
        """Updates the backbone and the head of the task of a batch."""
        names = [id(variable) for variable in self.trainable_variables]

        def apply_to(task):
            own = {id(variable) for variable in task.trainable_variables}
            kept = [i for i, name in enumerate(names) if name in own]
            variables = [self.trainable_variables[i] for i in kept]
            return lambda gradients: self.optimizer.apply([gradients[i] for i in kept], variables)

        tasks = [self.task, *self.classifiers.values()]
        call_one_of([apply_to(task) for task in tasks], batch["task"][0], gradients)


def call_one_of(functions, index, *args):
    """Calls the function of a number, which may update variables. Call it in replica context.

    `tf.switch_case` alone fails with replicas: optimizers synchronize them, which TensorFlow does
    not allow in a branch.

    Args:
        functions: list of functions of `*args`. What they return is dropped.
        index: int32 scalar tensor, the same on all replicas.
        *args: tensors, or lists of tensors.
    """

    def switch(number, call):
        def branch(function):
            call(function)
            return tf.constant(0)  # a branch must return something

        tf.switch_case(number, [lambda f=f: branch(f) for f in functions])

    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        switch(index, lambda function: function(*args))
        return

    def in_cross_replica_context(strategy, index, args):
        number = strategy.experimental_local_results(index)[0]
        extended = strategy.extended
        switch(number, lambda function: extended.call_for_each_replica(function, args=args))

    context = tf.distribute.get_replica_context()
    context.merge_call(in_cross_replica_context, args=(index, args))
