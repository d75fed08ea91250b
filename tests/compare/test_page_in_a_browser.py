"""The page of `--plot`, opened in a headless Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from opd_conf.compare import table
from opd_conf.compare.page import page as page_of
from opd_conf.compare.runs import find

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
TIMEOUT_MS = 120_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one that playwright installs."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            pytest.fail(f"No Chromium: apt-get install chromium, or playwright install chromium\n{error}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Where the page is kept between tests: it is the same for all of them, and not changed by any."""
    return tmp_path_factory.mktemp("page") / "a_name_that_is_longer_than_a_phone_is_wide.html"


@pytest.fixture
def html(write, step, plan, made):
    """A sweep's page: three cells that run, two that equal another, one that is refused."""
    if made.exists():
        return made
    cells = []
    for number, (mode, topk) in enumerate((m, k) for m in ("k1", "forward_kl_topk") for k in (8, 16, 999)):
        overrides = [f"loss_mode={mode}", f"topk={topk}"]
        cell = {"name": ",".join(overrides), "overrides": overrides}
        if mode == "k1" and topk != 8:
            cells.append({**cell, "plan": "same", "same_as": 0, "why": "topk has no effect here"})
        elif topk == 999:
            cells.append({**cell, "plan": "refused", "findings": [{"id": "topk_size", "severity": "error"}]})
        else:
            steps = [step(loss=(number + 1) / at, reward=1 - (number + 1) / (at + 5)) for at in range(1, 31)]
            write(cell["name"], steps, overrides=overrides)
            cells.append(cell)
    runs = table.ordered(find([plan(*cells)]), "loss")
    made.write_text(page_of(runs, table.varied(runs), "loss"))
    return made


@pytest.fixture
def opened(browser, html) -> Iterator:
    """`opened(DESKTOP)`: the page, which at the end must have neither complained nor asked the network."""
    contexts, said, asked = [], [], []

    def open_(kind) -> Page:
        contexts.append(browser.new_context(**kind))
        contexts[-1].set_default_timeout(TIMEOUT_MS)
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(html.as_uri())
        page.wait_for_selector(".plot .main-svg")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def _curves(page: Page) -> int:
    return page.locator(".panel:first-child .scatterlayer .trace").count()


def _first_column(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("tbody td.first").all_inner_texts()]


@pytest.mark.parametrize("kind", [DESKTOP, PHONE], ids=["1280", "390"])
def test_the_page_is_as_wide_as_the_screen(opened, kind):
    page = opened(kind)
    assert page.evaluate("document.documentElement.scrollWidth") == kind["viewport"]["width"]
    right = page.locator(".panel").evaluate_all("all => Math.max(...all.map(e => e.getBoundingClientRect().right))")
    assert right <= kind["viewport"]["width"]


def test_every_cell_has_a_row_and_every_run_a_curve(opened):
    page = opened(DESKTOP)
    assert page.locator("h1").inner_text().endswith("6 cells, 3 finished")
    assert _first_column(page) == ["0", "3", "4", "1", "2", "5"]
    assert _curves(page) == 3
    states = page.locator("tbody td.state").all_inner_texts()
    assert states[3:] == ["as cell 0: topk has no effect here"] * 2 + ["refused: topk_size"]


def test_axes_have_units_and_the_legend_names_what_differs(opened):
    page = opened(DESKTOP)
    titles = page.locator(".ytitle").all_text_contents()
    assert titles == ["loss", "mean score", "tokens", "tokens/s", "GiB", "s", "nats"]
    assert set(page.locator(".xtitle").all_text_contents()) == {"step"}
    legend = page.locator("#legend .chip:has(svg)").all_inner_texts()
    assert legend == ["loss_mode=k1, topk=8", "loss_mode=forward_kl_topk, topk=8", "loss_mode=forward_kl_topk, topk=16"]


def test_a_filter_hides_rows_and_curves(opened):
    page = opened(DESKTOP)
    page.locator("#filter").get_by_role("button", name="k1", exact=True).click()
    assert _curves(page) == 2
    assert _first_column(page) == ["3", "4", "5"]
    page.locator("#filter").get_by_role("button", name="k1", exact=True).click()
    assert _curves(page) == 3


def test_legend_and_table_hide_a_curve(opened):
    page = opened(DESKTOP)
    page.locator("#legend .chip").first.click()
    assert _curves(page) == 2
    assert not page.locator("tbody input").first.is_checked()
    page.locator("tbody input").first.check()
    assert _curves(page) == 3
    page.get_by_role("button", name="none").click()
    assert _curves(page) == 0


def test_the_table_is_sorted_by_a_click_best_first(opened):
    page = opened(DESKTOP)
    reward = page.locator("th", has_text="reward")
    reward.click()
    assert (_first_column(page)[:3], reward.get_attribute("aria-sort")) == (["0", "3", "4"], "descending")
    page.locator("th", has_text="reward").click()
    assert _first_column(page)[:3] == ["4", "3", "0"]
    assert page.locator("th", has_text="reward").get_attribute("aria-sort") == "ascending"


def test_metrics_are_chosen(opened):
    page = opened(DESKTOP)
    panels = page.locator(".panel")
    before = panels.count()
    page.locator("#add").fill("critic/score/mean")
    page.locator("#add").press("Enter")
    page.locator("#add").blur()
    assert panels.count() == before + 1
    assert panels.last.locator("h3").inner_text() == "critic/score/mean"
    panels.last.get_by_role("button", name="remove").click()
    assert panels.count() == before


def test_curves_can_be_drawn_over_time(opened):
    page = opened(DESKTOP)
    page.locator("#axis").select_option(label="time")
    assert set(page.locator(".xtitle").all_text_contents()) == {"time (min)"}


def test_values_show_under_the_pointer(opened):
    page = opened(DESKTOP)
    area = page.locator(".panel").first.locator(".nsewdrag")
    area.scroll_into_view_if_needed()
    area.hover()
    hover = page.locator(".panel").first.locator(".hoverlayer")
    hover.locator("text.legendtext").first.wait_for()
    lines = hover.locator("text.legendtext").all_text_contents()
    assert len(lines) == 3
    assert lines[0].startswith("loss_mode=k1, topk=8")


def test_nothing_offers_to_send_the_curves_away(opened):
    """plotly.js has a button that uploads a chart to its maker; ours save, zoom and go back."""
    page = opened(DESKTOP)
    page.locator(".panel").first.hover()
    titles = page.locator(".panel").first.locator(".modebar-btn").evaluate_all("all => all.map(e => e.dataset.title)")
    assert titles == ["Download plot as a PNG", "Zoom", "Reset axes"]
    assert "cloud" not in page.locator(".panel").first.inner_html()


def test_a_finger_on_a_plot_scrolls_the_page(opened):
    page = opened(PHONE)
    plot_ = page.locator(".plot .nsewdrag").first
    plot_.evaluate("element => element.scrollIntoView({block: 'center'})")
    box, before = plot_.bounding_box(), page.evaluate("scrollY")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    finger = page.context.new_cdp_session(page)
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for moved in range(10, 210, 10):
        finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - moved}]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function(f"scrollY > {before + 100}")
