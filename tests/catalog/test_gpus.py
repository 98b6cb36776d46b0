"""GPUs: what a name stands for."""

from __future__ import annotations

import pytest

from gpufleet.catalog import facts, gpus


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("8.9", ["8.9"]),
        ("H100", ["9.0"]),
        ("h200", ["9.0"]),
        ("NVIDIA H100 80GB HBM3", ["9.0"]),
        ("NVIDIA A100-SXM4-80GB", ["8.0"]),
        ("Tesla V100-SXM2-16GB", ["7.0"]),
        ("T4", ["7.5"]),
        ("P100", ["6.0"]),
        ("K80", ["3.7"]),
        ("GeForce RTX 3090 Ti", ["8.6"]),
        ("RTX 4090", ["8.9"]),
        ("L4", ["8.9"]),
        ("L40S", ["8.9"]),
        ("B200", ["10.0"]),
        ("RTX 5090", ["12.0"]),
        ("Quadro RTX 6000", ["7.5"]),
        ("NVIDIA RTX 6000 Ada Generation", ["8.9"]),
        ("NVIDIA RTX A6000", ["8.6"]),
        ("A6000", ["8.6"]),
        ("T1000", ["7.5"]),
        ("NVIDIA T1000 8GB", ["7.5"]),
        ("T400 4GB", ["7.5"]),
        ("T600", ["7.5"]),
        ("RTX 4000", ["7.5", "8.9"]),
        ("NVIDIA RTX 4000 SFF Ada Generation", ["8.9"]),
        ("RTX PRO 500", ["12.0"]),
        ("RTX PRO 1000", ["12.0"]),
        ("NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU", ["12.0"]),
        ("RTX PRO 6000D", ["12.0"]),
        ("RTX 6000D", ["12.0"]),
        ("Jetson AGX Orin", ["8.7"]),
        ("Jetson AGX Thor", ["11.0"]),
        ("Ampere", ["8.0", "8.6"]),
        ("hopper", ["9.0"]),
        ("Voodoo", []),
        ("", []),
        ("100", []),
    ],
)
def test_a_name_or_a_figure(name: str, expected: list[str]) -> None:
    assert gpus.capabilities(name) == expected


def test_the_name_of_every_pci_device_is_known() -> None:
    for row in facts.document("pci.yml")["chips"]:
        for name in row["devices"].values():
            for each in name.split(" / "):
                assert gpus.capabilities(each) == [row["compute_capability"]], each


@pytest.mark.parametrize(
    ("have", "code", "runs"),
    [
        ("8.6", "8.0", True),
        ("8.0", "8.6", False),
        ("9.0", "8.9", False),
        ("10.0", "9.0", False),
        ("10.3", "10.0", True),
        ("10.7", "10.3", False),  # Rubin, not Blackwell
        ("10.7", "10.7", True),
    ],
)
def test_machine_code_runs_within_a_major_version(have: str, code: str, runs: bool) -> None:
    assert gpus.runs_code_for(have, code) is runs


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("2.1", "Fermi"),
        ("3.7", "Kepler"),
        ("5.2", "Maxwell"),
        ("8.6", "Ampere"),
        ("8.9", "Ada"),
        ("12.1", "Blackwell"),
        ("10.3", "Blackwell"),
        ("10.7", "Rubin"),
    ],
)
def test_the_architecture_of_a_gpu(capability: str, name: str) -> None:
    row = gpus.architecture(gpus.Gpu(capability, capability, ""))
    assert row is not None
    assert row.name == name
