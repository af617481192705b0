"""The page in a real browser: every view, light and dark, narrow and wide, by keyboard, with hostile text, live, and with nothing to show yet."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_documents import step_metrics
from ui_browser import NARROW, WIDE, Browser
from ui_run import CHEAT, HONEST, EmptyRun, UiRun

from shoal.contracts.steps import TypeMeans
from shoal.contracts.verdicts import Verdict
from shoal.storage import StoreUnavailable
from shoal.ui.access import Access
from shoal.ui.rollouts import RolloutFiles

VIEWS = ("overview", "timeline", "curves", "nodes", "rollouts", "ledger")
READY = "document.querySelector('main').getAttribute('aria-busy') === 'false'"
CHECKS = (Path(__file__).parent / "page_checks.js").read_text()
CONTRAST = 4.5
"""Of text against its ground, as WCAG 2.2 AA asks."""


def show(browser: Browser, page: Any, view: str, size: tuple[int, int] = WIDE, colours: str = "light") -> None:
    browser.size(*size)
    browser.colours(colours)
    browser.open(f"{page.url}#{view}")
    browser.until(READY)


def text(browser: Browser) -> str:
    return str(browser.run("document.body.innerText"))


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("view", [*VIEWS, "file"])
def test_a_view_fits_is_readable_and_asks_nobody_else(
    browser: Browser, page: Any, ui_run: UiRun, view: str, size: tuple[int, int], colours: str
) -> None:
    place = f"rollouts?file={HONEST}/{ui_run.accepted.sha256}&row=0" if view == "file" else view
    show(browser, page, place, size, colours)
    assert browser.complaints() == []
    assert browser.hosts() == {page.url.split("/")[2]}
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert browser.run("document.querySelectorAll('h1').length") == 1
    assert browser.run("document.querySelectorAll('main h2').length") >= 1
    assert browser.run(f"{CHECKS}; poorContrast({CONTRAST})") == []
    assert browser.run(f"{CHECKS}; unnamed()") == []


def test_a_strangers_markup_and_control_characters_are_text(browser: Browser, page: Any, ui_run: UiRun) -> None:
    for place in (*VIEWS, f"rollouts?file={CHEAT}/{ui_run.rejected.sha256}&row=1"):
        show(browser, page, place)
        assert browser.run("window.hacked === undefined && !document.querySelector('main img, main script')")
    shown = text(browser)
    assert "Why rejected: computation" in shown
    assert "<script>window.hacked=1</script>" in shown
    assert "\\u001b[2J\\u202eevil" in re.sub(
        r"\s", "", browser.run("document.querySelector('#completion').textContent")
    )
    assert not re.search("[\u202e\x1b]", browser.run("document.body.textContent"))


def test_tokens_are_coloured_by_probability_and_tools_output_is_not(browser: Browser, page: Any, ui_run: UiRun) -> None:
    show(browser, page, f"rollouts?file={HONEST}/{ui_run.accepted.sha256}&row=0")
    classes = browser.run("[...document.querySelectorAll('#completion > .tok')].map((e) => e.className)")
    assert classes[0] == "tok p4"
    assert classes[3] == "tok tool"
    assert {"tok p3", "tok p2"} <= set(classes)
    assert browser.run("document.querySelector('#completion > .tok').title").startswith("token ")
    assert "reward 1.000 (task 1.000, " in text(browser)
    assert "claimed 0.750" in text(browser)


def test_the_keyboard_alone_leads_everywhere(browser: Browser, page: Any) -> None:
    show(browser, page, "overview")
    browser.press("Tab")
    assert browser.run("document.activeElement.id") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().left >= 0"), (
        "the skip link is seen when it has the focus"
    )
    browser.press("Enter")
    assert browser.run("document.activeElement.id") == "main"
    order = []
    browser.run("document.activeElement.blur(); document.getElementById('skip').focus()")
    for _ in range(1 + len(VIEWS)):
        browser.press("Tab")
        order.append(browser.run("document.activeElement.id || document.activeElement.dataset.view"))
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert order == ["theme", *VIEWS]
    browser.press("Enter")  # on the last link
    browser.until("document.querySelector('h2')?.textContent === 'Ledger'")
    assert browser.run("document.activeElement.id") == "main", "the focus goes to what was asked for"
    assert browser.run("document.querySelector('nav a[aria-current]').dataset.view") == "ledger"
    browser.until("document.getElementById('prove-4') !== null")
    browser.run("document.getElementById('prove-4').focus()")
    browser.press("Enter")
    browser.until("document.getElementById('proof').innerText.includes('Proven: entry 4 is one of the')")
    assert browser.run("document.activeElement.id") == "proof"
    assert browser.complaints() == []


def test_the_overview_of_a_finished_run_has_its_curves_and_answers_of_its_last_step(
    browser: Browser, page: Any
) -> None:
    show(browser, page, "overview")
    browser.until("document.querySelector('.plots figure') !== null && document.querySelector('.samples li') !== null")
    shown = text(browser)
    assert "Curves" in shown
    assert browser.run("document.querySelectorAll('.plots figure').length") >= 1
    assert "Answers of step 0" in shown
    assert "12+34=" in shown
    assert browser.run("document.querySelectorAll('.samples li').length") == 1
    browser.run("document.querySelector('.samples a').click()")
    browser.until(f"{READY} && document.getElementById('completion') !== null")


def test_the_overview_waits_for_no_answers_and_says_in_their_place_why_they_do_not_come(
    browser: Browser, ui_run: UiRun, serve_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = list[str](), threading.Event()

    def slow(self: RolloutFiles, verdict: Verdict, *, keep: bool = True) -> None:
        asked.append(verdict.sha256)
        go_on.wait(60)
        raise StoreUnavailable("no answer in 5 s")

    monkeypatch.setattr(RolloutFiles, "open", slow)
    page = serve_page(ui_run)
    show(browser, page, "overview")
    assert {"Now", "Parts"} <= set(
        browser.run("[...document.querySelectorAll('main h2')].map((each) => each.textContent)")
    )
    page.snapshot = replace(page.snapshot, unix=2001.0, message="goes on")
    browser.until("document.querySelector('.plots figure') !== null")
    assert len(asked) == 1
    go_on.set()
    browser.until("document.body.innerText.includes('Answers cannot be read: no answer in 5 s')")
    assert "Parts" in text(browser)


def test_a_filter_is_part_of_the_address(browser: Browser, page: Any) -> None:
    show(browser, page, "rollouts")
    browser.run("document.getElementById('node').focus()")
    browser.type(CHEAT[:8])
    browser.press("Enter")
    browser.until("location.hash.includes('node=c2c2c2c2')")
    browser.until(f"{READY} && document.querySelectorAll('tbody tr').length === 2")


def test_the_theme_can_be_chosen_and_is_kept(browser: Browser, page: Any) -> None:
    show(browser, page, "overview", colours="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = browser.run(ground)
    browser.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
    assert browser.run("document.getElementById('theme').textContent") == "Theme: dark"
    dark = browser.run(ground)
    assert dark != before
    show(browser, page, "curves", colours="light")
    assert browser.run(ground) == dark
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) == before


def test_exchanges_of_islands_are_drawn_as_waits_and_named(
    browser: Browser, tmp_path: Path, serve_page: Callable[..., Any]
) -> None:
    run = EmptyRun(tmp_path)
    for step in range(2):
        run.add_step(step_metrics(step, phase_seconds={"update": 4.0, "exchange": 3.0}))
    show(browser, serve_page(run), "timeline")
    titles = "[...document.querySelectorAll('svg rect.wait title')].map((each) => each.textContent)"
    assert [each.split(", ")[2] for each in browser.run(titles)] == ["exchange", "exchange"]
    assert browser.run("document.querySelectorAll('svg rect.training title').length") == 2
    shown = text(browser)
    assert "trainer waits for its batch, or for other islands" in shown
    assert "Exchange with islands" in shown
    assert browser.run(f"{CHECKS}; unnamed()") == []


def test_the_sources_of_a_mixture_have_curves_of_their_own(
    browser: Browser, tmp_path: Path, serve_page: Callable[..., Any]
) -> None:
    run = EmptyRun(tmp_path)
    means = TypeMeans(groups=2, rows=4, task_reward=0.5, reward=0.5, completion_length_mean=9.0, sampled_share=0.25)
    for step in range(3):
        only_at_first = {"programs": means} if step == 0 else {}
        run.add_step(step_metrics(step, by_task_type={"sums": means, **only_at_first}))
    show(browser, serve_page(run), "curves")
    shown = text(browser)
    assert "Task reward by task type" in shown
    assert "Groups sampled by task type" in shown
    assert "Groups with signal by task type" not in shown, "nothing was measured of it"
    assert "programs" in shown
    assert browser.run(f"{CHECKS}; unnamed()") == []


def test_what_happens_is_seen_without_a_reload(browser: Browser, ui_run: UiRun, serve_page: Callable[..., Any]) -> None:
    page = serve_page(ui_run)
    show(browser, page, "overview")
    browser.run("window.same = true")
    parts = tuple(replace(each, phase="Running", ready=True, message="") for each in page.snapshot.parts)
    page.snapshot = replace(page.snapshot, unix=2001.0, parts=parts)
    browser.until("!document.body.innerText.includes('failed')")
    page.stop()
    browser.until("document.getElementById('connection').textContent.startsWith('connection lost')", 30)
    assert browser.run("window.same") is True


def test_with_nothing_there_each_view_says_what_is_awaited(
    browser: Browser, tmp_path: Path, serve_page: Callable[..., Any]
) -> None:
    page = serve_page(EmptyRun(tmp_path))
    for view, words in {
        "overview": "Now: makes the base model", "timeline": "the first lease, upload or version", "curves": "No step has been trained yet",
        "nodes": "there is no entry under ledger/", "rollouts": "No file has a verdict yet", "ledger": "there is no entry under ledger/",
    }.items():  # fmt: skip
        show(browser, page, view)
        assert words in text(browser)
        assert browser.complaints() == []


def test_a_token_is_asked_for_and_one_in_the_address_leaves_it_at_once(
    browser: Browser, ui_run: UiRun, serve_page: Callable[..., Any]
) -> None:
    token = "a-token-that-is-long"
    page = serve_page(ui_run, Access(token, frozenset()))
    browser.open(page.url)
    browser.until("document.activeElement.id === 'token'")
    browser.type("wrong")
    browser.press("Enter")
    browser.until("document.body.innerText.includes('That was not the token')")
    browser.type(token)
    browser.press("Enter")
    browser.until("document.getElementById('run').textContent === 'demo'")
    browser.call("Network.clearBrowserCookies")
    browser.open(f"{page.url}#token={token}")
    browser.until("document.getElementById('run').textContent === 'demo'")
    assert token not in browser.run("location.href")
    assert browser.run("document.cookie") == ""
