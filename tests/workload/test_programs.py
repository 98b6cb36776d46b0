"""NVML's lists of the programs on a GPU, which differ between drivers."""

from __future__ import annotations

import ctypes
import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import programs
from gpufleet.workload.library import Absent, Refused
from gpufleet.workload.programs import UNKNOWN, drawn, listed, shares, without_desktop

NAME = "nvmlDeviceGetComputeRunningProcesses"
NO_INSTANCE = (1 << 32) - 1
OWN, OTHER = (4711, 527 << 20, NO_INSTANCE), (815, 300 << 20, NO_INSTANCE)


def library(
    name: str, layout: str, *programs: tuple[int, int, int], status: int = 0, clears: bool = False
) -> Any:
    """An NVML with this version of the list, whose elements have this layout."""

    def query(_device: object, count: Any, room: Any) -> int:
        sizes = struct.calcsize(layout)
        if clears:
            ctypes.memset(room, 0, sizes * count._obj.value)
        count._obj.value = len(programs)
        for at, program in enumerate(programs):
            fields = (*program, 0, 0)[: len(layout.replace("4x", "").lstrip("<"))]
            ctypes.memmove(ctypes.byref(room, at * sizes), struct.pack(layout, *fields), sizes)
        return status

    return SimpleNamespace(handle=None, library=SimpleNamespace(**{name: query}))


each_layout = pytest.mark.parametrize(
    ("version", "layout"),
    [
        ("_v3", "<I4xQII"),
        # What 535.54 writes under the same name.
        ("_v3", "<I4xQIIQ"),
        ("_v2", "<I4xQII"),
        ("", "<I4xQ"),
    ],
)


@each_layout
def test_each_version_of_the_list_is_read(version: str, layout: str) -> None:
    found = listed(library(NAME + version, layout, OTHER, OWN))
    assert [each[:2] for each in found] == [OTHER[:2], OWN[:2]]
    assert shares(found, 4711) == (True, 527)
    assert shares(listed(library(NAME + version, layout, OWN)), 4711) == (False, 527)
    assert shares(listed(library(NAME + version, layout)), 4711) == (False, None)


@each_layout
@pytest.mark.parametrize("others", [1, 127, 191])
def test_a_driver_may_clear_the_room_of_all_programs(
    version: str, layout: str, others: int
) -> None:
    """Two programs were one, and one with the number 0."""
    rows = [(5000 + at, *OTHER[1:]) for at in range(others)]
    found = listed(library(NAME + version, layout, *rows, OWN, clears=True))
    assert [each[:2] for each in found] == [each[:2] for each in (*rows, OWN)]
    assert shares(found, 4711) == (True, 527)
    assert shares(listed(library(NAME + version, layout, OWN, clears=True)), 4711) == (False, 527)


@pytest.mark.parametrize(("version", "layout"), [("_v3", "<I4xQII"), ("", "<I4xQ")])
def test_a_room_that_a_driver_clears_in_part_has_programs_of_the_declared_size(
    version: str, layout: str
) -> None:
    nvml = library(NAME + version, layout, OTHER, OWN)
    query = getattr(nvml.library, NAME + version)

    def clear(device: object, count: Any, room: Any) -> int:
        ctypes.memset(room, 0, 1000)
        return int(query(device, count, room))

    found = listed(SimpleNamespace(handle=None, library=SimpleNamespace(**{NAME + version: clear})))
    assert [each[:2] for each in found] == [OTHER[:2], OWN[:2]]


def test_no_program_has_the_number_0() -> None:
    hidden = (0, 300 << 20, NO_INSTANCE)
    assert shares(listed(library(NAME + "_v3", "<I4xQII", OWN, hidden)), 4711) == (False, 527)
    # What a driver hides is not listed: the memory in use says whether there is another program.
    assert shares(listed(library(NAME + "_v3", "<I4xQII", hidden)), 4711) == (False, None)


def test_programs_of_another_instance_have_their_own_memory() -> None:
    own, beside, with_us = (4711, 100 << 20, 1), (815, 1 << 30, 2), (816, 1 << 30, 1)
    assert shares([own, beside], 4711) == (False, 100)
    assert shares([own, beside, with_us], 4711) == (True, 100)


def test_a_container_s_own_process_may_have_its_number_on_the_host() -> None:
    """Then the memory that is in use says whether there is another one."""
    nobody = ((1 << 22) + 1, 527 << 20, NO_INSTANCE)  # no Linux has so many processes
    assert shares([nobody], 4711) == (False, None)
    assert shares([nobody, (nobody[0] + 1, *nobody[1:])], 4711) == (True, None)
    assert shares([(os.getpid(), *nobody[1:])], 4711) == (True, None)


def test_a_compositor_that_computes_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes and draws; so does a renderer, and a job may have any name."""
    names = {1001: "gnome-shell", 1002: "blender", 1003: "Xorg"}
    monkeypatch.setattr(programs, "command", lambda pid: names.get(pid, ""))
    shell, renderer, server = [(pid, 300 << 20, NO_INSTANCE) for pid in names]
    assert without_desktop([OWN, shell], [shell, server]) == [OWN]
    assert without_desktop([OWN, shell, renderer], [shell, renderer]) == [OWN, renderer]
    assert without_desktop([OWN, shell], []) == [OWN, shell]
    assert without_desktop(None, [shell]) is None


def test_programs_that_draw_have_memory() -> None:
    name = "nvmlDeviceGetGraphicsRunningProcesses_v3"
    found = listed(library(name, "<I4xQII", OTHER, (816, 4 << 20, NO_INSTANCE), OWN), "Graphics")
    assert drawn(found, 4711) == 304
    assert drawn([OWN], 4711) is None
    # Too many to list, and one of a virtual GPU.
    unknown = UNKNOWN // (1 << 20)
    assert drawn(None, 4711) == drawn([OTHER, (816, UNKNOWN, NO_INSTANCE)], 4711) == unknown
    assert programs.command(os.getpid()) != "" == programs.command((1 << 22) + 1)


def test_what_nvml_does_not_know_is_none() -> None:
    assert shares([(4711, UNKNOWN, NO_INSTANCE)], 4711) == (False, None)
    assert shares(listed(library(NAME, "<I4xQ", status=7)), 4711) == (True, None)
    with pytest.raises(Refused, match=r"returned 3"):
        listed(library(NAME, "<I4xQ", status=3))
    with pytest.raises(Absent):
        listed(library("nvmlInit", "<I4xQ"))
