"""What the spec decides of a probe's settings."""

from __future__ import annotations

from gpufleet.spec.probe_settings import probe_settings
from tests.support.host_documents import wish


def test_the_framework_of_each_declared_environment_goes_to_the_host() -> None:
    settings = probe_settings(wish("2.13.1", {"tensorflow": "2.18.1", "name": "vision"}))
    assert settings["frameworks"] == {
        "/opt/gpufleet/stacks/tensorflow-2.13.1": "tensorflow",
        "/opt/gpufleet/stacks/vision": "tensorflow",
    }
    assert probe_settings({})["frameworks"] == {}
