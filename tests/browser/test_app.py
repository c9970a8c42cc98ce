"""`python -m roformer_tf app FOLDER` in a browser: type, press, and read the library's answers."""

import contextlib
import re
import signal
import subprocess
import sys

import keras
import keras_hub
import pytest

import roformer_tf
from roformer_tf.app.entities import find, surest
from roformer_tf.models import fill_mask
from tests.processes import environment_of_a_user

pytestmark = pytest.mark.slow
# A shell starts its background jobs deaf to Ctrl-C, and so are the programs that these start.
COMMAND = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("roformer_tf", run_name="__main__")
"""
# Every text that the last box shows, one after the other, as `seen`.
WATCH = """() => {
  const box = [...document.querySelectorAll("textarea")].at(-1);
  window.seen = [];
  const look = () => {
    if (window.seen.at(-1) !== box.value) window.seen.push(box.value);
    requestAnimationFrame(look);
  };
  look();
}"""


@contextlib.contextmanager
def running_app(folder):
    """Gives the address of the app of a folder, and ends it as a person would, with Ctrl-C."""
    command = [sys.executable, "-c", COMMAND, "app", str(folder)]
    environment = environment_of_a_user()  # Gradio needs pandas
    app = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = app.stdout.readline()
        found = re.match(r"Open (http://127\.0\.0\.1:\d+/) in a browser", line)
        assert found, line + (app.kill() or app.stderr.read())
        yield found[1]
        app.send_signal(signal.SIGINT)
        _, errors = app.communicate(timeout=60)
        assert app.returncode == 0 and "Traceback" not in errors, errors
    finally:
        app.kill()
        app.communicate()


@pytest.fixture
def open_app(browser):
    """Opens the app of a folder, and at the end looks whether anything was wrong with its pages."""
    pytest.importorskip("gradio", reason="needs Gradio: make app")
    with contextlib.ExitStack() as stack:

        def open_app(folder):
            browser.page.goto(stack.enter_context(running_app(folder)))
            browser.page.get_by_role("button").first.wait_for()
            return browser.page

        yield open_app
        assert not browser.errors and not browser.requests_elsewhere()
        assert not browser.overflowing()
        browser.set_width(375)
        assert not browser.overflowing()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def shown_bars(page, count):
    """Returns the answers of the bars, once there are as many, with the numbers behind them."""
    page.wait_for_function(f"document.querySelectorAll('.bar').length === {count}")
    return list(
        zip(
            page.locator(".bar-answer").all_inner_texts(),
            page.locator(".bar-value").all_inner_texts(),
        )
    )


def wait_for_tokens(page, text):
    """Waits until the pieces of the highlighted text, one after the other, are `text`."""
    page.wait_for_function(
        'text => [...document.querySelectorAll(".token .text")]'
        '.map(e => e.innerText).join("") === text',
        arg=text,
    )


def test_masks(open_app, repository):
    folder = repository / "checkpoints" / "chinese_roformer_tiny"
    page = open_app(folder)
    text = "酒店的位置很[MASK]，离火车站[MASK]近。"
    page.get_by_label("Text with [MASK]").fill(text)
    press(page, "Fill")
    shown = shown_bars(page, 10)
    masks = fill_mask(roformer_tf.RoFormerMaskedLM.from_preset(folder), text)
    assert shown == [(token, f"{p:.1%}") for mask in masks for token, p in mask]
    filled = f"酒店的位置很{masks[0][0][0]}，离火车站{masks[1][0][0]}近。"
    wait_for_tokens(page, filled)

    # A text without a mask, with what a page must not take for its own code.
    page.get_by_label("Text with [MASK]").fill("<b id='bold'>${1 + 1} {{x}}</b>")
    press(page, "Fill")
    page.get_by_text("at least one [MASK]").wait_for()
    shown_bars(page, 0)  # the message comes before the bars go
    assert not page.locator("#bold").count()
    page.get_by_label("Text with [MASK]").fill("<b id='bold'>${1 + 1} {{x}}</b>[MASK]")
    press(page, "Fill")
    shown_bars(page, 5)
    assert "<b id='bold'>${1 + 1} {{x}}</b>" in page.locator(".textfield").first.inner_text()
    assert not page.locator("#bold").count()

    page.get_by_role("tab", name="Compare sentences").click()
    press(page, "Compare")
    page.get_by_text("Trust their order").wait_for()
    assert len(shown_bars(page, 5 + 3)) == 8


def test_generation_streams(open_app, repository):
    folder = repository / "checkpoints" / "chinese_roformer_gpt_tiny"
    page = open_app(folder)
    page.get_by_label("Beginning").fill("今天")
    page.evaluate(WATCH)
    press(page, "Generate")
    gpt = roformer_tf.RoFormerCausalLM.from_preset(folder)
    gpt.compile(sampler=keras_hub.samplers.TopPSampler(p=0.9, temperature=0.7, seed=1))
    expected = gpt.generate("今天", max_length=64)
    page.wait_for_function("text => seen.at(-1) === text", arg=expected)
    seen = page.evaluate("seen")
    # Nothing, parts, the whole. A busy machine shows few parts: tests/app counts every one.
    assert len(seen) > 1
    assert [len(text) for text in seen] == sorted(len(text) for text in seen)


def test_sentences_by_similarity(open_app, repository):
    folder = repository / "checkpoints" / "english_roformer_sim_tiny"
    page = open_app(folder)
    texts = ["I miss my parents.", "I prefer coffee.", "I miss my mom and dad.", "Seriously?"]
    page.get_by_label("Sentence", exact=True).fill(texts[0])
    page.get_by_label("Compare with, one on each line").fill("\n".join(texts[1:]))
    press(page, "Compare")
    shown = shown_bars(page, 3)
    sim = roformer_tf.RoFormerSim.from_preset(folder)
    vectors = sim.embed(texts)
    cosines = dict(zip(texts[1:], (vectors[1:] @ vectors[0]).tolist()))
    assert [text for text, _ in shown] == sorted(cosines, key=cosines.get, reverse=True)
    for text, number in shown:  # three digits are shown
        assert float(number) == pytest.approx(cosines[text], abs=0.0006)

    page.get_by_role("tab", name="Paraphrase").click()
    press(page, "Paraphrase")
    page.wait_for_function("document.querySelectorAll('.bar').length > 3")
    sim.compile(sampler=keras_hub.samplers.TopPSampler(p=0.8, temperature=0.6, seed=1))
    found = sim.similar("What is the best way to lose weight?", n=50, k=10)
    assert shown_bars(page, 3 + len(found))[3:] == [(text, f"{cos:.3f}") for text, cos in found]


def test_entities_are_coloured(open_app, repository, tmp_path):
    tagger = roformer_tf.RoFormerTokenClassifier.from_preset(
        repository / "checkpoints" / "chinese_roformer_tiny",
        labels=["PER", "LOC"],
        word_level=False,
    )
    people, places = ("张三", "李四", "王五", "陈明"), ("北京", "上海", "天津", "广州")
    texts = [f"{who}{how}{where}。" for who in people for how in ("在", "去了") for where in places]
    entities = [[(0, 2, "PER"), (len(text) - 3, len(text) - 1, "LOC")] for text in texts]
    tagger.compile(optimizer=keras.optimizers.Adam(1e-3), jit_compile=False)
    tagger.fit(texts, entities, epochs=6, batch_size=8, verbose=0)
    tagger.save_to_preset(tmp_path / "tagger")
    page = open_app(tmp_path / "tagger")
    text = "𝕏：李四在北京，王五去了天津。"  # its first character takes two units of JavaScript
    page.get_by_label("Text", exact=True).fill(text)
    press(page, "Find")
    found = find(tagger, text)
    assert {"李四", "北京"} <= {text[start:end] for start, end, *_ in found}
    shown = [row[0] for row in shown_bars(page, len(found))]
    assert shown == [f"{text[start:end]}{label} {start}–{end}" for start, end, label, _ in found]
    wait_for_tokens(page, text)
    marked = page.locator(".token.highlighted")
    assert [
        (token.locator(".text").inner_text(), token.locator(".label").inner_text())
        for token in marked.all()
    ] == [(text[start:end], label) for start, end, label, _ in surest(found)]
    colours = {
        token.locator(".label").inner_text(): token.evaluate(
            "token => getComputedStyle(token).backgroundColor"
        )
        for token in marked.all()
    }
    assert len(set(colours.values())) == len(colours) == 2
