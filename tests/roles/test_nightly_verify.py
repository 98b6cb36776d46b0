"""The nightly's unit, as it is written for settings of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).resolve().parents[2] / "roles/nightly_verify"


def unit(settings: dict[str, Any]) -> str:
    """The service, as the role writes it."""
    loader = DataLoader()
    variables = {
        **loader.load_from_file(str(ROLE / "defaults/main.yml"), trusted_as_template=True),
        **loader.load_from_file(str(ROLE / "vars/main.yml"), trusted_as_template=True),
        "role_path": str(ROLE), "nightly_verify_settings": settings}
    template = (ROLE / "templates/gpufleet-nightly.service.j2").read_text()
    return str(Templar(loader, variables).template(trust_as_template(template)))


@pytest.mark.parametrize(("settings", "places"), [
    ({}, "/var/lib/gpufleet-nightly /var/lib/gpufleet-nightly/reports"
         " /var/lib/gpufleet-nightly/metrics"),
    ({"state_dir": "/srv/state", "reports_dir": "/srv/reports"},
     "/var/lib/gpufleet-nightly /srv/state /srv/reports /var/lib/gpufleet-nightly/metrics"),
])
def test_the_home_is_writable_wherever_the_state_is(
    settings: dict[str, Any], places: str
) -> None:
    lines = [" ".join(line.split()) for line in unit(settings).splitlines()]
    assert f"ReadWritePaths={places}" in lines
    # A host that is not healthy makes no failed unit; the nightly's own troubles do.
    assert "SuccessExitStatus=1 3" in lines
