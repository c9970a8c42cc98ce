"""Finds an answer in a text, with a mask layer over the question, as `cmrc2018.py` does."""

import numpy as np
from bert4keras.backend import K, keras
from bert4keras.layers import GlobalPointer
from bert4keras.optimizers import AdaFactor
from bert4keras.snippets import sequence_padding
from common import TEXTS, Recorder, make_tokenizer, make_v2, set_head


class CustomMasking(keras.layers.Layer):
    def compute_mask(self, inputs, mask=None):
        return K.greater(inputs[1], 0.5)

    def call(self, inputs, mask=None):
        return inputs[0] * 1.0  # tf-keras keeps the old mask of a tensor that is passed on

    def compute_output_shape(self, input_shape):
        return input_shape[0]


def crossentropy(y_true, y_pred):
    b, l = K.shape(y_pred)[0], K.shape(y_pred)[1]
    y_true = K.reshape(y_true, (b, 2))
    y_true = K.cast(y_true, "int32")
    y_true = y_true[:, 0] * l + y_true[:, 1]
    y_pred = K.reshape(y_pred, (b, -1))
    return K.mean(K.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True))


def accuracy(y_true, y_pred):
    b, l = K.shape(y_pred)[0], K.shape(y_pred)[1]
    y_true = K.cast(K.reshape(y_true, (b, 2)), "int32")
    y_true = y_true[:, 0] * l + y_true[:, 1]
    y_pred = K.cast(K.argmax(K.reshape(y_pred, (b, -1)), axis=1), "int32")
    return K.mean(K.cast(K.equal(y_true, y_pred), K.floatx()))


def run(folder):
    tokenizer = make_tokenizer(folder)
    base = make_v2(folder)
    masks_in = keras.layers.Input(shape=(None,))
    output = CustomMasking()([base.model.output, masks_in])
    pointer = GlobalPointer(
        heads=1,
        head_size=base.attention_head_size,
        use_bias=False,
        kernel_initializer=base.initializer,
    )
    output = keras.layers.Lambda(lambda x: x[:, 0])(pointer(output))
    model = keras.models.Model(base.model.inputs + [masks_in], output)
    set_head(pointer)
    model.compile(
        loss=crossentropy, optimizer=AdaFactor(learning_rate=5e-3, beta1=0.9), metrics=[accuracy]
    )

    def batches():
        while True:
            for start in (0, 3):
                texts = TEXTS[start : start + 3]
                ids = [tokenizer.encode("在哪", text)[0] for text in texts]
                masks = [[1, 0, 0, 0] + [1] * (len(x) - 5) + [0] for x in ids]
                x = [sequence_padding(ids), sequence_padding([[0] * len(x) for x in ids])]
                yield x + [sequence_padding(masks)], np.array([[4, 5], [0, 0], [6, 6]])

    recorder = Recorder()
    model.fit(batches(), steps_per_epoch=4, epochs=1, callbacks=[recorder], verbose=0)
    x = next(batches())[0]
    return {"shown": recorder.shown, "outputs": [model.predict(x), base.model.predict(x[:2])]}
