"""Put before each program: data, a vocabulary, and a record of the losses."""

import os

import numpy as np
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.tokenizers import Tokenizer

TEXTS = [
    "今天天气不错，我们去公园散步。",
    "北京大学的图书馆在湖边",
    "这家酒店的服务很好，房间也干净。",
    "微信和支付宝哪个好？",
    "他在上海的银行工作了十年！",
    "物流很快，包装完整，下次还来。",
    "这部电影的音乐很美，故事一般。",
    "老师说明天有考试，请大家准备。",
]


def paths(folder):
    return os.path.join(folder, "bert_config.json"), os.path.join(folder, "bert_model.ckpt")


def make_tokenizer(folder, **kwargs):
    return Tokenizer(os.path.join(folder, "vocab.txt"), do_lower_case=True, **kwargs)


def make_v2(folder):
    """Builds RoFormer v2 without dropout."""
    return build_transformer_model(
        *paths(folder),
        model="roformer_v2",
        return_keras_model=False,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )


def numbers(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def set_head(layer, seed=5):
    """Gives a new head the same weights in both environments."""
    layer.set_weights([0.3 * numbers(w.shape, seed + i) for i, w in enumerate(layer.get_weights())])


class Recorder(keras.callbacks.Callback):
    """Keeps what is shown after each step."""

    def __init__(self):
        self.shown = []

    def on_batch_end(self, batch, logs=None):
        self.shown.append({key: float(value) for key, value in logs.items()})
