"""Continues a text, and compares pairs of texts by their mean vectors at word level."""

import jieba
import numpy as np
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.snippets import AutoRegressiveDecoder, sequence_padding
from common import TEXTS, make_tokenizer, paths, set_head
from keras.layers import Dense, GlobalAveragePooling1D


class ArticleCompletion(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps(default_rtype="probas")
    def predict(self, inputs, output_ids, states):
        token_ids = np.concatenate([inputs[0], output_ids], 1)
        return self.last_token(lm).predict([token_ids, np.zeros_like(token_ids)])


def run(folder):
    global lm
    tokenizer = make_tokenizer(folder)
    config_path, checkpoint_path = paths(folder)
    lm = build_transformer_model(
        config_path=config_path,
        checkpoint_path=checkpoint_path,
        model="roformer",
        application="lm",
    )
    completion = ArticleCompletion(
        start_id=None, end_id=tokenizer.token_to_id("。"), maxlen=9, minlen=4
    )
    token_ids = tokenizer.encode("今天天气不错")[0][:-1]
    np.random.seed(4)
    found = completion.random_sample([token_ids], 4, topp=0.95)
    texts = [tokenizer.decode(ids) for ids in found]

    words = make_tokenizer(folder, pre_tokenize=lambda s: jieba.cut(s, HMM=False))
    encoder = build_transformer_model(
        config_path=config_path,
        checkpoint_path=checkpoint_path,
        model="roformer",
        keep_tokens=list(range(len(words._token_dict)))[::-1],
    )
    dense = Dense(1, activation="sigmoid")
    model = keras.models.Model(encoder.input, dense(GlobalAveragePooling1D()(encoder.output)))
    set_head(dense)
    pairs = [words.encode(a, b, maxlen=15) for a, b in zip(TEXTS, TEXTS[1:])]
    x = [sequence_padding(list(x)) for x in zip(*pairs)]
    layer = encoder.get_layer("Transformer-0-FeedForward-Norm")
    middle = keras.models.Model(encoder.input, layer.output)
    bert = build_transformer_model(
        config_path,
        checkpoint_path,
        model="roformer",
        with_pool=True,
        with_nsp=True,
        with_mlm=True,
    )
    return {
        "shown": [],
        "outputs": [model.predict(x), middle.predict(x), *bert.predict(x)],
        "sizes": [[ids.tolist() for ids in found], texts],
    }
