"""The browser of these tests notices what is wrong with a page."""

import pytest

pytestmark = pytest.mark.slow

GOOD = "<p>RoFormer</p><pre style='overflow: auto'>" + "wide " * 200 + "</pre>"


def test_nothing_is_wrong_with_a_good_page(browser):
    browser.page.set_content(GOOD)
    browser.set_width(375)
    assert not browser.overflowing() and not browser.errors and not browser.requests_elsewhere()


def test_errors_are_collected(browser):
    browser.page.set_content(
        "<script>console.log('fine'); console.error('of the console')</script>"
    )
    browser.page.set_content("<script>throw new Error('of a script')</script>")
    browser.page.wait_for_timeout(100)
    assert "of the console" in browser.errors[0] and "of a script" in browser.errors[1]
    assert len(browser.errors) == 2


def test_requests_elsewhere_are_collected(browser):
    browser.page.set_content("<img src='http://roformer.invalid/a.png'><img src='data:,'>")
    browser.page.wait_for_timeout(100)
    assert browser.requests_elsewhere() == ["http://roformer.invalid/a.png"]


def test_what_overflows_is_named(browser):
    browser.page.set_content("<div style='width: 600px'>too wide</div>" + GOOD)
    assert not browser.overflowing()
    browser.set_width(375)
    html, div = browser.overflowing()
    assert html.startswith("HTML") and "too wide" in div
