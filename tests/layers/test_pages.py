"""The program of each page of `docs/layers` runs, and its model learns its task."""

import keras
import pytest

from tests.pages import DOCS, blocks

FOLDER = DOCS / "layers"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")


def test_every_page_is_listed():
    assert len(PAGES) == 9
    overview = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"]({page}.md)" in overview for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_programs_learn(page):
    (program,) = blocks(FOLDER / f"{page}.md", "python")
    assert len(program.strip().splitlines()) <= 25
    keras.utils.set_random_seed(0)
    names = {}
    exec(compile(program, page, "exec"), names)
    accuracy = names["history"].history["accuracy"]
    if page == "position_schemes":  # of which the last has no positions
        accuracies = names["accuracies"]
        assert accuracies["RotaryPosition"] > 0.9 and accuracies["T5RelativeBias"] > 0.5
        assert accuracies["PositionScheme"] < 0.3
    else:
        assert accuracy[-1] > (0.7 if page == "self_attention" else 0.9)
        assert accuracy[-1] > accuracy[0] + 0.2
