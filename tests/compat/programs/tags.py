"""Tags characters with a conditional random field."""

import numpy as np
from bert4keras.backend import K
from bert4keras.layers import ConditionalRandomField
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import DataGenerator, ViterbiDecoder, sequence_padding, to_array
from common import TEXTS, Recorder, make_tokenizer, numbers, paths, set_head
from keras.layers import Dense
from keras.models import Model


class data_generator(DataGenerator):
    def __iter__(self, random=False):
        batch_token_ids, batch_segment_ids, batch_labels = [], [], []
        for is_end, text in self.sample(random):
            token_ids, segment_ids = tokenizer.encode(text, maxlen=16)
            batch_token_ids.append(token_ids)
            batch_segment_ids.append(segment_ids)
            batch_labels.append(np.array(token_ids) % 3)
            if len(batch_token_ids) == self.batch_size or is_end:
                batch_token_ids = sequence_padding(batch_token_ids)
                batch_segment_ids = sequence_padding(batch_segment_ids)
                yield [batch_token_ids, batch_segment_ids], sequence_padding(batch_labels)
                batch_token_ids, batch_segment_ids, batch_labels = [], [], []


def run(folder):
    global tokenizer
    tokenizer = make_tokenizer(folder)
    model = build_transformer_model(*paths(folder), dropout_rate=0.0, attention_dropout_rate=0.0)
    dense = Dense(3)
    CRF = ConditionalRandomField(lr_multiplier=100)
    model = Model(model.input, CRF(dense(model.output)))
    set_head(dense)
    CRF.set_weights([0.01 * numbers((3, 3), 4)])
    model.compile(loss=CRF.sparse_loss, optimizer=Adam(1e-3), metrics=[CRF.sparse_accuracy])
    data = data_generator(TEXTS, 3)
    np.random.seed(3)
    recorder = Recorder()
    model.fit(data.forfit(), steps_per_epoch=len(data), epochs=2, callbacks=[recorder], verbose=0)
    decoder = ViterbiDecoder(trans=K.eval(CRF.trans), starts=[0], ends=[0])
    outputs, best = [], []
    for text in TEXTS:
        outputs.append(model.predict(to_array(*[[x] for x in tokenizer.encode(text)]))[0])
        best.append(decoder.decode(outputs[-1].copy()).tolist())
    return {
        "shown": recorder.shown,
        "outputs": [*outputs, K.eval(CRF.trans)] + [model.predict(x) for x, _ in data],
        "sizes": best,
    }
