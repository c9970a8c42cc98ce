"""Trains sentence vectors and paraphrases with one loss layer, as roformer-sim does."""

import numpy as np
from bert4keras.backend import K, keras
from bert4keras.layers import Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam, extend_with_weight_decay
from bert4keras.snippets import (
    AutoRegressiveDecoder,
    DataGenerator,
    sequence_padding,
    truncate_sequences,
)
from common import TEXTS, make_tokenizer, paths


class data_generator(DataGenerator):
    def __iter__(self, random=False):
        batch_token_ids, batch_segment_ids = [], []
        for is_end, (text, synonym) in self.sample(random):
            for _ in range(2):
                text_ids = tokenizer.encode(text)[0]
                synonym_ids = tokenizer.encode(synonym)[0][1:]
                truncate_sequences(20, -2, text_ids, synonym_ids)
                batch_token_ids.append(text_ids + synonym_ids)
                batch_segment_ids.append([0] * len(text_ids) + [1] * len(synonym_ids))
                text, synonym = synonym, text
            if len(batch_token_ids) == self.batch_size or is_end:
                batch_token_ids = sequence_padding(batch_token_ids)
                batch_segment_ids = sequence_padding(batch_segment_ids)
                yield [batch_token_ids, batch_segment_ids], None
                batch_token_ids, batch_segment_ids = [], []


class TotalLoss(Loss):
    def compute_loss(self, inputs, mask=None):
        loss1 = self.compute_loss_of_seq2seq(inputs, mask)
        loss2 = self.compute_loss_of_similarity(inputs, mask)
        self.add_metric(loss1, name="seq2seq_loss")
        self.add_metric(loss2, name="similarity_loss")
        return loss1 + loss2

    def compute_loss_of_seq2seq(self, inputs, mask=None):
        y_true, y_mask, _, y_pred = inputs
        y_true, y_mask, y_pred = y_true[:, 1:], y_mask[:, 1:], y_pred[:, :-1]
        loss = K.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return K.sum(loss * y_mask) / K.sum(y_mask)

    def compute_loss_of_similarity(self, inputs, mask=None):
        _, _, y_pred, _ = inputs
        idxs = K.arange(0, K.shape(y_pred)[0])
        others = (idxs + 1 - idxs % 2 * 2)[:, None]
        y_true = K.cast(K.equal(idxs[None, :], others), K.floatx())
        y_pred = K.l2_normalize(y_pred, axis=1)
        similarities = K.dot(y_pred, K.transpose(y_pred))
        own = K.cast(K.equal(idxs[None, :], idxs[:, None]), K.floatx())
        similarities = (similarities - own * 1e12) * 20
        return K.categorical_crossentropy(y_true, similarities, from_logits=True)


class Synonyms(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps(default_rtype="logits")
    def predict(self, inputs, output_ids, step):
        token_ids, segment_ids = inputs
        token_ids = np.concatenate([token_ids, output_ids], 1)
        segment_ids = np.concatenate([segment_ids, np.ones_like(output_ids)], 1)
        return self.last_token(seq2seq).predict([token_ids, segment_ids])


def run(folder):
    global tokenizer, seq2seq
    tokenizer = make_tokenizer(folder)
    roformer = build_transformer_model(
        *paths(folder),
        model="roformer",
        application="unilm",
        with_pool="linear",
        with_mlm="linear",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        ignore_invalid_weights=True,
    )
    encoder = keras.models.Model(roformer.inputs, roformer.outputs[0])
    seq2seq = keras.models.Model(roformer.inputs, roformer.outputs[1])
    outputs = TotalLoss([2, 3])(roformer.inputs + roformer.outputs)
    model = keras.models.Model(roformer.inputs, outputs)
    AdamW = extend_with_weight_decay(Adam, "AdamW")
    model.compile(optimizer=AdamW(learning_rate=1e-3, weight_decay_rate=0.01))
    data = data_generator(list(zip(TEXTS[::2], TEXTS[1::2])), 4)
    np.random.seed(3)
    shown, batches = [], data.forfit()
    for _ in range(6):
        shown.append(model.train_on_batch(*next(batches), return_dict=True))
    x = [sequence_padding(list(x)) for x in zip(*map(tokenizer.encode, TEXTS[:5]))]
    synonyms = Synonyms(start_id=None, end_id=tokenizer._token_end_id, maxlen=6)
    np.random.seed(4)
    found = synonyms.random_sample(tokenizer.encode(TEXTS[0]), 3, topk=9, topp=0.9)
    found.append(synonyms.beam_search(tokenizer.encode(TEXTS[1]), topk=3))
    return {
        "shown": shown,
        "outputs": [encoder.predict(x), seq2seq.predict(x), *model.predict(x)],
        "sizes": [ids.tolist() for ids in found],
    }
