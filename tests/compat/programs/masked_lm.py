"""Pretrains from a dataset, with the loss as a layer, as `train.py` and `train_mlm.py` do."""

import numpy as np
from bert4keras.backend import K, keras
from bert4keras.layers import Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import (
    Adam,
    extend_with_gradient_accumulation,
    extend_with_layer_adaptation,
    extend_with_piecewise_linear_lr,
    extend_with_weight_decay,
)
from bert4keras.snippets import DataGenerator, sequence_padding
from common import TEXTS, Recorder, make_tokenizer, paths


class data_generator(DataGenerator):
    def __iter__(self, random=False):
        for _, text in self.sample(random):
            token_ids, segment_ids = tokenizer.encode(text, maxlen=16)
            rands = np.random.random(len(token_ids))
            source = [tokenizer._token_mask_id if r < 0.3 else t for r, t in zip(rands, token_ids)]
            target = [t if r < 0.4 else 0 for r, t in zip(rands, token_ids)]
            yield source, segment_ids, target


class CrossEntropy(Loss):
    def compute_loss(self, inputs, mask=None):
        y_true, y_pred = inputs
        y_mask = K.cast(K.not_equal(y_true, 0), K.floatx())
        accuracy = keras.metrics.sparse_categorical_accuracy(y_true, y_pred)
        accuracy = K.sum(accuracy * y_mask) / (K.sum(y_mask) + K.epsilon())
        self.add_metric(accuracy, name="accuracy", aggregation="mean")
        loss = K.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return K.sum(loss * y_mask) / (K.sum(y_mask) + K.epsilon())


def run(folder, model, lamb):
    global tokenizer
    tokenizer = make_tokenizer(folder)
    bert = build_transformer_model(
        *paths(folder),
        model=model,
        with_mlm="linear",
        return_keras_model=False,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    model = bert.model
    y_in = keras.layers.Input(shape=(None,), name="Input-Label")
    outputs = CrossEntropy(1)([y_in, model.output])
    train_model = keras.models.Model(model.inputs + [y_in], outputs)
    cls, options = extend_with_weight_decay(Adam, name="AdamW"), {}
    if lamb:
        cls, options = extend_with_layer_adaptation(cls, name="LAMB"), {"bias_correction": False}
    else:
        options["exclude_from_weight_decay"] = ["Norm", "bias"]
    cls = extend_with_piecewise_linear_lr(cls, name="LR")
    cls = extend_with_gradient_accumulation(cls, name="LRG")
    optimizer = cls(
        learning_rate=0.02 if lamb else 1e-3,
        weight_decay_rate=0.01,
        grad_accum_steps=2,
        lr_schedule={4: 1, 12: 0.1},
        **options,
    )
    train_model.compile(optimizer=optimizer)
    np.random.seed(3)
    generator = data_generator(TEXTS * 4, 4)
    dataset = generator.to_dataset(
        types=("float32", "float32", "float32"),
        shapes=([None], [None], [None]),
        names=("Input-Token", "Input-Segment", "Input-Label"),
        padded_batch=True,
    )
    recorder = Recorder()
    train_model.fit(dataset, steps_per_epoch=8, epochs=1, callbacks=[recorder], verbose=0)
    x = [sequence_padding(list(x)) for x in zip(*map(tokenizer.encode, TEXTS[:3]))]
    return {"shown": recorder.shown, "outputs": [model.predict(x)]}
