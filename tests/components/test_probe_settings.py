"""The spec's influence on a probe's settings."""

from __future__ import annotations

from gpufleet.components.declare import declaration_of
from gpufleet.components.probe_settings import probe_settings
from tests.support.host_documents import declaration


def test_the_framework_of_each_declared_environment_goes_to_the_host() -> None:
    settings = probe_settings(
        declaration_of(declaration("2.13.1", {"tensorflow": "2.18.1", "name": "vision"})).spec
    )
    assert settings["frameworks"] == {
        "/opt/gpufleet/stacks/tensorflow-2.13.1": "tensorflow",
        "/opt/gpufleet/stacks/vision": "tensorflow",
    }
    assert probe_settings(declaration_of({}).spec)["frameworks"] == {}
