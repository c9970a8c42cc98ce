"""The original implementation, bert4keras 0.11.5 on tf-keras, in a process that answers requests.

`tests.oracles.Original` starts it and sends requests. A request is a pickled `(name, arguments)` on
standard input, an answer is a pickled `("result", value)` or `("error", traceback)` on what was
standard output. bert4keras needs Keras 2, so it cannot share a process with the Keras 3 under test.
"""

import json
import os
import pickle
import sys
import traceback
from pathlib import Path

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def import_bert4keras():
    """Imports bert4keras unedited on a current TensorFlow; five shims change no number."""
    os.environ.update(
        TF_KERAS="1",  # 1. bert4keras on tf.keras, as the original train.py requires
        TF_USE_LEGACY_KERAS="1",  # 2. and tf.keras is tf-keras (Keras 2)
        TF_ENABLE_ONEDNN_OPTS="0",  # bit-reproducible results
        TF_CPP_MIN_LOG_LEVEL="3",
        CUDA_VISIBLE_DEVICES="-1",
    )
    import tensorflow as tf
    from tensorflow.python.eager import context

    # 3. the class that its optimizers extend
    tf.keras.optimizers.Optimizer = tf.keras.optimizers.legacy.Optimizer
    tf.Session, tf.train.Saver = tf.compat.v1.Session, tf.compat.v1.train.Saver  # 4. for saving
    from bert4keras.backend import K

    def batch_get_value(variables):  # 5. the same, but works inside `with tf.Graph()`
        with context.eager_mode():
            return [variable.numpy() for variable in variables]

    K.batch_get_value = batch_get_value
    return K


def build(folder, model, application, kwargs, dtype="float32", load=True):
    """Builds bert4keras' own model object for an original folder, with its weights if `load`."""
    from bert4keras.backend import K
    from bert4keras.models import build_transformer_model

    K.clear_session()
    K.set_floatx(dtype)
    kwargs = dict(kwargs)
    if "compound_tokens" in kwargs:  # bert4keras needs tuples of ids and weights, JSON gives lists
        kwargs["compound_tokens"] = [
            tuple(item) if isinstance(item[0], (list, tuple)) else item
            for item in kwargs["compound_tokens"]
        ]
    return build_transformer_model(
        os.path.join(folder, "bert_config.json"),
        os.path.join(folder, "bert_model.ckpt") if load else None,
        model=model,
        application=application,
        return_keras_model=False,
        **kwargs,
    )


def add_head(transformer, head):
    """Adds one of the goldens' two outputs that bert4keras has no argument for."""
    import keras  # tf-keras, as bert4keras registers it

    model = transformer.model
    if head is None:
        return model
    if head == "masked_mean":  # as finetune_scm.py; bert4keras' layer of this name skips padding
        output = keras.layers.GlobalAveragePooling1D()(model.output)
    elif head == "all_layers":
        names = [f"Transformer-{i}-FeedForward-Norm" for i in range(transformer.num_hidden_layers)]
        output = [model.get_layer(name).output for name in ["Embedding-Norm", *names]]
    else:
        raise ValueError(f'`head` must be None, "masked_mean" or "all_layers". Received: {head!r}')
    return keras.models.Model(model.inputs, output)


def forward(folder, model, application, kwargs, inputs, head, dtype):
    """Returns the list of a model's outputs; `inputs` are the arrays in bert4keras' order."""
    import tensorflow as tf

    transformer = build(folder, model, application, kwargs, dtype)
    # the same as `predict`, which would need a second to build a graph
    outputs = add_head(transformer, head)([tf.cast(x, dtype) for x in inputs], training=False)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return [output.numpy() for output in outputs]


def named_weights(transformer):
    """Yields (variable's name in the checkpoint, Keras weight)."""
    for layer, names in transformer.variable_mapping().items():
        if layer in transformer.layers:
            yield from zip(names, transformer.layers[layer].trainable_weights, strict=True)


def make_checkpoint(folder, config, model, seed, kwargs, embedding_scale, vocabulary):
    """Writes an original folder with random weights, distributed as in the golden fixtures."""
    import numpy as np

    Path(folder).mkdir(parents=True, exist_ok=True)
    tokens = SPECIAL_TOKENS + [f"[unused{i}]" for i in range(5, config["vocab_size"])]
    tokens = tokens if vocabulary is None else vocabulary
    Path(folder, "vocab.txt").write_text(
        "".join(f"{token}\n" for token in tokens), encoding="utf-8"
    )
    Path(folder, "bert_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    transformer = build(folder, model, "encoder", kwargs, load=False)
    rng = np.random.default_rng(seed)
    for name, weight in named_weights(transformer):
        noise = rng.standard_normal(weight.shape)
        if name.startswith("bert/embeddings/") and name.endswith("_embeddings"):
            value = embedding_scale * noise
        elif name.endswith("gamma"):
            value = 1 + 0.2 * noise
        elif name.endswith(("beta", "bias")):
            value = 0.2 * noise
        elif embedding_scale < 0.1 and name.startswith("cls/predictions/transform/dense/kernel"):
            value = embedding_scale * noise  # small inputs for the head's norm too
        elif name.endswith(("query/kernel", "key/kernel")):
            value = 2 / weight.shape[0] ** 0.5 * noise  # attention far from uniform
        else:
            value = 1.2 / weight.shape[0] ** 0.5 * noise
        weight.assign(value)
    transformer.save_weights_as_checkpoint(os.path.join(folder, "bert_model.ckpt"))


def variables(folder):
    """Returns every tensor of a checkpoint by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(os.path.join(folder, "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def gradients(folder, model, application, kwargs, inputs, labels, dtype):
    """Loss and gradients by variable name, as train.py's `CrossEntropy` with all dropout off.

    The loss is the mean cross entropy over positions whose label is not 0.
    """
    import tensorflow as tf

    kwargs = {"with_mlm": "linear", **kwargs, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    transformer = build(folder, model, application, kwargs, dtype)
    weights = dict(named_weights(transformer))
    with tf.GradientTape() as tape:
        logits = transformer.model([tf.cast(array, dtype) for array in inputs], training=True)
        mask = tf.cast(tf.not_equal(labels, 0), dtype)
        loss = tf.keras.backend.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        loss = tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)
    # without a head the word embedding's gradient is sparse: make it dense, summing repeated rows
    values = tape.gradient(loss, weights)
    return float(loss), {
        name: tf.convert_to_tensor(value).numpy() for name, value in values.items()
    }


def train(folder, kwargs, optimizer, batches, snapshots, dtype):
    """`train_on_batch` with the model, the loss and the optimizer of train.py, all dropout off.

    `optimizer` has the arguments of the optimizer. Each extension of Adam is used if its argument
    is given. Returns the loss before every step, the variables after the steps in `snapshots`, the
    names that decay.
    """
    import tensorflow as tf
    from bert4keras import optimizers

    kwargs = {"with_mlm": "linear", **kwargs, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    transformer = build(folder, "roformer", "encoder", kwargs, dtype)
    model, weights = transformer.model, dict(named_weights(transformer))
    labels = tf.keras.layers.Input((None,), dtype=dtype)
    logits = tf.nest.flatten(model.output)[-1]

    def cross_entropy(y):
        labels, logits = y
        mask = tf.cast(tf.not_equal(labels, 0), dtype)
        loss = tf.keras.backend.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)

    trained = tf.keras.models.Model([*model.inputs, labels], logits)
    trained.add_loss(tf.keras.layers.Lambda(cross_entropy)([labels, logits]))
    cls = optimizers.Adam
    for argument, extend in (
        ("weight_decay_rate", optimizers.extend_with_weight_decay),
        ("lr_schedule", optimizers.extend_with_piecewise_linear_lr),
        ("grad_accum_steps", optimizers.extend_with_gradient_accumulation),
    ):
        if argument in optimizer:
            cls = extend(cls)
    chain = cls(**optimizer)
    # ten eager steps are faster than building a graph
    trained.compile(optimizer=chain, run_eagerly=True)
    losses, found = [], {}
    for step, batch in enumerate(batches, 1):
        losses.append(float(trained.train_on_batch(list(batch))))
        if step in snapshots:
            found[step] = {name: weight.numpy() for name, weight in weights.items()}
    decays = getattr(chain, "_do_weight_decay", lambda weight: False)
    return losses, found, [name for name, weight in weights.items() if decays(weight)]


def piecewise_linear(steps, schedule):
    """Returns bert4keras' `piecewise_linear` at each of the steps."""
    from bert4keras.backend import K, piecewise_linear

    K.set_floatx("float32")
    return [float(piecewise_linear(step, schedule)) for step in steps]


def encode(vocab_path, texts, second_texts, word_level, do_lower_case, arguments):
    """Runs `Tokenizer.encode`: for each text [token ids, segment ids], or the exception's name."""
    import jieba
    from bert4keras.tokenizers import Tokenizer

    tokenizer = Tokenizer(
        vocab_path,
        do_lower_case=do_lower_case,
        pre_tokenize=(lambda text: jieba.cut(text, HMM=False)) if word_level else None,
    )
    results = []
    for text, second in zip(texts, second_texts or [None] * len(texts), strict=True):
        try:
            results.append(list(map(list, tokenizer.encode(text, second, **arguments))))
        except Exception as error:  # its errors are part of its behaviour
            results.append(type(error).__name__)
    return results


def decode(method, options, arguments, prompt, table, folder, application, seed):
    """Runs a method of `AutoRegressiveDecoder`, with a table of logits or a model.

    `options` are passed to its constructor, `arguments` to the method. In a table the new tokens
    are a node of a tree: the root is 0, and a node's children are `node * vocabulary + 1 + token`.
    """
    import numpy as np
    from bert4keras.snippets import AutoRegressiveDecoder

    if table is None:
        model = build(folder, "roformer", application, {"with_mlm": "linear"}).model

    class Decoder(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps(default_rtype="logits")
        def predict(self, inputs, output_ids, states):
            if table is not None:
                node = np.zeros(len(output_ids), int)
                for tokens in output_ids.T:
                    node = node * table.shape[1] + 1 + tokens
                return table[node]
            ids, segments = inputs
            ids = np.concatenate([ids, output_ids], 1)
            new = np.full_like(output_ids, 1 if application == "unilm" else 0)
            segments = np.concatenate([segments, new], 1)
            return model.predict_on_batch([ids, segments])[:, -1]

    np.random.seed(seed)  # noqa: NPY002, what `random_sample` draws from
    decoder = Decoder(start_id=None, **options)
    inputs = [] if table is not None else [prompt, [0] * len(prompt)]
    return getattr(decoder, method)(inputs, **arguments)


def span_scores(name, arguments, x, mask, weights):
    """Returns the outputs of `GlobalPointer` or `EfficientGlobalPointer`."""
    import tensorflow as tf
    from bert4keras import layers
    from bert4keras.backend import K

    K.set_floatx("float32")
    layer = getattr(layers, name)(**arguments)
    layer(tf.constant(x))
    layer.set_weights(weights)
    return layer(tf.constant(x), mask=None if mask is None else tf.constant(mask)).numpy()


def multilabel_loss(name, y_true, y_pred, options):
    """Returns a function of this name of bert4keras' backend."""
    import tensorflow as tf
    from bert4keras import backend

    backend.K.set_floatx("float32")
    return getattr(backend, name)(tf.constant(y_true), tf.constant(y_pred), **options).numpy()


def conditional_random_field(x, mask, weights, lr_multiplier, tags):
    """Returns the loss of each sequence, its gradients, and the best tags of `ViterbiDecoder`."""
    import tensorflow as tf
    from bert4keras.backend import K
    from bert4keras.layers import ConditionalRandomField
    from bert4keras.snippets import ViterbiDecoder

    K.set_floatx("float32")
    layer = ConditionalRandomField(lr_multiplier)
    layer(tf.constant(x))
    layer.set_weights([weights])
    inputs = tf.Variable(x)
    with tf.GradientTape() as tape:
        scores = layer(inputs, mask=tf.constant(mask))
        loss = layer.sparse_loss(tf.constant(tags), scores)
    gradients = [g.numpy() for g in tape.gradient(loss, [inputs, *layer.trainable_weights])]
    decoder = ViterbiDecoder(layer.trans.numpy(), starts=[0], ends=[0])
    best = [decoder.decode(row[: m.sum()].copy()) for row, m in zip(x, mask, strict=True)]
    return loss.numpy(), gradients, best


def optimize(name, extensions, options, weights, gradients):
    """Returns the weights, a dict by name, after each step of an optimizer."""
    import tensorflow as tf
    from bert4keras import optimizers
    from bert4keras.backend import K

    K.set_floatx("float32")
    cls = getattr(optimizers, name)
    for extension in extensions:
        cls = getattr(optimizers, f"extend_with_{extension}")(cls)
    optimizer = cls(**options)
    variables = {key: tf.Variable(value, name=key) for key, value in weights.items()}
    steps = []
    for row in gradients:
        pairs = [(tf.constant(row[key]), variable) for key, variable in variables.items()]
        optimizer.apply_gradients(pairs)
        steps.append({key: variable.numpy() for key, variable in variables.items()})
    return steps


def run_program(text, arguments):
    """Executes the text of a program, and returns what its function `run` returns.

    Eagerly: AdaFactor makes a variable in every step, and graphs of a few steps take longer.
    """
    import tensorflow as tf
    from bert4keras.backend import K

    K.clear_session()
    K.set_floatx("float32")
    tf.config.run_functions_eagerly(True)
    try:
        names = {}
        exec(text, names)
        return names["run"](**arguments)
    finally:
        tf.config.run_functions_eagerly(False)


FUNCTIONS = (
    run_program,
    optimize,
    forward,
    make_checkpoint,
    variables,
    gradients,
    train,
    piecewise_linear,
    encode,
    decode,
    span_scores,
    multilabel_loss,
    conditional_random_field,
)
REQUESTS = {function.__name__: function for function in FUNCTIONS}


def main():
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    import_bert4keras()
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = "result", REQUESTS[name](*arguments)
        except Exception:
            answer = "error", traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
