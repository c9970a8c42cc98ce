"""`generate` prints what the model generates, from arguments and from standard input."""

import io

import keras_hub
import pytest

from roformer_tf.__main__ import make_parser
from roformer_tf.cli.generate import make_sampler
from roformer_tf.samplers import BeamSearchSampler
from tests.cli.conftest import TEXTS, run
from tests.models import builders


@pytest.fixture(scope="module")
def gpt():
    model = builders.task("causal_lm", {"sequence_length": 12})
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

    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{TEXTS[0]}\r\n\n{TEXTS[1]}\n"))
    options = ("--max-length", 10, "--min-new-tokens", 3, "--json")
    assert run("generate", folder, *options) == 0
    lines = printed_json()
    expected = gpt.generate(TEXTS, max_length=10, min_new_tokens=3, strip_prompt=True)
    assert lines == [{"text": t, "generated": g} for t, g in zip(TEXTS, expected)]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TEXTS[0], "--top-k", 0], "`top_k` must be an integer from 1 to the size of"),
        ([TEXTS[0], "--top-k", 100_000], "`top_k` must be an integer from 1 to the size of"),
        ([TEXTS[0], "--top-k", 3, "--num-beams", 2], "Expected options of one sampler"),
        ([TEXTS[0] * 4], "no room for a new token"),
    ],
)
def test_mistakes(folder, error_of, arguments, message):
    assert message in error_of("generate", folder, *arguments)
