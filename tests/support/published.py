"""Manifests and lists in the form of NVIDIA's, and a copy of the catalog's data."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from gpufleet.catalog import facts

ARM = "linux-sbsa"
X86 = "linux-x86_64"


def copy_of_data(folder: Path) -> Path:
    """The catalog's data in a folder that a test may change."""
    return Path(shutil.copytree(facts.DATA, folder / "data"))


def digest(text: str, kind: str = "sha256") -> str:
    """A checksum of the right length."""
    return hashlib.new(kind, text.encode()).hexdigest()


def file(path: str) -> dict[str, str]:
    """One file of a component."""
    return {
        "relative_path": path,
        "sha256": digest(path),
        "md5": digest(path, "md5"),
        "size": str(1000 + len(path)),
    }


def cuda(version: str, driver: str | None = None) -> dict[str, Any]:
    """The manifest of a CUDA release."""
    found: dict[str, Any] = {
        "release_date": "2026-11-20",
        "release_label": version,
        "release_product": "cuda",
    }
    for name in ("cuda_cudart", "libcublas"):
        found[name] = {
            "name": name,
            "license": "CUDA Toolkit",
            "license_path": f"{name}/LICENSE.txt",
            "version": f"{version}.17",
            **{
                label: file(f"{name}/{label}/{name}-{label}-{version}.17-archive.tar.xz")
                for label in (X86, ARM)
            },
        }
    if driver:
        found["nvidia_driver"] = driver_component(driver)
    return found


def driver_component(version: str) -> dict[str, Any]:
    """The driver's component."""
    return {
        "name": "NVIDIA Linux Driver",
        "license": "NVIDIA Driver",
        "version": version,
        X86: file(f"nvidia_driver/{X86}/nvidia_driver-{X86}-{version}-archive.tar.xz"),
    }


def driver(version: str) -> dict[str, Any]:
    """The manifest of a driver release."""
    return {
        "release_date": "2026-11-04",
        "release_label": version,
        "nvidia_driver": driver_component(version),
    }


def cudnn(version: str, variants: tuple[str, ...] = ("12", "13")) -> dict[str, Any]:
    """The manifest of a cuDNN release."""
    return {
        "release_date": "2026-11-06",
        "release_label": version.rpartition(".")[0],
        "release_product": "cudnn",
        "cudnn": {
            "name": "NVIDIA CUDA Deep Neural Network library",
            "license": "cudnn",
            "license_path": "cudnn/LICENSE.txt",
            "version": version,
            "cuda_variant": list(variants),
            **{
                label: {
                    f"cuda{cuda}": file(
                        f"cudnn/{label}/cudnn-{label}-{version}_cuda{cuda}-archive.tar.xz"
                    )
                    for cuda in variants
                }
                for label in (X86, ARM)
            },
        },
    }
