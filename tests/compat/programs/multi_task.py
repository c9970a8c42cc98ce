"""Trains two heads on one backbone with one optimizer, as multi-task/main.py of v2 does."""

from bert4keras.backend import K, keras
from bert4keras.optimizers import (
    Adam,
    extend_with_gradient_accumulation,
    extend_with_layer_adaptation,
    extend_with_piecewise_linear_lr,
    extend_with_weight_decay,
)
from bert4keras.snippets import sequence_padding
from common import TEXTS, make_tokenizer, make_v2, numbers, set_head


def run(folder):
    tokenizer = make_tokenizer(folder)
    base = make_v2(folder)
    cls = extend_with_weight_decay(Adam, name="AdamW")
    cls = extend_with_layer_adaptation(cls, name="LAMB")
    cls = extend_with_piecewise_linear_lr(cls, name="LAMBLR")
    cls = extend_with_gradient_accumulation(cls, name="LAMBLRG")
    optimizer = cls(
        learning_rate=0.02,
        bias_correction=False,
        weight_decay_rate=0.01,
        grad_accum_steps=2,
        lr_schedule={4: 1, 12: 0.1},
    )
    models = []
    for classes in (2, 3):
        output = keras.layers.Lambda(lambda x: x[:, 0])(base.model.output)
        head = keras.layers.Dense(classes, activation="softmax")
        model = keras.models.Model(base.model.inputs, head(output))
        set_head(head, classes)
        models.append(model)
    for model in models:
        model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer)
    x = [sequence_padding(list(x)) for x in zip(*map(tokenizer.encode, TEXTS[:6]))]
    shown = []
    for step, task in enumerate([0, 1, 1, 0, 0, 0, 1, 0, 1, 1]):
        labels = numbers((6, 1), step).argsort(0) % (2 + task)
        loss = models[task].train_on_batch(x, labels)
        shown.append({"task": task, "loss": float(loss)})
    assert K.get_value(optimizer.iterations) == 10
    return {"shown": shown, "outputs": [model.predict(x) for model in models]}
