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


# Options that leave nothing to chance.
CHANCE = {
    "masked_lm": {"mask_selection_rate": 1.0, "mask_token_rate": 1.0, "random_token_rate": 0.0},
    "sim": {"source_mask_rate": 0.0},
}


def task(name):
    """Returns the class of a task, its backbone, other arguments, and data to train on."""
    tokenizer = builders.tokenizer()
    kind = {"causal_lm": "gpt", "sim": "sim", "sim_classifier": "sim"}.get(name, "v1")
    size = builders.SIZES["vocabulary_size"]
    backbone = roformer_tf.RoFormerBackbone, {**arguments(kind), "num_layers": 1}
    full = {"sequence_length": 9, "padding": "max_length"}
    if name == "classifier":
        preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer, **full)
        given = {"num_classes": 3}
        return (
            roformer_tf.RoFormerTextClassifier,
            backbone,
            preprocessor,
            given,
            (TEXTS, [0, 2]),
            (2, 3),
        )
    if name == "masked_lm":
        preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer, **CHANCE[name], **full)
        return roformer_tf.RoFormerMaskedLM, backbone, preprocessor, {}, (TEXTS,), None
    if name == "causal_lm":
        preprocessor = roformer_tf.RoFormerCausalLMPreprocessor(tokenizer, **full)
        return roformer_tf.RoFormerCausalLM, backbone, preprocessor, {}, (TEXTS,), (2, 9, size)
    if name == "sim_classifier":
        preprocessor = roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer, **full)
        data = ((TEXTS, TEXTS[::-1]), [0, 3])
        return roformer_tf.RoFormerSimClassifier, backbone, preprocessor, {}, data, (2, 5)
    if name == "sim":
        preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer, **CHANCE[name], **full)
        data = ((TEXTS, TEXTS[::-1]),)
        return roformer_tf.RoFormerSim, backbone, preprocessor, {}, data, None
    if name == "seq_2_seq":
        tokenizer = seq_2_seq.tokenizer()
        backbone = roformer_tf.RoFormerSeq2SeqBackbone, {**SEQ_2_SEQ_SIZES, "num_layers": 1}
        lengths = {"encoder_sequence_length": 9, "decoder_sequence_length": 9}
        preprocessor = roformer_tf.RoFormerSeq2SeqLMPreprocessor(tokenizer, **lengths)
        data = ((["a cat", "a dog ran"], ["eine Katze", "ein Hund lief"]),)
        return roformer_tf.RoFormerSeq2SeqLM, backbone, preprocessor, {}, data, None
    raise AssertionError(name)


TASKS = ["classifier", "masked_lm", "causal_lm", "sim_classifier", "sim", "seq_2_seq"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_task(harness, name):
    cls, (backbone_cls, sizes), preprocessor, given, data, shape = task(name)
    harness.run_task_test(
        cls,
        {"backbone": backbone_cls(**sizes), "preprocessor": preprocessor, **given},
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
    _, _, preprocessor, _, data, _ = task(name)
    config = preprocessor.get_config()
    harness.init_kwargs = {"tokenizer": preprocessor.tokenizer, "padding": "max_length"}
    for option in ("sequence_length", "encoder_sequence_length", "decoder_sequence_length"):
        if config.get(option) is not None:
            harness.init_kwargs[option] = config[option]
    harness.init_kwargs |= CHANCE.get(name, {})
    key = "decoder_token_ids" if name == "seq_2_seq" else "token_ids"
    harness.run_preprocessor_test(type(preprocessor), harness.init_kwargs, data, token_id_key=key)
