"""Programs of bert4keras, their text unchanged but for import lines, beside bert4keras itself."""

import numpy as np
import pytest

from tests.compat.conftest import text_of

pytestmark = pytest.mark.oracle

CASES = {
    "classify": ("classify", "roformer_v2", {}),
    "global pointer": ("entities", "bert", {"efficient": False}),
    "efficient": ("entities", "bert", {"efficient": True}),
    "tags": ("tags", "bert", {}),
    "adamw": ("masked_lm", "roformer", {"model": "roformer", "lamb": False}),
    "lamb": ("masked_lm", "roformer_v2", {"model": "roformer_v2", "lamb": True}),
    "similar": ("similar", "roformer", {}),
    "supervised": ("supervised", "deep_roformer", {}),
    "reading": ("reading", "roformer_v2", {}),
    "multi task": ("multi_task", "roformer_v2", {}),
    "complete": ("complete", "deep_roformer", {}),
}
FAST = ("complete",)


@pytest.mark.parametrize(
    "case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_same_losses_and_outputs(case, folders, both, tmp_path):
    name, model, arguments = CASES[case]
    if name == "classify":
        arguments = {"output": str(tmp_path)}
    found, expected = both(text_of(name), folder=folders[model], **arguments)
    assert len(found["shown"]) == len(expected["shown"])
    for step, (mine, theirs) in enumerate(zip(found["shown"], expected["shown"], strict=True)):
        for key, value in theirs.items():
            # float32 in other orders of addition, which some steps of training make larger
            np.testing.assert_allclose(mine[key], value, rtol=2e-4, atol=2e-5, err_msg=(step, key))
    for number, (mine, theirs) in enumerate(
        zip(found["outputs"], expected["outputs"], strict=True)
    ):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-4, err_msg=str(number))
    assert found.get("sizes") == expected.get("sizes")
