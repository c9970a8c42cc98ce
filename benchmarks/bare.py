"""RoFormer written by hand in plain TensorFlow: no Keras, no options; what a fast float32 model has to reach."""

import math

import numpy as np
import tensorflow as tf


class BareRoFormer(tf.Module):
    def __init__(self, sizes, seed):
        super().__init__()
        self.sizes, width = sizes, sizes.width
        rng = np.random.default_rng(seed)

        def normal(*shape):
            return tf.Variable(rng.normal(0, 0.02, shape).astype("float32"))

        def dense(inputs, outputs):
            return normal(inputs, outputs), tf.Variable(tf.zeros(outputs))

        def norm():
            return tf.Variable(tf.ones(width)), tf.Variable(tf.zeros(width))

        self.tokens, self.segments = normal(sizes.vocabulary, width), normal(2, width)
        self.embedding_norm, self.head_norm = norm(), norm()
        self.blocks = [
            {
                "qkv": dense(width, 3 * width),
                "output": dense(width, width),
                "attention_norm": norm(),
                "up": dense(width, sizes.intermediate),
                "down": dense(sizes.intermediate, width),
                "norm": norm(),
            }
            for _ in range(sizes.layers)
        ]
        self.transform, self.output_bias = (
            dense(width, width),
            tf.Variable(tf.zeros(sizes.vocabulary)),
        )
        self.parameters = self.trainable_variables
        self.moments = None  # made by the first step: inference needs none
        self.steps = tf.Variable(0.0, trainable=False)

    def hidden(self, ids, segments, padding_mask, dropout=0.0):
        batch, length = tf.shape(ids)[0], tf.shape(ids)[1]
        heads, width = self.sizes.heads, self.sizes.width
        dim = width // heads

        def drop(x):
            return tf.nn.dropout(x, dropout) if dropout else x

        theta = 10000.0 ** (-np.arange(0, dim, 2, dtype="float32") / dim)
        angle = tf.cast(tf.range(length), tf.float32)[:, None] * theta
        cos = tf.concat([tf.cos(angle), tf.cos(angle)], -1)
        sin = tf.concat([-tf.sin(angle), tf.sin(angle)], -1)  # the sign of the rotation is in here
        bias = tf.where(padding_mask[:, None, None, :] > 0, 0.0, -1e9)

        # dense gradients: a look-up in a reshaped table has them
        x = tf.gather(tf.reshape(self.tokens, self.tokens.shape), ids)
        x = x + tf.gather(tf.reshape(self.segments, self.segments.shape), segments)
        x = drop(_norm(tf.reshape(x, (-1, width)), *self.embedding_norm))
        for block in self.blocks:
            qkv = tf.reshape(_dense(x, *block["qkv"]), (batch, length, 3, heads, dim))
            query, key, value = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
            query = query * cos + tf.roll(query, dim // 2, -1) * sin
            key = key * cos + tf.roll(key, dim // 2, -1) * sin
            scores = tf.matmul(query * dim**-0.5, key, transpose_b=True) + bias
            context = tf.matmul(drop(tf.nn.softmax(scores)), value)
            context = tf.reshape(tf.transpose(context, (0, 2, 1, 3)), (-1, width))
            x = _norm(x + drop(_dense(context, *block["output"])), *block["attention_norm"])
            inner = _gelu(_dense(x, *block["up"]))
            x = _norm(x + drop(_dense(inner, *block["down"])), *block["norm"])
        return x  # (batch * length, width)

    @tf.function(reduce_retracing=True)
    def infer(self, ids, segments, padding_mask):
        x = self.hidden(ids, segments, padding_mask)
        return tf.reshape(x, (tf.shape(ids)[0], -1, self.sizes.width))

    @tf.function(reduce_retracing=True)
    def step(self, ids, segments, padding_mask, positions, labels, dropout=0.1):
        """Does an AdamW step of the masked-LM loss. Only masked positions are multiplied with the vocabulary."""
        rows = tf.range(tf.shape(ids)[0])[:, None] * tf.shape(ids)[1]
        with tf.GradientTape() as tape:
            x = self.hidden(ids, segments, padding_mask, dropout)
            x = tf.gather(x, tf.reshape(rows + positions, (-1,)))
            x = _norm(_gelu(_dense(x, *self.transform)), *self.head_norm)
            logits = tf.matmul(x, self.tokens, transpose_b=True) + self.output_bias
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, (-1,)), logits)
            loss = tf.reduce_mean(loss)
        self.adamw(tape.gradient(loss, self.parameters))
        return loss

    def adamw(self, gradients, rate=1e-5, beta1=0.9, beta2=0.999, epsilon=1e-6, decay=0.01):
        if self.moments is None:
            with tf.init_scope():
                zeros = [tf.zeros(v.shape) for v in self.parameters]
                self.moments = [[tf.Variable(z, trainable=False) for z in zeros] for _ in range(2)]
        t = self.steps.assign_add(1.0)
        for variable, gradient, m, v in zip(self.parameters, gradients, *self.moments):
            variable.assign_sub(variable * (rate * decay))
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=beta1**t,
                beta2_power=beta2**t,
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=gradient,
            )


def _dense(x, kernel, bias):
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def _gelu(x):
    return 0.5 * x * (1.0 + tf.math.erf(x * (1.0 / math.sqrt(2.0))))


def _norm(x, gamma, beta, epsilon=1e-12):
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    a = gamma * tf.math.rsqrt(variance + epsilon)
    return x * a + (beta - mean * a)
