"""The page in a real browser: four methods compared, and a federation of 1,000 clients.

The pages are opened once; every test leaves them as it found them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("plotly", reason="plotly is missing: pip install 'raysim[report]'")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: pip install 'raysim[dev]'"
)

from raysim.config import load_config  # noqa: E402
from raysim.experiment import Experiment  # noqa: E402
from raysim.report.build import make_report  # noqa: E402
from raysim.report.documents import write_page  # noqa: E402
from raysim.report.report import Cell, Table  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
METHODS = ("fb_nll", "fb_nll_minus", "local_only", "single")
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 400, "height": 800}
VISIBLE = "element => [...document.querySelectorAll('#%s tbody tr')].filter(r => !r.hidden).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on the PATH; on Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that root in a container lacks; the pages are our own.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        overrides = [f"method.name={method}", "runtime.kind=local", "train.rounds=4"]
        Experiment(load_config("quickstart", [*overrides, f"output={folder / method}"])).run()
    return {method: folder / method for method in METHODS}


def opened(browser: Any, file: Path) -> Any:
    """Open a file and keep what the browser said and asked for."""
    page = browser.new_page(viewport=WIDE, color_scheme="light")
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(file.as_uri())
    page.locator("figure").first.scroll_into_view_if_needed()  # they are drawn when they are near
    page.wait_for_selector("figure .main-svg")
    return page


@pytest.fixture(scope="module")
def compared(browser: Any, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page of the comparison, open at 1400 px."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(write_page(make_report([str(run) for run in runs.values()])), encoding="utf-8")
    return SimpleNamespace(page=opened(browser, file), file=file)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def traces(page: Any, name: str) -> list[dict[str, Any]]:
    """Return what plotly holds for a figure, bands aside; scrolled to, since drawing is lazy."""
    page.locator(f"#figure-{name}").scroll_into_view_if_needed()
    page.wait_for_function(
        "id => figures.some(f => f.element.id === id && !f.isStale)", arg=f"figure-{name}"
    )
    return page.evaluate(
        "id => document.querySelector(`#${id} .plot`).data.filter(t => t.hoverinfo !== 'skip')"
        ".map(t => ({name: t.name, meta: t.meta, x: t.x, y: t.y}))",
        f"figure-{name}",
    )


def column(page: Any, table: str, name: str) -> dict[str, float]:
    """Return a column's full values by the first cell of the row, in the order shown."""
    rows = page.evaluate(
        """([id, name]) => {
          const table = document.querySelector(`#table-${id} table`);
          const i = [...table.querySelectorAll("th")].findIndex(th => th.innerText === name);
          return [...table.tBodies[0].rows].filter(row => !row.hidden)
            .map(row => [row.cells[0].innerText, row.cells[i].dataset.value]);
        }""",
        [table, name],
    )
    return {first: float(value) for first, value in rows}


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def background(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


# ---- four methods --------------------------------------------------------------------------


def test_table_shows_the_numbers_of_the_records(compared, runs):
    for method, run in runs.items():
        lines = records(run)
        result = json.loads((run / "result.json").read_text())
        up = sum(sum(line.get("bytes", {}).get("up", {}).values()) for line in lines)

        found = {
            name: column(compared.page, "summary", name)[method]
            for name in ("accuracy %", "ARI", "noise after %", "up MB")
        }

        assert found["accuracy %"] == pytest.approx(100 * lines[-1]["accuracy"]["mean"], rel=1e-14)
        assert found["ARI"] == result["ari"]
        assert found["noise after %"] == pytest.approx(
            100 * result["labels"]["noise_after"], rel=1e-14
        )
        assert found["up MB"] == pytest.approx(up / 1e6, rel=1e-14, abs=0)


def test_curves_show_the_records_and_the_switch_changes_their_axis(compared, runs):
    figure = compared.page.locator("#figure-accuracy")
    for axis in ("bytes", "seconds", "round"):  # ends as it began
        figure.locator(f".axes button[value={axis}]").click()
        found = {trace["meta"]: trace for trace in traces(compared.page, "accuracy")}

        assert set(found) == set(METHODS)
        for method, run in runs.items():
            x, y = curve(records(run), axis)
            assert found[method]["y"] == y
            assert found[method]["x"] == pytest.approx(x, rel=1e-12)
    pressed = figure.locator(".axes button[aria-pressed=true]")
    assert [pressed.count(), pressed.first.get_attribute("value")] == [1, "round"]


def curve(lines: list[dict[str, Any]], axis: str) -> tuple[list[float], list[float]]:
    """Return the accuracy after each round of training against a running sum, by hand."""
    sent = [
        sum(sum(way.values()) for way in line.get("bytes", {}).values()) / 1e6 for line in lines
    ]
    sums = {
        "bytes": list(accumulate(sent)),
        "seconds": list(accumulate(line["seconds"] for line in lines)),
        "round": list(accumulate(int("loss" in line) for line in lines)),
    }
    kept = [i for i, line in enumerate(lines) if "accuracy" in line]
    return [sums[axis][i] for i in kept], [lines[i]["accuracy"]["mean"] for i in kept]


def test_first_screen_says_what_ran_and_shows_summary_and_accuracy(compared):
    page = compared.page
    page.evaluate("scrollTo(0, 0)")
    box = "element => element.getBoundingClientRect()"

    said = page.locator(".masthead p span").inner_text()
    places = [
        page.locator(where).evaluate(box)
        for where in (".masthead", "#table-summary table", "#figure-accuracy .plot")
    ]

    assert said.startswith("12 clients · 3 tasks · digits · class_dependent noise")
    assert all(a["bottom"] <= b["top"] for a, b in pairwise(places))
    assert places[-1]["bottom"] < WIDE["height"]


def test_a_method_can_be_hidden_everywhere_and_shown_again(compared):
    page = compared.page
    toggle = page.locator(".methods input").nth(METHODS.index("single"))
    before = {name: traces(page, name) for name in ("accuracy", "client-accuracy", "timing")}
    rows = page.evaluate(VISIBLE % "table-summary")

    toggle.uncheck()

    assert {t["meta"] for t in traces(page, "accuracy")} == set(METHODS) - {"single"}
    assert {t["meta"] for t in traces(page, "client-accuracy")} == set(METHODS) - {"single"}
    assert all("single" not in t["x"] for t in traces(page, "timing"))
    assert page.evaluate(VISIBLE % "table-summary") == rows - 1
    assert page.evaluate(VISIBLE % "table-differences") == 3  # of six pairs, those of the other 3
    toggle.check()
    assert {name: traces(page, name) for name in before} == before
    assert page.evaluate(VISIBLE % "table-summary") == rows


def test_a_key_hides_one_curve_of_one_figure(compared):
    traces(compared.page, "accuracy")
    key = compared.page.locator("#figure-accuracy .keys button", has_text="local_only")

    key.click()

    assert "local_only" not in {t["meta"] for t in traces(compared.page, "accuracy")}
    assert "local_only" in {t["meta"] for t in traces(compared.page, "test-loss")}
    key.press("Enter")  # the keyboard works too, and the focus has stayed
    assert len(traces(compared.page, "accuracy")) == len(METHODS)


def test_headers_sort_by_value_with_mouse_and_keyboard(compared):
    head = compared.page.locator("#table-summary th", has_text="accuracy %")

    head.locator("button").click()
    down = list(column(compared.page, "summary", "accuracy %").values())
    head.locator("button").press("Enter")
    up = list(column(compared.page, "summary", "accuracy %").values())

    assert down == sorted(down, reverse=True)
    assert up == sorted(down)
    assert len(set(down)) > 1
    assert head.get_attribute("aria-sort") == "ascending"
    compared.page.locator("#table-summary th button").first.click()
    assert list(column(compared.page, "summary", "accuracy %")) == sorted(METHODS)


def test_the_chosen_run_shows_its_own_figures(compared):
    page = compared.page
    shown = "() => [...document.querySelectorAll('#one-run figure')].filter(f => !f.hidden)"
    labels = page.locator("#run option").all_inner_texts()

    for label in (labels[-1], labels[0]):
        page.select_option("#run", label)
        found = set(page.evaluate(f"({shown})().map(f => f.dataset.run)"))

        assert found == {label}
    assert len(labels) == 4
    names = page.evaluate(f"({shown})().map(f => f.querySelector('.plot').ariaLabel)")
    assert {"Similarity of clients", "Dendrogram", "Noise of clients"} <= set(names)


def test_similarity_in_the_page_is_that_of_the_run(compared, runs):
    matrix = np.load(runs["fb_nll"] / "artifacts" / "similarity.npy")
    traces(compared.page, "similarity-fb-nll-seed-0")

    found = compared.page.evaluate(
        "document.querySelector('#figure-similarity-fb-nll-seed-0 .plot').data"
        ".map(t => ({x: t.x, y: t.y, z: t.z}))"
    )

    order = [int(name) for name in found[0]["y"]]
    assert sorted(order) == list(range(12))
    np.testing.assert_allclose(found[0]["z"], matrix[np.ix_(order, order)], rtol=1e-5)
    groups = records(runs["fb_nll"])[0]["groups"]
    strip = [row[0] for row in found[1]["z"]]  # the coloured margin
    assert strip == [groups[client] for client in order]


def test_dark_and_light(compared):
    page = compared.page
    line = "document.querySelector('#figure-accuracy .plot').layout.font.color"
    traces(page, "accuracy")
    light = background(page), page.evaluate(line)

    page.locator("#theme").click()
    changed = f"before => {line} !== before"
    near = page.locator("#figure-accuracy").scroll_into_view_if_needed
    near()  # figures are drawn when they are near
    page.wait_for_function(changed, arg=light[1])
    dark = background(page), page.evaluate(line)
    page.locator("#theme").click()
    near()
    page.wait_for_function(changed, arg=dark[1])

    assert light[0] == "rgb(255, 255, 255)"
    assert max(int(part) for part in dark[0].strip("rgb()").split(",")) < 40
    assert dark[1] != light[1]
    assert (background(page), page.evaluate(line)) == light
    page.emulate_media(color_scheme="dark")  # the system's wish, while the page is open
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    assert background(page) == dark[0]
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1400", "400"])
def test_page_is_no_wider_than_the_window(compared, size):
    page = compared.page
    page.set_viewport_size(size)
    page.evaluate("all('details').forEach(d => { d.open = true; })")
    page.evaluate("figures.filter(f => !f.element.hidden).forEach(draw)")
    svg = "Math.max(...all('figure:not([hidden]) .main-svg').map(s => s.clientWidth))"

    assert overflow(page) <= 0
    assert 0 < page.evaluate(svg) <= size["width"]
    page.evaluate("all('details').forEach(d => { d.open = false; })")
    page.set_viewport_size(WIDE)


def test_print_shows_every_figure_in_light_colours_without_controls(compared):
    page = compared.page
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_function("() => state.isPrint && figures.every(f => !f.isStale)")

    sizes = page.evaluate(
        "figures.map(f => [f.plot.getBoundingClientRect(), f.isStale])"
        ".map(([box, stale]) => [box.width, box.height, stale])"
    )
    assert len(sizes) == page.locator("figure").count() > 20
    assert all(width > 300 and height > 100 and not stale for width, height, stale in sizes)
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator(".methods").is_visible()
    assert not page.locator("#theme").is_visible()
    page.emulate_media(media="screen", color_scheme="light")
    assert page.locator(".methods").is_visible()


def test_config_is_copied_word_for_word(compared, runs):
    block = compared.page.locator("#runs details").first
    block.locator("summary").click()
    block.locator("button.copy").click()
    block.locator("button.copy", has_text="ed").wait_for()  # Copied, or selected to be copied

    text = (runs["fb_nll"] / "config.yaml").read_text()
    assert block.locator("pre").text_content() == text
    block.locator("summary").click()


def test_browser_had_nothing_to_say_and_asked_for_one_file(compared):
    """Last, so that it covers what the tests above did."""
    asked = [url for url in compared.page.asked if not url.startswith(("data:", "blob:"))]

    assert compared.page.said == []
    assert asked == [compared.file.as_uri()]


# ---- a sweep -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1400", "400"])
def test_a_sweep_opens_with_its_figure_and_tabs_show_the_others(browser, tmp_path, write_run, size):
    for rate, method in product((0.01, 0.1, 1), ("fb_nll", "single")):
        extra = {"labels": {"noise_before": rate, "noise_after": rate / 2}}
        data = {"noise": {"kind": "symmetric", "rate": rate}}
        run = write_run(method, 0, [1 - rate / 2], data=data, extra=extra)
    file = tmp_path / "sweep.html"
    report = make_report([str(run.parent)], swept=["data.noise.rate"])
    file.write_text(write_page(report), encoding="utf-8")
    page = opened(browser, file)
    page.set_viewport_size(size)
    shown = "figures.filter(f => f.element.dataset.tab && !f.element.hidden).map(f => f.element.id)"

    first = page.locator("#figure-swept-accuracy .plot").evaluate("e => e.getBoundingClientRect()")
    axis = page.evaluate("document.querySelector('#figure-swept-accuracy .plot').layout.xaxis.type")
    curves = {t["meta"]: t["y"] for t in traces(page, "swept-accuracy")}

    assert first["bottom"] < size["height"]
    assert axis == "log"
    assert curves == {method: [0.995, 0.95, 0.5] for method in ("fb_nll", "single")}
    assert page.evaluate(shown) == ["figure-swept-accuracy"]
    page.locator(".tabs button", has_text="Noise left").click()
    assert page.evaluate(shown) == ["figure-swept-noise"]
    assert traces(page, "swept-noise")[0]["y"] == [0.005, 0.05, 0.5]
    assert overflow(page) <= 0
    assert page.said == []
    page.close()


# ---- 1,000 clients -------------------------------------------------------------------------


def large_run(write_run: Any, clients: int) -> Path:
    """A run directory with everything that grows with the number of clients."""
    rng, groups = np.random.default_rng(0), np.arange(clients) % 10
    similarity = 0.3 + 0.5 * (groups[:, None] == groups) + rng.uniform(0, 0.1, (clients, clients))
    similarity = (similarity + similarity.T) / 2
    np.fill_diagonal(similarity, 1.0)
    labels = rng.integers(1, 30, (clients, 10))
    noise, accuracy = rng.uniform(size=(2, clients))
    arrays = {"similarity": similarity, "labels_true": labels, "labels_given": labels[::-1]}
    arrays |= {"client_noise_given": noise, "client_f_score": accuracy}
    extra = {"per_client": accuracy.tolist()}
    return write_run("fb_nll", 0, [0.5, 0.6], groups=groups.tolist(), arrays=arrays, extra=extra)


def test_a_thousand_clients_open_draw_and_filter(browser, tmp_path, write_run):
    rows = [[Cell(f"client {i}", f"client {i}"), Cell(f"{i % 7}", i % 7)] for i in range(1000)]
    table = Table("clients", "Clients", "", ["client", "value"], rows)
    report = replace(make_report([str(large_run(write_run, 1000))]), tables=[table])
    file = tmp_path / "large.html"
    file.write_text(write_page(report), encoding="utf-8")
    page = opened(browser, file)

    assert page.evaluate("figures.some(f => f.isStale)")  # what is far below waits
    for name in ("similarity", "dendrogram", "labels", "client-noise"):
        assert traces(page, f"{name}-fb-nll-seed-0")
    page.locator(".filter input").fill("client 99")
    shown = page.evaluate(VISIBLE % "table-clients")
    page.locator(".filter input").fill("no such client")
    none = page.evaluate(VISIBLE % "table-clients")
    page.set_viewport_size(NARROW)

    assert shown == 1 + 10  # 99, 990 ... 999
    assert none == 0
    assert overflow(page) <= 0
    assert page.said == []
    page.close()
