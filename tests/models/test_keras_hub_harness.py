"""KerasHub's own harness, `keras_hub.src.tests.test_case.TestCase`, run on every class of ours.

Left out, as it contradicts what we promise:

* the name of a backbone: KerasHub wants "ro_former_backbone", our models are called "roformer_…",
  so the backbones of these tests get KerasHub's name;
* Performer's random features under `bfloat16`: they stay in float32 under every dtype policy;
* the preprocessor of RoFormer-Sim: it makes two sequences of a pair, as the original does, and
  KerasHub wants a sequence for each example.
"""

import numpy as np
import pytest
from keras_hub.src.tests.test_case import TestCase

import roformer_tf
from roformer_tf.text import train_sentencepiece
from tests.models import builders, seq_2_seq

# the harness' own calls of Keras and TensorFlow
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
IDS = {
    "token_ids": np.ones((2, 5), "int32"),
    "segment_ids": np.zeros((2, 5), "int32"),
    "padding_mask": np.ones((2, 5), "int32"),
}
SEQ_2_SEQ_IDS = {
    f"{side}_{name}": np.ones((2, 5), "int32")
    for side in ("encoder", "decoder")
    for name in ("token_ids", "padding_mask")
}
SEQ_2_SEQ_SIZES = {**builders.SIZES, "vocabulary_size": seq_2_seq.SIZES["vocabulary_size"]}
TEXTS = ["天地玄黄", "宇宙洪荒。日月"]
BACKBONES = {
    "v1": {},
    "gpt": {"masking": "causal", "num_segments": 0},
    "v1_pooler": {"pooler": "tanh"},
    "v2": builders.V2,
    "sim": {"masking": "unilm", "pooler": "linear"},
    "performer": {"attention": "favor"},
    "factorised_bert": {"embedding_dim": 12, "position_scheme": "learned"},
    "causal_nezha": {
        "masking": "causal", "num_segments": 0, "position_scheme": "sinusoidal_relative"
    },
}  # fmt: skip
EACH = [
    kind if kind in ("v1_pooler", "v2") else pytest.param(kind, marks=pytest.mark.slow)
    for kind in BACKBONES
    if kind not in ("v1", "gpt")  # the last two have what is theirs
]


class Harness(TestCase):
    def runTest(self):
        """Makes an instance without a test of its own."""


@pytest.fixture
def harness():
    case = Harness()
    case.setUp()
    yield case
    case.tearDown()
    case.doCleanups()


def arguments(kind):
    return {**builders.SIZES, **BACKBONES[kind]}


@pytest.mark.eager
@pytest.mark.parametrize("kind", EACH)
def test_backbone(harness, kind):
    shape = (2, 5, builders.SIZES["hidden_dim"])
    if arguments(kind).get("pooler"):
        shape = {"sequence_output": shape, "pooled_output": shape[::2]}
    harness.run_backbone_test(
        roformer_tf.RoFormerBackbone,
        {**arguments(kind), "name": "ro_former_backbone"},
        IDS,
        shape,
        run_mixed_precision_check=kind != "performer",
    )


def test_seq_2_seq_backbone(harness):
    shape = (2, 5, builders.SIZES["hidden_dim"])
    harness.run_backbone_test(
        roformer_tf.RoFormerSeq2SeqBackbone,
        {**SEQ_2_SEQ_SIZES, "name": "ro_former_seq2_seq_backbone"},
        SEQ_2_SEQ_IDS,
        {"encoder_sequence_output": shape, "decoder_sequence_output": shape},
    )


@pytest.mark.parametrize("kind", ["v1", "sim", "v2"])
def test_saving(harness, kind):
    harness.run_model_saving_test(roformer_tf.RoFormerBackbone, arguments(kind), IDS)


PAIRS = TEXTS, TEXTS[::-1]
# class, kind of backbone, options that leave nothing to chance, data to train on, shape of outputs
TASKS = {
    "classifier": (roformer_tf.RoFormerTextClassifier, "v1", {}, (TEXTS, [0, 2]), (2, 3)),
    "masked_lm": (
        roformer_tf.RoFormerMaskedLM,
        "v1",
        {"mask_selection_rate": 1.0, "mask_token_rate": 1.0, "random_token_rate": 0.0},
        (TEXTS,),
        None,
    ),
    "causal_lm": (
        roformer_tf.RoFormerCausalLM,
        "gpt",
        {},
        (TEXTS,),
        (2, 9, builders.SIZES["vocabulary_size"]),
    ),
    "sim_classifier": (roformer_tf.RoFormerSimClassifier, "sim", {}, (PAIRS, [0, 3]), (2, 5)),
    "sim": (roformer_tf.RoFormerSim, "sim", {"source_mask_rate": 0.0}, (PAIRS,), None),
    "seq_2_seq": (
        roformer_tf.RoFormerSeq2SeqLM,
        None,
        {},
        ((["a cat", "a dog ran"], ["eine Katze", "ein Hund lief"]),),
        None,
    ),
}


def preprocessor_of(name):
    """Returns the class of a task's preprocessor, and its arguments."""
    cls, _, options, *_ = TASKS[name]
    if name == "seq_2_seq":
        lengths = {"encoder_sequence_length": 9, "decoder_sequence_length": 9}
        options = {"tokenizer": seq_2_seq.tokenizer(), **lengths}
    else:
        options = {"tokenizer": builders.tokenizer(), "sequence_length": 9, **options}
    return cls.preprocessor_cls, {**options, "padding": "max_length"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_task(harness, name):
    cls, kind, _, data, shape = TASKS[name]
    sizes = SEQ_2_SEQ_SIZES if kind is None else arguments(kind)
    preprocessor_cls, options = preprocessor_of(name)
    harness.run_task_test(
        cls,
        {
            "backbone": cls.backbone_cls(**{**sizes, "num_layers": 1}),
            "preprocessor": preprocessor_cls(**options),
            **({"num_classes": 3} if name == "classifier" else {}),
        },
        data,
        expected_output_shape=shape,
        compile_kwargs={"run_eagerly": True},  # tests of each task have graphs
    )


def test_tokenizer(harness):
    tokenizer = builders.tokenizer()
    harness.run_preprocessing_layer_test(
        roformer_tf.RoFormerTokenizer,
        {"vocabulary": tokenizer.get_vocabulary(), "word_level": False},
        TEXTS[:1],
        expected_output=[tokenizer.tokenize(TEXTS[0])],
    )


def test_sentence_piece_tokenizer(harness):
    proto = train_sentencepiece(["the quick brown fox", "a lazy dog"] * 5, 30)
    harness.run_preprocessing_layer_test(
        roformer_tf.RoFormerSentencePieceTokenizer, {"proto": proto}, ["a quick dog"]
    )


@pytest.mark.parametrize("name", [name for name in TASKS if name != "sim"])
def test_preprocessor(harness, name):
    cls, harness.init_kwargs = preprocessor_of(name)
    _, _, _, data, _ = TASKS[name]
    key = "decoder_token_ids" if name == "seq_2_seq" else "token_ids"
    harness.run_preprocessor_test(cls, harness.init_kwargs, data, token_id_key=key)
