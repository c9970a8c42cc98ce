"""Classifies texts by the vector of [CLS], as the CLUE scripts do."""

import os

import numpy as np
from bert4keras.backend import keras
from bert4keras.optimizers import AdaFactor, extend_with_gradient_accumulation
from bert4keras.snippets import DataGenerator, sequence_padding
from common import TEXTS, Recorder, make_tokenizer, make_v2, set_head


class data_generator(DataGenerator):
    def __iter__(self, random=False):
        batch_token_ids, batch_segment_ids, batch_labels = [], [], []
        for is_end, (text, label) in self.sample(random):
            token_ids, segment_ids = tokenizer.encode(text, maxlen=12)
            batch_token_ids.append(token_ids)
            batch_segment_ids.append(segment_ids)
            batch_labels.append([label])
            if len(batch_token_ids) == self.batch_size or is_end:
                batch_token_ids = sequence_padding(batch_token_ids)
                batch_segment_ids = sequence_padding(batch_segment_ids)
                batch_labels = sequence_padding(batch_labels)
                yield [batch_token_ids, batch_segment_ids], batch_labels
                batch_token_ids, batch_segment_ids, batch_labels = [], [], []


def run(folder, output):
    global tokenizer
    tokenizer = make_tokenizer(folder)
    base = make_v2(folder)
    output_ = keras.layers.Lambda(lambda x: x[:, 0])(base.model.output)
    dense = keras.layers.Dense(3, activation="softmax", kernel_initializer=base.initializer)
    model = keras.models.Model(base.model.input, dense(output_))
    set_head(dense)
    AdaFactorG = extend_with_gradient_accumulation(AdaFactor, name="AdaFactorG")
    optimizer = AdaFactorG(
        learning_rate=5e-3, beta1=0.9, min_dim_size_to_factor=10**6, grad_accum_steps=2
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    data = data_generator([(text, i % 3) for i, text in enumerate(TEXTS)], 3)
    np.random.seed(3)
    recorder = Recorder()
    model.fit(data.forfit(), steps_per_epoch=len(data), epochs=2, callbacks=[recorder], verbose=0)
    probabilities = [model.predict(x) for x, _ in data]
    path = os.path.join(output, "best.weights")
    model.save_weights(path)
    set_head(dense, 9)
    model.load_weights(path)
    again = model.predict(next(iter(data))[0])
    return {
        "shown": recorder.shown,
        "outputs": [*probabilities, again],
        "sizes": [base.attention_head_size, base.num_hidden_layers, len(data)],
    }
