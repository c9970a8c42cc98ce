"""Original folders written without the package, with names that are not from its table."""

import json

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.checkpoint import convert, save_checkpoint
from tests.models.builders import SPECIAL, task
from tests.oracles.run_original import small_config

HEADS = ("pooler", "nsp", "mlm")


def random_variables(rng, config, family="roformer", heads=HEADS):
    """dict of an original checkpoint's variables, random."""
    v, h, f = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    e = config.get("embedding_size", h)
    shapes = {
        "bert/embeddings/word_embeddings": (v, e),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], e),
    }

    def dense(name, rows, columns):
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = (rows, columns), (columns,)

    def norm(name, size):
        shapes[f"{name}/LayerNorm/beta"] = shapes[f"{name}/LayerNorm/gamma"] = (size,)

    norm("bert/embeddings", e)
    if e != h:
        dense("bert/encoder/embedding_hidden_mapping_in", e, h)
    for i in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{i}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            dense(f"{layer}/attention/{part}", h, h)
        dense(f"{layer}/intermediate/dense", h, f)
        dense(f"{layer}/output/dense", f, h)
        norm(f"{layer}/attention/output", h)
        norm(f"{layer}/output", h)
    if family == "roformer_v2":
        shapes = {n: s for n, s in shapes.items() if not n.endswith(("bias", "beta", "gamma"))}
        heads = ()
    if family == "bert":
        shapes["bert/embeddings/position_embeddings"] = (config["max_position_embeddings"], e)
    if "pooler" in heads:
        dense("bert/pooler/dense", h, h)
    if "nsp" in heads:
        shapes["cls/seq_relationship/output_weights"] = (2, h)
        shapes["cls/seq_relationship/output_bias"] = (2,)
    if "mlm" in heads:
        dense("cls/predictions/transform/dense", h, e)
        norm("cls/predictions/transform", e)
        shapes["cls/predictions/output_bias"] = (v,)
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def write_original(folder, variables, config, tokens=None, name="bert_model.ckpt"):
    """Writes an original folder, in less time than `write_with_saver`, with the same checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    tf.raw_ops.SaveV2(
        prefix=str(folder / name),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(array) for array in variables.values()],
    )
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
    (folder / "bert_config.json").write_text(json.dumps(config))
    tokens = tokens or SPECIAL + [f"[unused{i}]" for i in range(len(SPECIAL), config["vocab_size"])]
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens), encoding="utf-8")
    return folder


def random_folder(path, rng, family="roformer", heads=HEADS, tokens=None, **changes):
    """Writes an original folder of random variables, with changes to `small_config`."""
    config = small_config(**changes)
    return write_original(path, random_variables(rng, config, family, heads), config, tokens)


def write_with_saver(folder, variables):
    """Writes a checkpoint with TF1's own `Saver`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = {
            n: tf.compat.v1.get_variable(n, shape=a.shape, dtype=a.dtype, trainable=False)
            for n, a in variables.items()
        }
        placeholders = {n: tf.compat.v1.placeholder(a.dtype, a.shape) for n, a in variables.items()}
        assigns = [tf.compat.v1.assign(tensors[n], placeholders[n]) for n in variables]
        session.run(assigns, {placeholders[n]: a for n, a in variables.items()})
        saver = tf.compat.v1.train.Saver(tensors)
        saver.save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False)
    return folder


def read_variables(path):
    """dict of all variables of a checkpoint, read by TensorFlow alone."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_bytes(left, right):
    """Every variable of `left` is in `right`, bit for bit."""
    for name, array in left.items():
        assert array.dtype == right[name].dtype, name
        assert array.shape == right[name].shape, name
        assert array.tobytes() == np.ascontiguousarray(right[name]).tobytes(), name


@pytest.fixture(scope="session")
def masked_lm():
    """A small masked LM with a preprocessor. Tests leave its weights as they are."""
    return task("masked_lm", preprocessor={})


@pytest.fixture(scope="session")
def saved(masked_lm, tmp_path_factory):
    """A folder with the masked LM in the three layouts. Tests change copies only."""
    folder = tmp_path_factory.mktemp("saved")
    save_checkpoint(masked_lm, folder / "original")
    convert(folder / "original", folder / "hugging_face")
    masked_lm.save_to_preset(folder / "preset")
    return folder


@pytest.fixture
def config():
    """Two layers, four heads, 32 wide, 200 tokens."""
    return small_config()


@pytest.fixture
def variables(rng, config):
    """Random variables of a v1 checkpoint with all heads."""
    return random_variables(rng, config)


@pytest.fixture
def folder(tmp_path, variables, config):
    """An original v1 folder with all heads."""
    return write_original(tmp_path / "chinese_roformer", variables, config)


@pytest.fixture
def v2_folder(tmp_path, rng):
    """An original v2 folder."""
    return random_folder(tmp_path / "chinese_roformer_v2", rng, "roformer_v2", hidden_act="relu")
