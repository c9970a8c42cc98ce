"""A headless Chromium, for tests that read a page as a person does.

`browser.page` is the page of Playwright, whose API the tests use: `page.goto(url)`,
`page.get_by_role("button", name="Run").click()`, `page.screenshot(path="page.png")`.
"""

import shutil
import urllib.parse

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")  # the names it has on PATH
FLAGS = (
    "--no-sandbox",  # Chromium as root has none, as in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A page that asks for something elsewhere gets nothing, here as on a machine without a network.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
# Elements that reach beyond the right edge, unless a parent scrolls or cuts them.
OVERFLOWING = """
() => {
  const width = document.documentElement.clientWidth;
  const cuts = (element) => {
    for (let e = element.parentElement; e && e !== document.body; e = e.parentElement) {
      if (getComputedStyle(e).overflowX !== "visible") return true;
    }
    return false;
  };
  const found = [...document.body.querySelectorAll("*")].filter(
    (e) => e.checkVisibility() && e.getBoundingClientRect().right > width + 1 && !cuts(e));
  if (document.documentElement.scrollWidth > width + 1) found.unshift(document.documentElement);
  return found.map((e) => `${e.tagName} ${e.className} ${e.innerText ?? ""}`.slice(0, 200));
}
"""


class Browser:
    """A page with what went wrong on it, and everything that it asked for.

    `errors` lists the errors of the console and of scripts, `requests` the URLs of all requests.
    """

    def __init__(self, context):
        self.errors, self.requests = [], []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.page = context.new_page()
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))

    def _on_console(self, message):
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location['url']})")

    def set_width(self, width):
        """Resizes the page: 375 is a phone, 1280 a small notebook."""
        self.page.set_viewport_size({"width": width, "height": 900})

    def overflowing(self):
        """Returns a line for each element that a reader would have to scroll sideways for."""
        return self.page.evaluate(OVERFLOWING)

    def requests_elsewhere(self):
        """Returns the URLs asked of any host but this machine's loopback."""
        here = ("127.0.0.1", "localhost", "::1", None)  # None: data: and blob:
        return [url for url in self.requests if urllib.parse.urlsplit(url).hostname not in here]


@pytest.fixture(scope="module")
def chromium():
    """Playwright's browser. It ends with the module, as its event loop would be in others' way."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright, the driver of the browser: make app"
    )
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.skip(f"needs Chromium: none of {', '.join(CHROMIUM)} is on PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium):
    """A new page 1280 wide, without cookies or cache of another, and its record; see `Browser`."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)  # ms; a busy machine is slow, not wrong
    yield Browser(context)
    context.close()
