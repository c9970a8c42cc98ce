"""Several documents in one sequence: each has the outputs that it has alone."""

import numpy as np
import pytest

from tests.layers.harness import numpy
from tests.models.builders import backbone, inputs, packed_documents, sequence, task
from tests.models.test_position_schemes import NOISE, OTHERS, model_with

MASKINGS = ("bidirectional", "causal", "unilm")
SCHEMES = [(scheme, m) for scheme in ("rotary", "learned", "sinusoidal_relative") for m in MASKINGS]
SCHEMES += [(scheme, MASKINGS[i % 3]) for i, scheme in enumerate(OTHERS)]


@pytest.mark.parametrize(("scheme", "masking"), SCHEMES)
def test_packed_documents_are_as_alone(scheme, masking, rng):
    model = model_with(scheme, masking=masking)
    alone, packed = packed_documents(rng)
    outputs = sequence(model(packed))
    expected = [(where, sequence(model(document))[0]) for where, document in alone]
    for where, value in expected:
        np.testing.assert_allclose(outputs[where], value, atol=NOISE)
    # without document ids they see each other
    mixed = sequence(model({k: v for k, v in packed.items() if k != "document_ids"}))
    assert np.abs(mixed - outputs)[0, 5:16].max() > 1e-2
    if scheme in ("relative", "transformer_xl", "t5", "deberta"):
        # where only distances matter, positions may continue from one document to the next
        del packed["position_ids"]
        outputs = sequence(model(packed))
        for where, value in expected:
            np.testing.assert_allclose(outputs[where], value, atol=NOISE)


@pytest.mark.parametrize("kind", ["v1", "gpt", "sim", "v2"])
def test_one_document_changes_nothing(kind, rng):
    model = backbone(kind)
    given = inputs(rng)
    ones = {**given, "document_ids": np.ones_like(given["token_ids"])}
    np.testing.assert_allclose(sequence(model(ones)), sequence(model(given)), atol=1e-6)


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm_sim", "classifier_mean"])
def test_tasks_take_documents(name, rng):
    model = task(name)
    alone, packed = packed_documents(rng)
    if name.startswith("classifier"):  # one output, so one document, for each sequence
        alone, packed = packed_documents(rng, [(6,), (9,)])
    outputs = numpy(model(packed))
    for (row, place), document in alone:
        expected = numpy(model(document))[0]
        found = outputs[row] if name.startswith("classifier") else outputs[row, place]
        np.testing.assert_allclose(found, expected, atol=10 * NOISE)


def test_padding_between_documents_stays_finite(rng):
    """Padding sees nothing, but its outputs are numbers: no NaN reaches a loss or a gradient."""
    model = backbone("v1")
    _, packed = packed_documents(rng)
    assert np.isfinite(sequence(model(packed))).all()
