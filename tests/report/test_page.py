"""The page as people meet it: in Chromium, by keyboard, on a phone, on paper, without scripts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import (
    invisibility_of_element_located,
    visibility_of_element_located,
)
from selenium.webdriver.support.wait import WebDriverWait
from selenium_axe_python import Axe

from gpufleet.documents.verdict import HEALTHY_VERDICTS, SYMBOLS, Verdict
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.report import directory, rendering, summary
from tests.support.fleet_documents import Fleet, all_broken, fleet

pytestmark = pytest.mark.costly
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
MOST_BYTES, MOST_MS = 2_000_000, 1000
STYLE = rendering.source("report.css")
Open = Callable[..., webdriver.Chrome]

FLEETS: dict[str, Callable[[], Fleet]] = {
    "one": lambda: fleet(1, broken=0),
    "eight": lambda: fleet(8, seed=5, broken=0.6),
    "thousand": lambda: fleet(1000),
}


@pytest.fixture(scope="module")
def fleets() -> dict[str, Fleet]:
    return {name: make() for name, make in FLEETS.items()}


@pytest.fixture(scope="module")
def pages(fleets: dict[str, Fleet]) -> Callable[[str], str]:
    """The page of each fleet, rendered once: that of a thousand hosts takes seconds."""
    return cache(lambda name: rendered(fleets[name]))


def rendered(found: Fleet) -> str:
    return directory.render_page(found.session, found.changes, found.past)


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
    missing = [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{', '.join(missing)}: not here (packages chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Without a sandbox, since the tests run as root.
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    browser.set_script_timeout(120)
    yield browser
    browser.quit()


@pytest.fixture
def show(chromium: webdriver.Chrome, pages: Callable[[str], str], tmp_path: Path) -> Iterator[Open]:
    """Write a page and look at it, from disk."""

    def show(
        what: str | Session | Fleet,
        place: str = "",
        scheme: str = "light",
        width: int = 1440,
        scripts: bool = True,
    ) -> webdriver.Chrome:
        text = (
            pages(what)
            if isinstance(what, str)
            else rendered(what if isinstance(what, Fleet) else Fleet(what, None, None))
        )
        page = tmp_path / "report.html"
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
        for command, settings in (
            (
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
            ),
            (
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
            ),
            ("Emulation.setScriptExecutionDisabled", {"value": not scripts}),
        ):
            chromium.execute_cdp_cmd(command, settings)
        chromium.get("about:blank")
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get(page.as_uri() + place)
        return chromium

    yield show
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def shown(browser: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of all such elements that a person can see."""
    return [
        each.text
        for each in browser.find_elements(By.CSS_SELECTOR, selector)
        if each.is_displayed()
    ]


@pytest.mark.parametrize(
    ("what", "place", "scheme"),
    [
        ("thousand", "", "light"),
        ("one", "", "light"),
        ("one", "", "dark"),
        ("eight", "#h1", "dark"),
    ],
)
def test_axe_finds_nothing(show: Open, what: str, place: str, scheme: str) -> None:
    axe = Axe(show(what, place, scheme))
    axe.inject()
    found = axe.run()
    assert not found["violations"], Axe.report(found["violations"])
    assert len(found["passes"]) > 30


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_distinguished(scheme: str) -> None:
    """The marks of the grid are too short for axe to judge."""
    light, dark = re.findall(r":root \{([^}]*)\}", STYLE)
    colours = {
        name: int(digits * (6 // len(digits)), 16)
        for text in ([light] if scheme == "light" else [light, dark])
        for name, digits in re.findall(r"--([\w-]+): #(\w+)", text)
    }

    def light_of(colour: int) -> float:
        parts = [(colour >> shift & 255) / 255 for shift in (16, 8, 0)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(one: str, other: str) -> float:
        darker, lighter = sorted((light_of(colours[one]), light_of(colours[other])))
        return (lighter + 0.05) / (darker + 0.05)

    pairs = [
        *((tone, f"{tone}-b") for tone in ("pass", "fail", "open", "none")),
        *((tone, "card") for tone in ("pass", "fail", "open", "text", "quiet", "link")),
        ("quiet", "page"),
        ("text", "none-b"),
    ]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    lines = {name: contrast(name, "card") for name in colours if re.fullmatch(r"c\d", name)}
    assert len(lines) == 8 and min(lines.values()) > 3


@pytest.mark.parametrize("what", ["thousand", "one"])
def test_it_asks_for_nothing_and_complains_of_nothing(show: Open, what: str) -> None:
    browser = show(what)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert [url.partition("/report.html")[1:] for url in asked] == [("/report.html", "")]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []
    # What gets in all the same may run nothing and fetch nothing.
    assert (
        browser.execute_async_script(
            "const done = arguments[0]; addEventListener('securitypolicyviolation', (event) =>"
            " done(event.effectiveDirective)); const image = new Image(); image.src = 'x.png';"
        )
        == "img-src"
    )


def test_a_thousand_hosts_are_small_and_quick(show: Open, pages: Callable[[str], str]) -> None:
    assert len(pages("thousand").encode()) < MOST_BYTES
    times = []
    for _ in range(3):
        browser = show("thousand")
        times.append(
            browser.execute_async_script(
                "const done = arguments[0];"
                "new PerformanceObserver((list) => done(list.getEntries()[0].startTime))"
                ".observe({type: 'paint', buffered: true});"
            )
        )
        assert browser.find_elements(By.CSS_SELECTOR, ".grid tbody tr")
    assert min(times) < MOST_MS


@pytest.mark.exhaustive
def test_the_worst_night_and_the_longest_past_fit_too() -> None:
    assert len(directory.render_page(all_broken(1000)).encode()) < MOST_BYTES
    assert len(rendered(fleet(1000, nights=90, broken=0.3)).encode()) < MOST_BYTES


def test_what_is_shown_of_each_host_is_what_was_judged(
    show: Open, fleets: dict[str, Fleet]
) -> None:
    browser = show("eight")
    browser.execute_script("document.querySelectorAll('.host').forEach((host) => host.open = true)")
    WebDriverWait(browser, 20).until(
        lambda it: (
            len(it.find_elements(By.CSS_SELECTOR, ".host > .checks"))
            == len(fleets["eight"].past["hosts"])
        )
    )
    # A consequence is folded under its cause.
    browser.execute_script("document.querySelectorAll('.folds').forEach((it) => it.open = true)")
    found = browser.execute_script(
        "return [...document.querySelectorAll('.check')].map((check) => [check.id,"
        " check.querySelector('.mark').title, check.querySelector('.mark').innerText,"
        " check.querySelector('.cause')?.textContent])"
    )
    hosts = fleets["eight"].session.for_display().hosts
    assert {place: (verdict, mark.split()[-1], cause) for place, verdict, mark, cause in found} == {
        f"h{number}-{check['id']}": (
            check["verdict"],
            SYMBOLS[Verdict(check["verdict"])],
            check["cause"] if check["verdict"] not in HEALTHY_VERDICTS else None,
        )
        for number, host in enumerate(hosts, 1)
        for check in host.result["checks"]
    }
    page = browser.find_element(By.TAG_NAME, "body").get_property("textContent")
    for host in hosts:
        for check in host.result["checks"]:
            assert check["remedy"] in page and check["evidence"] in page


def test_the_grid_is_worst_first_filtered_and_searched(
    show: Open, fleets: dict[str, Fleet]
) -> None:
    browser = show("thousand")
    session = fleets["thousand"].session
    names = [host.name for host in summary.worst_first(session)]
    unwell = [host for host in session.hosts if host.result["verdict"] != "PASS"]
    assert {host.name for host in unwell} == set(names[: len(unwell)])

    def rows() -> list[str]:
        found: list[str] = browser.execute_script(
            "return [...document.querySelectorAll('.grid tbody th')].map((th) => th.innerText)"
        )
        return found

    assert rows() == names[:50]
    more, everything = browser.find_elements(By.CSS_SELECTOR, ".more-hosts button")
    assert [more.text, everything.text] == ["Show 100 more", "Show 950 more"]
    more.click()
    assert rows() == names[:150]
    (chip,) = [
        each
        for each in browser.find_elements(By.CSS_SELECTOR, ".chips button")
        if "unreachable" in each.text
    ]
    chip.click()
    down = [host.name for host in unwell if host.result["verdict"] == "UNREACHABLE"]
    assert rows() == down and chip.get_attribute("aria-pressed") == "true"
    assert shown(browser, "#showing") == [f"{len(down)} of 1000 hosts, the worst first."]
    everyone, *_, changed = browser.find_elements(By.CSS_SELECTOR, ".chips button")
    changed.click()
    news = {change["host"] for change in fleets["thousand"].changes["changes"]}
    assert changed.text == f"↕ {len(news)} changed" and set(rows()) == news
    everyone.click()
    find = browser.find_element(By.ID, "find")
    for words, expected in (
        (names[-1], [names[-1]]),
        (
            "stack.libraries",
            [
                host.name
                for host in unwell
                if any(
                    check["id"] == "stack.libraries" and check["verdict"] == "FAIL"
                    for check in host.result["checks"]
                )
            ],
        ),
        (
            "NOT on the pci",
            [
                host.name
                for host in unwell
                if any("not on the PCI bus" in check["cause"] for check in host.result["checks"])
            ],
        ),
        ("host.plan", []),
    ):
        find.clear()
        find.send_keys(words)
        assert sorted(rows()) == sorted(expected), words
    assert shown(browser, "#showing") == ["No host: this check passes wherever it was judged."]
    find.clear()
    browser.find_element(By.ID, "narrow").click()
    heads = [each.strip() for each in shown(browser, ".grid .check-name")]
    assert "stack.libraries" in heads and "host.plan" not in heads


def test_the_keyboard_gets_everywhere(show: Open) -> None:
    browser = show("eight")
    cell = browser.find_element(By.CSS_SELECTOR, ".grid .cell.fail a")
    aim = str(cell.get_attribute("href")).partition("#")[2]
    assert ": FAIL" in cell.accessible_name
    cell.send_keys(Keys.ENTER)
    WebDriverWait(browser, 20).until(visibility_of_element_located((By.ID, aim)))
    focused = browser.switch_to.active_element
    assert focused.tag_name == "summary"
    focused.send_keys(Keys.SPACE)
    WebDriverWait(browser, 20).until(invisibility_of_element_located((By.ID, aim)))


def test_a_link_opens_a_host_that_is_not_in_the_list(show: Open, fleets: dict[str, Fleet]) -> None:
    number = max(
        place
        for place, host in enumerate(fleets["thousand"].session.hosts, 1)
        if host.result["verdict"] == "PASS"
    )
    browser = show("thousand", f"#h{number}-gpu.throughput")
    check = browser.find_element(By.ID, f"h{number}-gpu.throughput")
    assert check.is_displayed() and "aimed" in str(check.get_attribute("class"))
    part = browser.find_element(By.ID, f"h{number}")
    charts = part.find_elements(By.CSS_SELECTOR, "figure svg[role=img]")
    assert [len(chart.find_elements(By.CSS_SELECTOR, "path.line")) for chart in charts] == [8, 8]
    assert "8 × NVIDIA H100" in part.text and "GPU 7" in part.text


def test_a_slow_card_is_seen_in_its_history(show: Open, fleets: dict[str, Fleet]) -> None:
    slow = next(
        number
        for number, host in enumerate(fleets["thousand"].session.hosts, 1)
        if any(
            check["id"] == "gpu.throughput" and check["verdict"] == "FAIL"
            for check in host.result["checks"]
        )
    )
    browser = show("thousand", f"#h{slow}")
    (row,) = browser.find_elements(By.CSS_SELECTOR, f".grid a[href='#h{slow}']")
    ratio = row.find_element(By.XPATH, "../..").find_element(By.CSS_SELECTOR, ".speed .low").text
    assert 30 < int(ratio.removesuffix(" %")) < 36
    low = [
        each
        for each in browser.find_elements(By.CSS_SELECTOR, f"#h{slow} .rates tr")
        if each.find_elements(By.CSS_SELECTOR, ".low")
    ]
    assert [each.text.split()[:2] for each in low] == [["GPU", "3"]] * 2


def test_a_lost_link_is_seen_in_the_ports_of_its_host_and_among_the_rails(
    show: Open, fleets: dict[str, Fleet]
) -> None:
    [(number, name)] = [
        (number, host.name)
        for number, host in enumerate(fleets["eight"].session.hosts, 1)
        if any(
            check["id"] == "network.ports" and check["verdict"] == "FAIL"
            for check in host.result["checks"]
        )
    ]
    browser = show("eight", f"#h{number}")
    ports = [" ".join(row.split()) for row in shown(browser, f"#h{number} .ports tbody tr")]
    [up, down] = [row for row in ports if row.startswith("mlx5")]
    assert up.startswith("mlx5_0, mlx5_1, mlx5_2, mlx5_4") and "✓ 4: ACTIVE" in up
    assert "mlx5_6: symbol_error 4711" in up
    assert down.startswith("mlx5_3 ") and "✗ 1: DOWN, 2: Polling" in down
    assert "0, 1, 2, 3, 4, 5, 6, 7 18 of 18 4.0 0" in ports
    # Only a screen reader reads `up`.
    [row] = [" ".join(row.split()) for row in shown(browser, ".rails tbody tr")]
    assert row == f"{name} ✓ up ✓ up ✓ up ✗ down ✓ up ✓ up ✓ up ✓ up"
    [count] = shown(browser, ".rails tfoot tr")
    assert count.split() == ["Hosts", "with", "a", "fault", "1"]


def test_a_card_that_is_worse_than_its_siblings_is_marked_in_their_strip(show: Open) -> None:
    browser = show("thousand", "#siblings", scripts=False)
    first = browser.find_element(By.CSS_SELECTOR, ".strips tbody tr")
    assert "toolkit.11.8.tflops" in first.text
    # A sign and not the colour alone tells a fault from a note.
    assert re.search(r"✗ gpu-a01-01\s+GPU-00000005\S+\s+-1\d\.\d%", first.text)
    assert re.search(r"◇ gpu-\S+", first.text)
    drawing = first.find_element(By.CSS_SELECTOR, "svg")
    assert drawing.accessible_name.startswith("toolkit.11.8.tflops of 8000 cards")
    assert "2 beyond a bound, 1 of those shown as faults" in drawing.accessible_name
    fails, noted = (
        drawing.find_element(By.CSS_SELECTOR, f"path.{kind}") for kind in ("fails", "noted")
    )
    rule = drawing.find_element(By.CSS_SELECTOR, ".rule")
    assert fails.rect["x"] < noted.rect["x"] < rule.rect["x"]
    assert len(drawing.find_elements(By.CSS_SELECTOR, "circle")) <= 60


def test_what_changed_is_on_top_and_said_once(show: Open, fleets: dict[str, Fleet]) -> None:
    browser = show("thousand")
    titles = shown(browser, "h2")
    assert titles[0] == "What changed since 2026-11-20" and titles[1] == "Issues"
    browser.execute_script("document.querySelectorAll('.more').forEach((it) => it.open = true)")
    (kernel,) = [each for each in shown(browser, ".item") if each.startswith("kernel")]
    hosts = sum(change["kind"] == "kernel" for change in fleets["thousand"].changes["changes"])
    assert f"{hosts} hosts" in kernel and "6.1.0-27-amd64" in kernel
    (odd,) = [each for each in shown(browser, ".versions tbody tr") if each.startswith("Kernel")]
    assert f"6.1.0-26-amd64 {hosts} hosts:" in odd


def test_changes_beyond_ten_are_folded(show: Open, fleets: dict[str, Fleet]) -> None:
    night = fleets["eight"]
    host = night.session.hosts[0].name
    common = {
        "host": host,
        "check": None,
        "before": None,
        "after": None,
        "remedy": None,
        "strikes": 0,
    }
    rows = [
        {**common, "kind": "version", "weight": "note", "text": f"component {number} changed"}
        for number in range(11)
    ]
    kernel = {**common, "kind": "kernel", "weight": "note", "text": "runs another kernel"}
    browser = show(replace(night, changes={**night.changes, "changes": [*rows, kernel]}))
    more = browser.find_element(By.CSS_SELECTOR, ".more > summary")
    assert "2 more changes" in more.text and "kernel" in more.text
    assert not [each for each in shown(browser, ".item") if each.startswith("kernel")]
    more.click()
    assert [each for each in shown(browser, ".item") if each.startswith("kernel")]


def test_a_phone_has_it_all_in_its_width(show: Open, fleets: dict[str, Fleet]) -> None:
    long = "gpu-node-003.rack17.datacenter-frankfurt-2.research.example.org"
    host = fleets["one"].session.hosts[0]
    named = Session(
        [
            HostRun(long, host.snapshot, host.plan, host.result),
            HostRun(f"x-{long}", None, {}, judge.unreachable(long * 3, long * 3, "")),
        ]
    )
    for what in ("thousand", "eight", named):
        browser = show(what, "#h1", width=390)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_without_scripts_what_is_wrong_is_there(show: Open, fleets: dict[str, Fleet]) -> None:
    browser = show("thousand", scripts=False)
    text = browser.find_element(By.TAG_NAME, "main").text
    for each in summary.issues(fleets["thousand"].session.for_display())[:10]:
        assert each.cause in text and each.remedy in text
    assert "report.json beside this page" in text and "Find" not in text


def test_paper_has_what_is_wrong_and_no_tools(show: Open) -> None:
    browser = show("eight", scheme="dark")
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    states = browser.execute_script(
        "return [...document.querySelectorAll('.host')].map((host) =>"
        " [host.classList.contains('pass'), host.open])"
    )
    assert states and all(healthy != is_open for healthy, is_open in states)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not shown(browser, ".tools") and not shown(browser, "nav")
    assert shown(browser, ".loud") and not shown(browser, ".check.pass")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


EVIL = (
    "</script><script>document.title = 'in'</script>",
    "<!--<script>",
    '"><img src=x onerror="document.title = 1">',
    "{{ 7 * 7 }}",
    "$&$1",
    "\udcff\u2028\ue000",
    "__proto__",
)


@pytest.mark.parametrize("evil", EVIL)
def test_nothing_breaks_out(show: Open, fleets: dict[str, Fleet], evil: str) -> None:
    whole = fleets["one"].session.hosts[0]
    checks: list[dict[str, Any]] = [dict(check) for check in whole.result["checks"]]
    checks[3] |= {"verdict": "FAIL", "cause": evil, "remedy": evil, "evidence": evil}
    checks[4] |= {"evidence": evil}
    session = Session(
        [
            HostRun(evil, whole.snapshot, whole.plan, {"verdict": "FAIL", "checks": checks}),
            HostRun("gpu02", None, {}, judge.unreachable(evil, evil, evil)),
        ],
        finished="now",
    )
    browser = show(session, "#h1")
    assert browser.title == "GPU hosts: 0 of 2 hosts healthy; 1 failed, 1 unreachable."
    assert browser.get_log("browser") == []
    texts = browser.execute_script(
        "return ['.cause', 'dd code', 'pre', 'h3'].map((part) =>"
        " document.querySelector(`#h1 ${part}`).textContent.toWellFormed())"
    )
    assert texts == [evil.replace("\udcff", "\ufffd")] * 4
    assert browser.execute_script("return document.scripts.length") == 2
    assert not browser.find_elements(By.TAG_NAME, "img")
