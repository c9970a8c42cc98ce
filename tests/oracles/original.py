"""The original implementation, bert4keras 0.11.5 on tf-keras, in a process that answers requests.

bert4keras needs Keras 2, so it cannot share a process with the Keras 3 under test.
`run_original.Original` starts this program, and calls its functions by requests: a request is a
pickled `(name of the function, arguments, keyword arguments)` on standard input, an answer is a
pickled `("result", value)` or `("error", traceback)` on what was standard output.

Each `folder` is an original one: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`. `model`,
`application` and keyword arguments are those of `bert4keras.models.build_transformer_model`:
`model` is "roformer", "roformer_v2", "bert" or "nezha"; `application` "encoder", "lm" or "unilm".
`dtype` is "float32", or "float64" for the same model in double precision.
"""

import json
import os
import pickle
import sys
import traceback
from pathlib import Path

INPUT_ORDER = ("token_ids", "segment_ids", "position_ids")
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


def ordered(inputs, dtype):
    """Returns the arrays of `inputs` as tensors, in the order of the model's inputs."""
    import tensorflow as tf

    unknown = set(inputs) - set(INPUT_ORDER)
    if unknown:
        raise ValueError(
            f"`inputs` may have the keys {INPUT_ORDER}. Received also: {sorted(unknown)}"
        )
    return [tf.cast(inputs[name], dtype) for name in INPUT_ORDER if name in inputs]


def forward(
    folder,
    inputs,
    model="roformer",
    application="encoder",
    head=None,
    dtype="float32",
    **kwargs,
):
    """Returns the list of a model's outputs.

    Args:
        folder: An original folder.
        inputs: dict of arrays `(batch, length)`: `token_ids`, `segment_ids` (unless
            `segment_vocab_size=0`) and, with `custom_position_ids=True`, `position_ids`.
        model, application, **kwargs: Arguments of `build_transformer_model`.
        head: None, "masked_mean" (mean of the encoder's output over the real tokens) or
            "all_layers" (embedding output and output of each layer).
        dtype: "float32" or "float64".
    """
    transformer = build(folder, model, application, kwargs, dtype)
    # the same as `predict`, which would need a second to build a graph
    outputs = add_head(transformer, head)(ordered(inputs, dtype), training=False)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return [output.numpy() for output in outputs]


def forward_with_noise(folder, inputs, **kwargs):
    """Returns float32 outputs, and their maximum differences from the same model in float64."""
    single = forward(folder, inputs, **kwargs)
    double = forward(folder, inputs, dtype="float64", **kwargs)
    return single, [float(abs(s - d).max()) for s, d in zip(single, double, strict=True)]


def named_weights(transformer):
    """Yields (variable's name in the checkpoint, Keras weight)."""
    for layer, names in transformer.variable_mapping().items():
        if layer in transformer.layers:
            yield from zip(names, transformer.layers[layer].trainable_weights, strict=True)


def make_checkpoint(
    folder, config, seed, model="roformer", embedding_scale=0.5, vocabulary=None, **kwargs
):
    """Writes an original folder of random weights, distributed as in the golden fixtures.

    Args:
        folder: Folder to write, created if missing.
        config: dict. Written as `bert_config.json`; see `small_config`.
        seed: int or list of int, for `numpy.random.default_rng`.
        model: bert4keras' name of the model.
        embedding_scale: Standard deviation of the embeddings. Below 0.1 it also scales the kernel
            of the MLM transform, so that the epsilon of its norm is visible (0.003).
        vocabulary: list of tokens for `vocab.txt`. By default the five special ones and
            placeholders.
        **kwargs: Heads to create: `with_mlm`, `with_pool`, `with_nsp`. By default all three for
            RoFormer and none for RoFormerV2, whose heads have no variables.

    Returns:
        The variables by name.
    """
    import numpy as np

    if not kwargs and model != "roformer_v2":
        kwargs = {"with_mlm": "linear", "with_pool": True, "with_nsp": True}
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
    return variables(folder)


def variables(folder):
    """Returns every tensor of a checkpoint by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(os.path.join(folder, "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def gradients(
    folder, inputs, labels, model="roformer", application="encoder", dtype="float32", **kwargs
):
    """Loss and gradients by variable name, as train.py's `CrossEntropy` with all dropout off.

    The loss is the mean cross entropy of the MLM logits over positions whose label is not 0;
    `labels` are token ids of shape (batch, length).
    """
    import tensorflow as tf

    kwargs = {"with_mlm": "linear", **kwargs, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    transformer = build(folder, model, application, kwargs, dtype)
    weights = dict(named_weights(transformer))
    with tf.GradientTape() as tape:
        logits = transformer.model(ordered(inputs, dtype), training=True)
        mask = tf.cast(tf.not_equal(labels, 0), dtype)
        loss = tf.keras.backend.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        loss = tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)
    # without a head the word embedding's gradient is sparse: make it dense, summing repeated rows
    values = tape.gradient(loss, weights)
    return float(loss), {
        name: tf.convert_to_tensor(value).numpy() for name, value in values.items()
    }


def train(folder, optimizer, batches, snapshots=(), dtype="float32", **kwargs):
    """`train_on_batch` with the model, the loss and the optimizer of train.py, all dropout off.

    Args:
        folder: An original RoFormer folder with the variables of the masked language model.
        optimizer: dict. Arguments of bert4keras' optimizer: `learning_rate`, and for each extension
            of Adam to use, `weight_decay_rate` with `exclude_from_weight_decay`, `lr_schedule` or
            `grad_accum_steps`.
        batches: list of (token ids, segment ids, labels). Unpredicted tokens have label 0.
        snapshots: Numbers of steps after which to return the variables.
        dtype: "float32" or "float64".
        **kwargs: Arguments of `build_transformer_model`.

    Returns:
        The loss before each step; dict from snapshot to variables by name; the names with weight
        decay.
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
    """Returns the learning rate factor of `schedule`, a dict {step: factor}, at `steps`."""
    from bert4keras.backend import K, piecewise_linear

    K.set_floatx("float32")
    return [float(piecewise_linear(int(step), schedule)) for step in steps]


def encode(vocab_path, texts, second_texts=None, word_level=True, do_lower_case=True, **arguments):
    """Encodes each text, or pair of texts, with bert4keras' `Tokenizer.encode`.

    Args:
        vocab_path: Path of a `vocab.txt`.
        texts: list of strings.
        second_texts: list of strings of the same length, or None.
        word_level: Whether to segment with `jieba.cut(text, HMM=False)` first, as for the word
            models.
        do_lower_case: Argument of `Tokenizer`.
        **arguments: `maxlen`, `pattern`, `truncate_from` of `encode`.

    Returns:
        For each text `[token ids, segment ids]`, or the name of the exception of the original.
    """
    import jieba
    from bert4keras.tokenizers import Tokenizer

    tokenizer = Tokenizer(
        str(vocab_path),
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


def decode(
    method,
    end_id,
    maxlen,
    minlen=1,
    prompt=(),
    table=None,
    folder=None,
    application="lm",
    seed=0,
    **arguments,
):
    """Generates tokens with bert4keras' `AutoRegressiveDecoder`, stop token included.

    Args:
        method: "beam_search" gives one text, "random_sample" a list of `n`.
        end_id: Id of the stop token.
        maxlen: Maximum number of new tokens.
        minlen: Minimum number of new tokens before a stop token counts.
        prompt: list of token ids in segment 0. New tokens are in segment 1 if
            `application="unilm"`.
        table: Instead of a model: the logits after any new tokens, as in
            `tests/samplers/table_model.py`. The new tokens are a node of a tree: the root is 0, and
            a node's children are `node * vocabulary + 1 + token`.
        folder: An original RoFormer folder with the variables of the masked language model.
        application: "lm" or "unilm".
        seed: Seed of NumPy's random numbers.
        **arguments: `topk`, `topp`, `n`, `temperature`, `min_ends` of the method.
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
    decoder = Decoder(start_id=None, end_id=end_id, maxlen=maxlen, minlen=minlen)
    inputs = [] if table is not None else [prompt, [0] * len(prompt)]
    return getattr(decoder, method)(inputs, **arguments)


def span_scores(name, arguments, x, mask, weights):
    """Returns the outputs of `GlobalPointer` or `EfficientGlobalPointer` with given weights."""
    import tensorflow as tf
    from bert4keras import layers
    from bert4keras.backend import K

    K.set_floatx("float32")
    layer = getattr(layers, name)(**arguments)
    layer(tf.constant(x))
    layer.set_weights(weights)
    return layer(tf.constant(x), mask=None if mask is None else tf.constant(mask)).numpy()


def multilabel_loss(name, y_true, y_pred, **options):
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
    """Returns the weights, a dict by name, after each step of an optimizer with extensions."""
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


def main():
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    import_bert4keras()
    while True:
        try:
            name, arguments, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = "result", globals()[name](*arguments, **options)
        except Exception:
            answer = "error", traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
