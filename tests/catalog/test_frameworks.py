"""PyTorch's and JAX's builds have the shape of every build."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts, versions
from gpufleet.frameworks import FRAMEWORKS

# Each library after those that it needs.
NEEDED_FIRST = (
    "libcudart",
    "libnvJitLink",
    "libnvrtc",
    "libcublasLt",
    "libcublas",
    "libcufft",
    "libcurand",
    "libcusparse",
    "libcusolver",
    "libcudnn",
)
LARGEST = 165_000  # bytes of one file: read whole for any of its releases


def test_no_file_is_too_large_to_read_for_one_release() -> None:
    for framework in FRAMEWORKS:
        for path in (facts.DATA / framework).glob("*.yml"):
            assert path.stat().st_size < LARGEST, path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_build_has_the_one_shape(framework: Any) -> None:
    for version in facts.build_versions(framework):
        for build in facts.variants(framework, version):
            where = (framework, version, build.variant)
            assert build.distribution in FRAMEWORKS[framework].distributions
            assert build.row["source"], where
            if build.unavailable:
                assert build.cuda_sources == [], where
                continue
            assert set(build.cuda_sources) <= {"toolkit", "pip", "bundled"}, where
            assert build.native, where
            assert build.capability_min, where
            assert build.pythons, where
            assert build.platform_tags, where
            assert build.driver_minor or build.driver_exact, where
            assert "libcuda.so.1" not in build.sonames, where
            for source in build.cuda_sources:
                first = build.requirements(source)[0]
                assert first.startswith(build.distribution), where
                assert f"=={version}" in first, where
                assert build.sonames or source == "bundled" or build.sonames_optional, where
                assert not build.variant or build.framework == "jax" or not build.sonames, where


def test_a_variant_for_cuda_11_or_newer_is_not_bound_to_a_cudnn_without_it() -> None:
    """cuDNN 7 was published for CUDA up to 10.2."""
    newer = [
        build
        for version in facts.build_versions("pytorch")
        for build in facts.variants("pytorch", version)
        if versions.major(build.cuda) > 10
    ]
    assert any("libcudnn.so.8" in build.sonames_optional for build in newer)
    for build in newer:
        bound = [name for name in build.sonames_optional if name.startswith("libcudnn.")]
        assert "libcudnn.so.7" not in bound, (build.version, build.variant)


def test_libraries_come_after_those_that_they_need() -> None:
    for framework in FRAMEWORKS.keys() - {"tensorflow"}:
        for build in facts.builds(framework):  # type: ignore[arg-type]
            stems = [name.split(".")[0] for name in build.sonames]
            order = [each for each in NEEDED_FIRST if each in stems]
            assert [each for each in stems if each in order] == order


def test_figures_known_from_elsewhere() -> None:
    old, new = facts.build("pytorch", "1.13.1"), facts.build("pytorch", "2.6.0")
    assert old is not None
    assert new is not None
    assert (old.cuda, old.cudnn, old.cuda_sources) == ("11.7", "8.5.0.96", ["pip"])
    assert (new.cuda, new.cudnn, new.pythons[-1]) == ("12.4", "9.1.0.70", "3.13")
    assert "nvidia-nccl-cu12==2.21.5" in {pin.split(" ;")[0] for pin in new.cuda_pins}
    jax = facts.build("jax", "0.5.3")
    assert jax is not None
    assert (jax.cuda, jax.cudnn, jax.cuda_sources) == ("12.3", "9.1.1", ["pip", "toolkit"])


def test_what_floats_over_a_major_version_is_pinned() -> None:
    for build in facts.builds("pytorch"):
        floating = [
            pin
            for pin in build.row.get("nvidia_pins_not_exact", [])
            if pin.startswith("nvidia-nvjitlink<")
        ]
        pinned = [
            each
            for each in build.requirements(build.cuda_sources[0])
            if each.startswith("nvidia-nvjitlink==")
        ]
        assert len(floating) == len(pinned), build.version
    assert "nvidia-nvjitlink==13.0.*" in facts.builds("pytorch")[-2].requirements("pip")


def test_jax_asks_for_the_cudnn_that_xla_asks_for() -> None:
    for build in facts.builds("jax"):
        own = next(each for each in build.requirements("pip") if "cudnn" in each)
        below = {8: "9", 9: "9.11"}[build.cudnn_major]  # no code for older GPUs from 9.11 on
        assert f">={versions.short(build.cudnn)},<{below}" in own
