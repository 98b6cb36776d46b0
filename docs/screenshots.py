"""Write the screenshots of the report, from generated fleets: ./gpufleet docs --screenshots.

A digest of the pages that they show is recorded beside them. `./gpufleet lint` compares it with
the digest of today's pages; it needs no browser for that.
"""

from __future__ import annotations

import base64
import hashlib
import resource
import tempfile
import time
from pathlib import Path

from gpufleet.report import directory as report
from tests.support.fleet_documents import Fleet, fleet

DIRECTORY = Path(__file__).parent / "screenshots"
DIGEST = DIRECTORY / "pages.sha256"
# The fleets whose pages make the digest: hosts, and the share of them with a fault. A thousand
# hosts show no other templates, styles, script and kinds of faults, and take long.
SAMPLES = ((1, 0), (40, 0.9))
# name: hosts, anchor in the page, width, height, colour scheme
PICTURES = {
    "report-1000": (1000, "", 1440, 1160, "light"),
    "report-1000-grid": (1000, "#grid", 1440, 950, "light"),
    "report-1000-dark": (1000, "#h231", 1440, 900, "dark"),
    "report-1": (1, "", 1440, 1400, "light"),
    "report-1000-phone": (1000, "", 390, 844, "light"),
}


def main() -> None:
    """Write each screenshot and the digest, and print the cost of each page."""
    from selenium import webdriver  # noqa: PLC0415 (the digest needs no browser)

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
    )
    pages: dict[int, Path] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, (hosts, anchor, width, height, scheme) in PICTURES.items():
            if hosts not in pages:
                pages[hosts] = write(Path(directory), hosts)
            browser.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
            )
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
            )
            browser.get("about:blank")
            browser.get(pages[hosts].as_uri() + anchor)
            picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            (DIRECTORY / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))
    browser.quit()
    DIGEST.write_text(digest() + "\n")


def digest() -> str:
    """The digest of the pages and of the list of pictures."""
    made_from = hashlib.sha256(repr(PICTURES).encode())
    for hosts, broken in SAMPLES:
        made_from.update(page(fleet(hosts, broken=broken)).encode())
    return made_from.hexdigest()


def stale() -> bool:
    """Return whether the pictures show other pages than those that are written today."""
    return not DIGEST.exists() or DIGEST.read_text().strip() != digest()


def page(generated: Fleet) -> str:
    """The page of a fleet."""
    return report.render_page(generated.session, generated.changes, generated.past)


def write(directory: Path, hosts: int) -> Path:
    """Write the page of a fleet of `hosts`; print its size, time and memory."""
    generated = fleet(hosts, broken=0.02 if hosts > 1 else 0)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    text = page(generated)
    seconds = time.monotonic() - begin
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{hosts} hosts: {len(text.encode()) / 1e6:.2f} MB, {seconds:.1f} s, {mib:.0f} MiB more")
    path = directory / f"{hosts}.html"
    path.write_text(text, encoding="utf-8")
    return path
