"""Several documents in one sequence: each has the outputs that it has alone."""

import numpy as np
import pytest

from tests.layers.harness import numpy
from tests.models.builders import SIZES, backbone, inputs, sequence, task

LENGTHS = ((5, 3, 8), (2, 9), (7, 1, 1, 4))  # of the documents in each sequence
# float32 through two blocks, where matrix products of other shapes add in another order
NOISE = 1e-5


def documents_and_rows(rng, lengths=LENGTHS):
    """Returns each document as a batch of one, and all of them packed into sequences."""
    width = max(map(sum, lengths)) + 2
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids", "document_ids")
    rows = {name: np.zeros((len(lengths), width), "int32") for name in names}
    alone = []
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, 1):
            document = {
                "token_ids": rng.integers(5, SIZES["vocabulary_size"], size=(1, size)),
                "segment_ids": (np.arange(size) >= rng.integers(0, size + 1))[None].astype("int32"),
                "padding_mask": np.ones((1, size), "int32"),
            }
            place = (row, slice(start, start + size))
            for name, value in document.items():
                rows[name][place] = value[0]
            rows["position_ids"][place] = np.arange(size)
            rows["document_ids"][place] = number
            alone.append((place, document))
            start += size
    return alone, rows


@pytest.mark.parametrize("masking", ["bidirectional", "causal", "unilm"])
@pytest.mark.parametrize("scheme", ["rotary", "learned", "sinusoidal_relative"])
def test_packed_documents_are_as_alone(scheme, masking, rng):
    model = backbone("v1", position_scheme=scheme, masking=masking)
    alone, rows = documents_and_rows(rng)
    packed = sequence(model(rows))
    for place, document in alone:
        np.testing.assert_allclose(packed[place], sequence(model(document))[0], atol=NOISE)
    # without document ids they see each other
    mixed = sequence(model({k: v for k, v in rows.items() if k != "document_ids"}))
    assert np.abs(mixed - packed)[0, 5:16].max() > 1e-2


@pytest.mark.parametrize("kind", ["v1", "gpt", "sim", "v2"])
def test_one_document_changes_nothing(kind, rng):
    model = backbone(kind)
    given = inputs(rng)
    ones = {**given, "document_ids": np.ones_like(given["token_ids"])}
    np.testing.assert_allclose(sequence(model(ones)), sequence(model(given)), atol=1e-6)


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm_sim", "classifier_mean"])
def test_tasks_take_documents(name, rng):
    model = task(name)
    alone, rows = documents_and_rows(rng)
    if name.startswith("classifier"):  # one output, so one document, for each sequence
        alone, rows = documents_and_rows(rng, [(6,), (9,)])
    outputs = numpy(model(rows))
    for (row, place), document in alone:
        expected = numpy(model(document))[0]
        found = outputs[row] if name.startswith("classifier") else outputs[row, place]
        np.testing.assert_allclose(found, expected, atol=10 * NOISE)


def test_padding_between_documents_stays_finite(rng):
    """Padding sees nothing, but its outputs are numbers: no NaN reaches a loss or a gradient."""
    model = backbone("v1")
    _, rows = documents_and_rows(rng)
    assert np.isfinite(sequence(model(rows))).all()
