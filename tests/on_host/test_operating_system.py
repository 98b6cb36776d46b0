"""The section `os` reads the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.catalog import facts
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections import operating_system

KVM64 = "flags\t\t: fpu de pse tsc sse sse2 ht syscall nx lm cx16 x2apic hypervisor\n"
HASWELL = "flags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt avx f16c avx2 fma bmi2\n"
IVY = "flags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt avx f16c\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KVM64 * 4, []),
        (HASWELL * 4, ["sse4_1", "avx", "avx2"]),
        (IVY, ["sse4_1", "avx"]),
        (HASWELL + IVY, ["sse4_1", "avx"]),
        ("Features\t: fp asimd evtstrm aes\n", None),
        ("flags\t\t:\n", []),
        (None, None),
    ],
)
def test_the_features_that_wheels_need(
    tmp_path: Path, text: str | None, found: list[str] | None
) -> None:
    (tmp_path / "proc").mkdir()
    if text is not None:
        (tmp_path / "proc/cpuinfo").write_text(text)
    assert operating_system.cpu_features(Host({"root": str(tmp_path)})) == found


def test_every_feature_that_a_fact_names_is_read() -> None:
    named = {name for rule in facts.rules("cpu_features") for name in rule["needs"]}
    assert named <= set(operating_system.CPU_FEATURES)
