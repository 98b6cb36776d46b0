"""The pictures of the report in docs/, from fleets that are made up: python -m docs.screenshots."""

from __future__ import annotations

import base64
import resource
import tempfile
import time
from pathlib import Path

from selenium import webdriver

from gpufleet.report import directory as report
from tests.support.fleet_documents import fleet

PLACE = Path(__file__).parent / "screenshots"
# name: hosts, place in the page, width, height, colours
PICTURES = {
    "report-1000": (1000, "", 1440, 1160, "light"),
    "report-1000-grid": (1000, "#grid", 1440, 950, "light"),
    "report-1000-dark": (1000, "#h231", 1440, 900, "dark"),
    "report-1": (1, "", 1440, 1400, "light"),
    "report-1000-phone": (1000, "", 390, 844, "light"),
}


def main() -> None:
    """Write each picture, and say what its page cost."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    pages: dict[int, Path] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, (hosts, place, width, height, colours) in PICTURES.items():
            if hosts not in pages:
                pages[hosts] = write(Path(directory), hosts)
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": colours}]})
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
            browser.get("about:blank")
            browser.get(pages[hosts].as_uri() + place)
            picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            (PLACE / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))
    browser.quit()


def write(directory: Path, hosts: int) -> Path:
    """The page of so many hosts; prints its size, and what it took."""
    made = fleet(hosts, broken=0.02 if hosts > 1 else 0)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    text = report.render_page(made.session, made.changes, made.past)
    seconds = time.monotonic() - begin
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{hosts} hosts: {len(text.encode()) / 1e6:.2f} MB, {seconds:.1f} s, {mib:.0f} MiB more")
    path = directory / f"{hosts}.html"
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
