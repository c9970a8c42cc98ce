"""A sample of the hostile cases; `python -m tests.hostile --count 5000` runs many."""

import json

import pytest

from tests.hostile.__main__ import run_cases


@pytest.mark.slow
def test_no_case_is_a_defect():
    """The first cases of the results that are kept. Other seeds are for the command."""
    records = list(run_cases(["--count", "300", "--seed", "1"], 300))
    assert len(records) == 300
    defects = [record for record in records if record["outcome"] == "defect"]
    assert not defects, json.dumps(defects, ensure_ascii=False, indent=1)
    assert {record["outcome"] for record in records} >= {"right", "named error"}
