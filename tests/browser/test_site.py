"""The documentation site builds without a warning, and works in a browser, on wide and narrow screens."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest

from tests.pages import DOCS, ROOT

pytestmark = pytest.mark.slow

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update""".split()
# These pages have a place in the navigation before they are written.
PROMISED = {"app.md", "loading.md", "moving_from_bert4keras.md", "multi_task_training.md"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="needs MkDocs: make docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs Selenium: make docs")
    if not (shutil.which(CHROMIUM) and shutil.which(DRIVER)):
        pytest.skip(f"needs {CHROMIUM} and {DRIVER}: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.chrome.service.Service(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.implicitly_wait(20)
    yield driver
    driver.quit()


def screen(browser, width, height):
    """Makes the window as wide as this; a headless window has a smallest width of its own."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def problems(browser, address):
    """Messages in the console, requests to other hosts, and how far the page is too wide."""
    found = [entry["message"] for entry in browser.get_log("browser")]
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if re.match("https?:|wss?:", url) and not url.startswith(address):
                found.append(f"asks another host: {url}")
    width, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    if width > window:
        found.append(f"{width} pixels wide, in a window of {window}")
    return found


def opened(browser, address, page):
    browser.get(f"{address}/{page}")
    return browser.find_element("css selector", "article h1")


def test_every_page_in_the_navigation_exists():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", text, re.M))
    existing = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert existing - named == set(), "give these pages a place in mkdocs.yml"
    assert named - existing <= PROMISED


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


@pytest.mark.parametrize("width, height", [(1280, 900), (360, 740)])
def test_pages_have_no_errors_and_fit(browser, address, width, height):
    screen(browser, width, height)
    found = {}
    pages = [path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md"))]
    pages = [path.with_name("index.md") if path.name == "README.md" else path for path in pages]
    for page in [*pages, "reference/roformer_tf/RoFormerTextClassifier.md"]:
        page = str(page).removesuffix(".md") + ".html"
        assert opened(browser, address, page).text
        if wrong := problems(browser, address):
            found[page] = wrong
    assert not found


def test_the_search_finds_savedmodel(browser, address):
    screen(browser, 1280, 900)
    opened(browser, address, "index.html")
    browser.find_element("css selector", "input.md-search__input").send_keys("SavedModel")
    first = browser.find_element("css selector", ".md-search-result__item a")
    assert first.is_displayed()
    browser.get(first.get_attribute("href"))
    assert "SavedModel" in browser.find_element("css selector", "article").text
    assert not problems(browser, address)


def test_the_chinese_search_and_the_switch_of_languages(browser, address):
    screen(browser, 1280, 900)
    opened(browser, address, "zh/start.html")
    browser.find_element("css selector", "input.md-search__input").send_keys("阅读理解")
    links = browser.find_elements("css selector", ".md-search-result__item a")
    assert any("zh/tutorials/fine_tune.html" in link.get_attribute("href") for link in links)
    opened(browser, address, "zh/start.html")
    other = browser.find_element("link text", "English").get_attribute("href")
    browser.get(other)
    assert "from nothing to an answer" in browser.find_element("css selector", "article h1").text
    assert not problems(browser, address)


def test_a_name_in_the_text_leads_to_its_page(browser, address):
    screen(browser, 1280, 900)
    opened(browser, address, "which_class.html")
    link = browser.find_element("css selector", "a.name")
    name = link.text
    browser.get(link.get_attribute("href"))
    assert name in browser.find_element("css selector", "article h1").text
