"""Small models of every kind, their inputs, and their weights by the original's names."""

import functools

import keras
import numpy as np

import roformer_tf
from tests.layers.harness import original_variables, randomize, weights_by_path
from tests.oracles import numpy_roformer as oracle

SIZES = {
    "vocabulary_size": 48,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
V2 = {"norm": "rms_norm", "activation": "relu", "layer_norm_epsilon": 1e-7}
KINDS = {
    "v1": {},
    "v1_pooler": {"pooler": "tanh"},
    "factorised": {"embedding_dim": 12, "activation": "gelu_tanh"},
    "without_segments": {"num_segments": 0},
    "gpt": {"masking": "causal", "num_segments": 0},
    "sim": {"masking": "unilm", "pooler": "linear"},
    "v2": V2,
    "v2_factorised": {**V2, "embedding_dim": 12},
    "v2_causal": {**V2, "masking": "causal"},
}
APPLICATIONS = {"bidirectional": "encoder", "causal": "lm", "unilm": "unilm"}
CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰馀成岁律吕调阳云腾致雨"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def backbone(kind="v1", **options):
    """Returns a small backbone with random weights, the same every time."""
    options = {**SIZES, **KINDS[kind], **options}
    return randomized(roformer_tf.RoFormerBackbone(name="backbone", **options))


def randomized(model):
    randomize(model)
    return model


def inputs(rng, batch=3, length=9, padded=True):
    """Token ids with two segments. All sequences but the first end in padding."""
    token_ids = rng.integers(5, SIZES["vocabulary_size"], size=(batch, length)).astype("int32")
    token_ids[:, 0] = 2
    padding_mask = np.ones_like(token_ids)
    if padded:
        for row in range(1, batch):
            padding_mask[row, length - 1 - row % (length - 2) :] = 0
    segment_ids = np.zeros_like(token_ids)
    segment_ids[:, length // 2 :] = 1
    return {
        "token_ids": token_ids * padding_mask,
        "segment_ids": segment_ids * padding_mask,
        "padding_mask": padding_mask,
    }


def packed_documents(rng, lengths=((5, 3, 8), (2, 9), (7, 1, 1, 4))):
    """Returns documents of these lengths, each as a batch of one, and all of them in sequences.

    The first is a list of `((sequence, slice of positions), inputs)`, the second one batch.
    """
    width = max(map(sum, lengths)) + 2
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids", "document_ids")
    packed = {name: np.zeros((len(lengths), width), "int32") for name in names}
    alone = []
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, 1):
            document = {
                "token_ids": rng.integers(5, SIZES["vocabulary_size"], size=(1, size)),
                "segment_ids": (np.arange(size) >= rng.integers(0, size + 1))[None].astype("int32"),
                "padding_mask": np.ones((1, size), "int32"),
            }
            where = (row, slice(start, start + size))
            for name, value in document.items():
                packed[name][where] = value[0]
            packed["position_ids"][where] = np.arange(size)
            packed["document_ids"][where] = number
            alone.append((where, document))
            start += size
    return alone, packed


def saved_and_loaded(model, folder):
    """Returns the model again, from a `.keras` file in this folder."""
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def new_tokenizer():
    """Returns a tokenizer of characters, with as many tokens as the models."""
    vocabulary = SPECIAL + list(CHARACTERS)
    size = SIZES["vocabulary_size"]
    assert len(vocabulary) <= size
    vocabulary += [f"[unused{i}]" for i in range(size - len(vocabulary))]
    return roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)


@functools.cache
def tokenizer():
    """Returns the one for tests that do not change it, as tracing its graph takes half a second."""
    return new_tokenizer()


@functools.cache
def shared_preprocessor(cls, tokenizer, **options):
    """Returns the one for tests that do not change it, as tracing its graphs takes a second."""
    return cls(tokenizer, **options)


def texts(rng, count, shortest=2, longest=12):
    return [
        "".join(rng.choice(list(CHARACTERS), size=rng.integers(shortest, longest + 1)))
        for _ in range(count)
    ]


def original_names(model, weights=None):
    """Returns the weights of a backbone as an original checkpoint holds them."""
    head_dim = model.hidden_dim // model.num_heads
    weights = weights_by_path(model) if weights is None else weights
    variables = {}
    names = {
        "embeddings/token_embedding/embeddings": "bert/embeddings/word_embeddings",
        "embeddings/segment_embedding/embeddings": "bert/embeddings/token_type_embeddings",
        "embeddings/norm": "bert/embeddings/LayerNorm",
        "embeddings/embedding_hidden_mapping_in": "bert/encoder/embedding_hidden_mapping_in",
        "pooler/dense": "bert/pooler/dense",
    }
    for i in range(model.num_layers):
        prefix = f"encoder_block_{i}/"
        own = {p.removeprefix(prefix): v for p, v in weights.items() if p.startswith(prefix)}
        variables |= original_variables(own, layer=i, head_dim=head_dim)
    for path, value in weights.items():
        folder, kind = path.rsplit("/", 1)
        if path in names:
            variables[names[path]] = value
        elif folder in names:
            variables[f"{names[folder]}/{kind}"] = value
    assert len(variables) == len(weights) + 4 * model.num_layers - (
        0 if model.norm == "layer_norm" else 2 * model.num_layers
    )
    return variables


def hidden_states(model, given, variables=None):
    """Returns the oracle's outputs of a backbone: hidden states and, with a pooler, its vector."""
    variables = original_names(model) if variables is None else variables
    last = oracle.encoder(
        variables,
        {
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_heads,
            "hidden_act": model.activation,
        },
        given["token_ids"],
        given["segment_ids"] if model.num_segments or model.masking == "unilm" else None,
        given.get("position_ids"),
        APPLICATIONS[model.masking],
        epsilon=model.layer_norm_epsilon,
    )[-1]
    if model.pooler is None:
        return {"sequence_output": last}
    return {
        "sequence_output": last,
        "pooled_output": oracle.pooler(last, variables, model.pooler_activation),
    }


def sequence(outputs):
    """The hidden states of a backbone's outputs, as NumPy."""
    outputs = outputs["sequence_output"] if isinstance(outputs, dict) else outputs
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


TASKS = {
    "classifier": ("v1", {"dropout": 0.0}),
    "classifier_mean": ("v2_factorised", {"pooling": "mean", "dropout": 0.0}),
    "classifier_pooler": ("v1_pooler", {"pooling": "pooler", "dropout": 0.0}),
    "masked_lm": ("factorised", {}),
    "masked_lm_v2": ("v2", {}),
    "causal_lm": ("gpt", {}),
    "causal_lm_sim": ("sim", {}),
}
NUM_CLASSES = 3


def task(name, preprocessor=None, dtype=None, num_layers=1, **options):
    """A task with random weights; `preprocessor` is a dictionary of its options, or `None`."""
    kind, own = TASKS[name]
    options = {**own, **options}
    model = backbone(kind, num_layers=num_layers, dtype=dtype)
    if name.startswith("classifier"):
        cls = roformer_tf.RoFormerTextClassifier
        options = {"num_classes": NUM_CLASSES, **options}
    else:
        lm = name.startswith("masked_lm")
        cls = roformer_tf.RoFormerMaskedLM if lm else roformer_tf.RoFormerCausalLM
    if preprocessor is not None:
        preprocessor = {"sequence_length": 16, **preprocessor}
        preprocessor = shared_preprocessor(cls.preprocessor_cls, tokenizer(), **preprocessor)
    return randomized(cls(model, preprocessor=preprocessor, **options))


def data(name, rng, batch=8):
    """`(x, y, sample_weight)` of ids for a task."""
    x = inputs(rng, batch)
    if name.startswith("classifier"):
        return x, rng.integers(0, NUM_CLASSES, size=batch), None
    if name.startswith("masked_lm"):
        x["mask_positions"] = np.sort(rng.integers(1, 5, size=(batch, 2)), axis=1)
        y = rng.integers(5, SIZES["vocabulary_size"], size=(batch, 2))
        return x, y, rng.integers(0, 2, size=(batch, 2)).astype("float32")
    y = np.roll(x["token_ids"], -1, axis=1)
    return x, y, (x["padding_mask"] * (y > 0)).astype("float32")


def expected_outputs(model, given):
    """Returns the outputs of a task in float64."""
    outputs = hidden_states(model.backbone, given)
    weights = weights_by_path(model)
    last = outputs["sequence_output"]
    if hasattr(model, "logits_dense"):
        pooled = {
            "cls": lambda: last[:, 0],
            "mean": lambda: oracle.masked_mean(last, given["padding_mask"]),
            "pooler": lambda: outputs["pooled_output"],
        }[model.pooling]()
        return pooled @ weights["logits/kernel"] + weights["logits/bias"]
    if "mask_positions" in given:
        last = np.take_along_axis(last, given["mask_positions"][..., None], axis=1)
    names = original_names(model.backbone)
    prefix = "cls/predictions/transform"
    if model.backbone.norm == "layer_norm":
        names |= {
            f"{prefix}/dense/kernel": weights["head/transform/kernel"],
            f"{prefix}/dense/bias": weights["head/transform/bias"],
            f"{prefix}/LayerNorm/gamma": weights["head/norm/gamma"],
            f"{prefix}/LayerNorm/beta": weights["head/norm/beta"],
            "cls/predictions/output_bias": weights["head/output_bias"],
        }
    elif "head/transform/kernel" in weights:
        last = last @ weights["head/transform/kernel"]
    return oracle.mlm_head(last, names, model.backbone.activation, model.head_epsilon)
