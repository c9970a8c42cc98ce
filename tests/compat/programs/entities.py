"""Finds entities by their start and end, as the scripts of GlobalPointer do."""

import numpy as np
from bert4keras.backend import K, keras, multilabel_categorical_crossentropy
from bert4keras.layers import EfficientGlobalPointer, GlobalPointer
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import DataGenerator, sequence_padding, to_array
from common import TEXTS, Recorder, make_tokenizer, paths, set_head

categories = ["LOC", "PER"]


class data_generator(DataGenerator):
    def __iter__(self, random=False):
        batch_token_ids, batch_segment_ids, batch_labels = [], [], []
        for is_end, d in self.sample(random):
            tokens = tokenizer.tokenize(d[0], maxlen=14)
            mapping = tokenizer.rematch(d[0], tokens)
            start_mapping = {j[0]: i for i, j in enumerate(mapping) if j}
            end_mapping = {j[-1]: i for i, j in enumerate(mapping) if j}
            token_ids = tokenizer.tokens_to_ids(tokens)
            labels = np.zeros((len(categories), 14, 14))
            for start, end, label in d[1:]:
                if start in start_mapping and end in end_mapping:
                    labels[categories.index(label), start_mapping[start], end_mapping[end]] = 1
            batch_token_ids.append(token_ids)
            batch_segment_ids.append([0] * len(token_ids))
            batch_labels.append(labels[:, : len(token_ids), : len(token_ids)])
            if len(batch_token_ids) == self.batch_size or is_end:
                batch_token_ids = sequence_padding(batch_token_ids)
                batch_segment_ids = sequence_padding(batch_segment_ids)
                batch_labels = sequence_padding(batch_labels, seq_dims=3)
                yield [batch_token_ids, batch_segment_ids], batch_labels
                batch_token_ids, batch_segment_ids, batch_labels = [], [], []


def crossentropy(y_true, y_pred):
    bh = K.prod(K.shape(y_pred)[:2])
    y_true = K.reshape(y_true, (bh, -1))
    y_pred = K.reshape(y_pred, (bh, -1))
    return K.mean(multilabel_categorical_crossentropy(y_true, y_pred))


def f1_score(y_true, y_pred):
    y_pred = K.cast(K.greater(y_pred, 0), K.floatx())
    return 2 * K.sum(y_true * y_pred) / K.sum(y_true + y_pred)


def run(folder, efficient):
    global tokenizer
    tokenizer = make_tokenizer(folder)
    model = build_transformer_model(*paths(folder), dropout_rate=0.0, attention_dropout_rate=0.0)
    pointer = (EfficientGlobalPointer if efficient else GlobalPointer)(len(categories), 8)
    model = keras.models.Model(model.input, pointer(model.output))
    set_head(pointer)
    model.compile(loss=crossentropy, optimizer=Adam(2e-3), metrics=[f1_score])
    rows = [[text, (2, 3, categories[i % 2]), (4, 5, "LOC")] for i, text in enumerate(TEXTS)]
    data = data_generator(rows, 3)
    np.random.seed(3)
    recorder = Recorder()
    model.fit(data.forfit(), steps_per_epoch=len(data), epochs=2, callbacks=[recorder], verbose=0)
    outputs = []
    for text in TEXTS[:2]:
        token_ids = tokenizer.encode(text)[0]
        scores = model.predict(to_array([token_ids], [[0] * len(token_ids)]))[0]
        scores[:, [0, -1]] -= np.inf
        outputs.append(scores)
    return {"shown": recorder.shown, "outputs": outputs + [model.predict(x) for x, _ in data]}
