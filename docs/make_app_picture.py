"""Takes the picture of docs/app.md from a running app.

    python -m roformer_tf app checkpoints/chinese_roformer_tiny --port 7860 &
    python docs/make_app_picture.py http://127.0.0.1:7860

Needs `make app`, Chromium, and a Chinese font.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

TARGET = Path(__file__).resolve().parent / "app.png"


def take(address):
    """Returns the picture of the page of masks, after its button was pressed, as PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 720}, color_scheme="light")
        page.goto(address)
        page.get_by_role("button", name="Fill", exact=True).click()
        page.locator(".bar").first.wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)  # for what fades in
        picture = page.screenshot()
        browser.close()
    return picture


def main():
    """Writes docs/app.png, in few colours, as a page of text needs."""
    picture = Image.open(io.BytesIO(take(sys.argv[1]))).convert("RGB").quantize(96)
    picture.save(TARGET, optimize=True)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
