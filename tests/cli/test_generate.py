"""`generate`: what it prints is what the model gives; texts from arguments and from standard input."""

import io

import keras_hub
import pytest

import roformer_tf
from roformer_tf.__main__ import make_parser
from roformer_tf.cli.generate import make_sampler
from roformer_tf.samplers import BeamSearchSampler
from tests.cli.commands import run
from tests.layers.harness import randomize

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气很好差的是不我们"]
TEXTS = ["今天气", "我们"]


@pytest.fixture(scope="module")
def gpt():
    backbone = roformer_tf.RoFormerBackbone(
        vocabulary_size=len(VOCABULARY),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        masking="causal",
    )
    tokenizer = roformer_tf.RoFormerTokenizer(VOCABULARY, word_level=False)
    preprocessor = roformer_tf.RoFormerCausalLMPreprocessor(tokenizer, sequence_length=12)
    model = roformer_tf.RoFormerCausalLM(backbone, preprocessor)
    randomize(model)
    model.compile(sampler="greedy")
    return model


@pytest.fixture(scope="module")
def folder(gpt, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "preset"
    gpt.save_to_preset(str(folder))
    return folder


def test_generate(folder, gpt, capsys, monkeypatch, printed_json):
    assert run("generate", folder, *TEXTS) == 0
    assert capsys.readouterr().out.splitlines() == gpt.generate(TEXTS)

    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([TEXTS[0], "", TEXTS[1], ""])))
    options = ("--max-length", 10, "--min-new-tokens", 3, "--json")
    assert run("generate", folder, *options) == 0
    lines = printed_json()
    expected = gpt.generate(TEXTS, max_length=10, min_new_tokens=3, strip_prompt=True)
    assert lines == [{"text": t, "generated": g} for t, g in zip(TEXTS, expected)]


@pytest.mark.slow
def test_the_small_gpt(repository, capsys):
    """The checkpoint that comes with the repository knows what a comma and a full stop are for."""
    folder = repository / "checkpoints" / "chinese_roformer_gpt_tiny"
    assert run("generate", folder, "物流很快", "--num-beams", 4, "--max-length", 40) == 0
    [text] = capsys.readouterr().out.splitlines()
    # the words may differ where the last digit of a probability does
    assert text.startswith("物流很快，") and text.endswith("。") and len(text) > 10


@pytest.mark.parametrize(
    ("options", "cls", "config"),
    [
        ("", keras_hub.samplers.GreedySampler, {}),
        ("--top-k 7 --seed 3", keras_hub.samplers.TopKSampler, {"k": 7, "seed": 3}),
        ("--top-p 0.8 --temperature 2", keras_hub.samplers.TopPSampler, {"p": 0.8}),
        ("--sampler top_p", keras_hub.samplers.TopPSampler, {"p": 0.95, "temperature": 1.0}),
        ("--sampler random --temperature 0.5", keras_hub.samplers.RandomSampler, {}),
        ("--num-beams 3 --length-penalty 0", BeamSearchSampler, {"num_beams": 3}),
    ],
)
def test_samplers(options, cls, config):
    sampler = make_sampler(make_parser().parse_args(["generate", "folder", *options.split()]))
    assert type(sampler) is cls
    assert config.items() <= sampler.get_config().items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--temperature 0.7 --seed 1",
            "'greedy' is deterministic, so it takes no --temperature or --seed",
        ),
        ("--num-beams 2 --temperature 2", "'beam' is deterministic, so it takes no --temperature"),
        (
            "--top-p 0.9 --temperature 0",
            "--temperature must be positive.*Received: --temperature 0",
        ),
        ("--top-p 0", r"--top-p must be in \(0, 1\]. Received: --top-p 0"),
        ("--num-beams 0", "`num_beams` must be"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(make_parser().parse_args(["generate", "folder", *options.split()]))


@pytest.mark.parametrize("top_k", [0, 100_000])
def test_impossible_top_k(folder, capsys, top_k):
    assert run("generate", folder, TEXTS[0], "--top-k", top_k) == 2
    assert "`top_k` must be an integer from 1 to the size of" in capsys.readouterr().err


def test_mistakes(folder, capsys, monkeypatch):
    assert run("generate", folder, TEXTS[0], "--top-k", 3, "--num-beams", 2) == 2
    assert "Expected options of one sampler" in capsys.readouterr().err
    assert run("generate", folder, TEXTS[0] * 4) == 2
    assert "no room for a new token" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run("generate", folder) == 2
    assert "Expected at least one text" in capsys.readouterr().err
