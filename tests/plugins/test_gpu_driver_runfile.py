"""A driver's runfile is refused where packages of a driver are installed, by dpkg or by rpm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ansible_modules import load


@pytest.mark.parametrize("manager", ["dpkg", "rpm"])
def test_a_driver_of_packages_is_no_place_for_a_runfile(
    monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    module = load("gpu_driver_runfile")
    rows = [{"name": name} for name in ("bash", "nvidia-driver-cuda")]
    monkeypatch.setattr(module, "installed_packages", lambda host: (rows, manager))
    assert module.installed_names() == ["bash", "nvidia-driver-cuda"]
    runfile = module.Runfile.__new__(module.Runfile)
    with pytest.raises(module.StateError, match=r"are installed \(nvidia-driver-cuda\)"):
        runfile.present(0)


def test_packages_that_cannot_be_listed_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("gpu_driver_runfile")

    def fails(host: Any) -> None:
        raise RuntimeError("rpm -qa: the database is locked")

    monkeypatch.setattr(module, "installed_packages", fails)
    with pytest.raises(module.StateError, match="the database is locked"):
        module.installed_names()


def test_an_installer_whose_module_is_killed_keeps_the_hosts_lock() -> None:
    module, ran = load("gpu_driver_runfile"), []
    runfile = module.Runfile.__new__(module.Runfile)
    runfile.module = SimpleNamespace(
        run_command=lambda words, pass_fds: ran.append((words, pass_fds)) or (0, "", "")
    )
    runfile.run(7, "nvidia-uninstall")
    assert ran == [(["nvidia-uninstall", "--silent"], [7])]
