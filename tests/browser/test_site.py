"""The documentation site builds without a warning, and works in a browser, on wide and narrow screens."""

import functools
import http.server
import json
import os
import re
import sys
import threading

import pytest

from tests.pages import DOCS, ROOT
from tests.processes import run_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="needs MkDocs: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": ""}
    run_program(*command, cwd=ROOT, env=environment)
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    """The address of a server of the site."""
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def opened(browser, address, page):
    """Goes to a page of the site, and returns its title."""
    browser.page.goto(f"{address}/{page}")
    return browser.page.locator("article h1").first.inner_text()


def searched(browser, words):
    """Returns the addresses that the search finds."""
    field = browser.page.locator("input.md-search__input")
    field.click()
    field.press_sequentially(words)
    links = browser.page.locator(".md-search-result__item a.md-search-result__link")
    links.first.wait_for()
    return [link.get_attribute("href") for link in links.all()]


def problems(browser):
    """Messages in the console, requests to other hosts, and what is too wide for the window."""
    found = [*browser.errors, *browser.requests_elsewhere(), *browser.overflowing()]
    browser.errors.clear()
    return found


def test_every_page_in_the_navigation_exists():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", text, re.M))
    existing = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert existing - named == set(), "give these pages a place in mkdocs.yml"
    assert named - existing == set()


def test_every_public_name_has_a_page(site):
    index = (DOCS / "reference" / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^\| \[`(\w+)`\]", index, re.M))
    pages = {path.stem: path for path in (site / "reference").glob("*/*.html")}
    assert len(names) > 100 and names <= set(pages)
    for name in names:
        html = pages[name].read_text(encoding="utf-8")
        assert "doc-contents" in html and "doc-object-name" in html, name


def test_no_page_fetches_from_another_host(site):
    for path in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?://[^"]+)',
            path.read_text("utf-8"),
        )
        assert not [url for url in fetched if "canonical" not in url], path


def test_pages_have_no_errors_and_fit(browser, address, site):
    # Every page prepares the index of the search, for longer than all the rest takes. Here it is
    # that of one section; the tests of the search have the whole.
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    index["docs"] = index["docs"][:1]
    browser.page.route("**/search_index.json", lambda route: route.fulfill(json=index))
    found = {}
    pages = [path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md"))]
    pages = [path.with_name("index.md") if path.name == "README.md" else path for path in pages]
    for page in [*pages, "reference/roformer_tf/RoFormerTextClassifier.md"]:
        page = str(page).removesuffix(".md") + ".html"
        browser.set_width(1280)
        assert opened(browser, address, page)
        for width in (1280, 360):
            browser.set_width(width)
            if wrong := problems(browser):
                found[page, width] = wrong
    assert not found


def test_the_search_finds_savedmodel(browser, address):
    opened(browser, address, "index.html")
    browser.page.goto(searched(browser, "SavedModel")[0])
    assert "SavedModel" in browser.page.locator("article").inner_text()
    assert not problems(browser)


def test_the_chinese_search_and_the_switch_of_languages(browser, address):
    opened(browser, address, "zh/start.html")
    found = searched(browser, "阅读理解")
    assert any("zh/tutorials/fine_tune.html" in link for link in found)
    opened(browser, address, "zh/start.html")
    browser.page.locator("article").get_by_role("link", name="English", exact=True).first.click()
    title = browser.page.locator("article h1").first
    title.filter(has_text="from nothing to an answer").wait_for()
    assert not problems(browser)


def test_a_name_in_the_text_leads_to_its_page(browser, address):
    opened(browser, address, "which_class.html")
    link = browser.page.locator("a.name").first
    name = link.inner_text()
    link.click()
    browser.page.locator("article h1").filter(has_text=name).wait_for()
