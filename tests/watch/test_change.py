"""Which causes are the same one: for changes and for silences."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.watch import drift, silences
from gpufleet.watch.drift import CheckResult


@pytest.mark.parametrize(
    ("cause", "more"),
    [
        (
            "1 of 8 declared GPUs is not on the PCI bus",
            "2 of 8 declared GPUs are not on the PCI bus",
        ),
        ("a is 31 x 64GiB; the group has 32 x 64GiB", "a is 16 x 64GiB; the group has 32 x 64GiB"),
        ("nothing was computed on GPU 1, 3", "nothing was computed on GPU 1, 5"),
        ("no result of GPU 1, 2, 3 of 8 declared", "no result of GPU 1, 5, 3 of 8 declared"),
        ("NVLink connects GPUs 0 and 1, and no more", "NVLink connects GPUs 0 and 5, and no more"),
        ("NVLink connects GPUs 0 and 1; 2 and 3", "NVLink connects GPUs 0 and 1; 2 and 5"),
        ("GPU 3 has 17 NVLinks active", "GPU 3 has 16 NVLinks active"),
        ("17 NVLinks active (inactive: 4)", "17 NVLinks active (inactive: 9)"),
        ("17 NVLinks active (inactive: 4, 9)", "17 NVLinks active (inactive: 4, 11)"),
        ("files a, b and 3 more", "files a, b and 4 more"),
    ],
)
def test_another_part_or_number_of_parts_is_another_cause(cause: str, more: str) -> None:
    both = [CheckResult("F", cause, ""), CheckResult("F", more, "")]
    assert [it.kind for it in drift.check_changes("gpu01", "gpu.x", both)] == ["other-cause"]
    known: Any = {"causes": [{"verdict": "FAIL", "cause": cause}]}
    assert silences.matches(known, "FAIL", cause) and not silences.matches(known, "FAIL", more)


@pytest.mark.parametrize(
    ("cause", "other"),
    [
        ("Xid 79 of GPU 1, 3 times", "Xid 79 of GPU 1, 17 times"),
        ("GPU 3, 91 degrees", "GPU 3, 88 degrees"),
        (
            "slowed in 3 of 12 samples, to 31.5 of 60 TFLOP/s",
            "slowed in 4 of 15 samples, to 32 of 61 TFLOP/s",
        ),
        ("12 of 16384 MiB are free", "9 of 20480 MiB are free"),
        # What other hosts have depends on who was reached.
        (
            "GPU 3 has another sum than 791 of 792 GPUs, each time after 3 rounds",
            "GPU 3 has another sum than 783 of 784 GPUs, each time after 3 rounds",
        ),
        ("17 of 18 hosts of rack a are in b", "16 of 17 hosts of rack a are in b"),
    ],
)
def test_a_measured_number_beside_a_name_or_a_total_is_no_other_cause(
    cause: str, other: str
) -> None:
    both = [CheckResult("F", cause, ""), CheckResult("F", other, "")]
    assert list(drift.check_changes("gpu01", "gpu.x", both)) == []
