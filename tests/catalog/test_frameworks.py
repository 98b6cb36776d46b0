"""PyTorch's and JAX's builds: the same as what was gathered, in the shape of every build."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpufleet.catalog import facts, import_frameworks, versions
from gpufleet.model.frameworks import FRAMEWORKS
from tests.support.gathered_facts import GATHERED, needs_gathered

LARGEST = 160_000  # bytes of one file: read whole for any of its releases


def gathered(name: str) -> dict[str, Any]:
    text = (GATHERED / name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=facts.LOADER)
    return loaded


def known(value: Any) -> Any:
    return None if str(value).startswith("unknown") else value


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
    newer = [build for version in facts.build_versions("pytorch")
             for build in facts.variants("pytorch", version) if versions.major(build.cuda) > 10]
    assert any("libcudnn.so.8" in build.sonames_optional for build in newer)
    for build in newer:
        bound = [name for name in build.sonames_optional if name.startswith("libcudnn.")]
        assert "libcudnn.so.7" not in bound, (build.version, build.variant)


@needs_gathered
def test_every_figure_of_pytorch_is_the_gathered_one() -> None:
    rows = {row["version"]: row for row in gathered("pytorch_builds.yml")["builds"]}
    assert list(rows) == facts.build_versions("pytorch")
    for version, row in rows.items():
        own, *others = facts.variants("pytorch", version)
        for key in ("distribution", "python", "cuda_version", "cudnn_version", "cudnn_major",
                    "sass_archs", "ptx_archs", "cc_native", "cc_via_ptx_jit", "wheel", "source",
                    "min_compute_capability", "wheel_platform_tag", "glibc_symbols_max", "linkage",
                    "measured", "bundled_cuda_files", "numpy"):
            assert own.row.get(key) == known(row.get(key)), (version, key)
        assert own.cuda_pins == row["nvidia_pins"]
        assert own.driver_exact == known(row["min_driver"]["exact"])
        assert own.cuda_sources == (["pip"] if row["nvidia_pins"] else ["bundled"])
        linked = {*row["sonames_linked"]} - {"libcuda.so.1"}
        bundled = {name for name in row["bundled_cuda_files"] if "-" not in name} & linked
        assert (linked if row["nvidia_pins"] else bundled) <= {*own.sonames}, version
        assert [each.variant for each in others] == [
            each["local_version"] for each in row["other_variants"]]
        for build, variant in zip(others, row["other_variants"], strict=True):
            assert build.cuda == variant["cuda"]
            assert build.index == f"https://download.pytorch.org/whl/{variant['local_version']}"
            assert build.row["source"] == variant["source"]
            figure = variant["min_driver_minor_compat"].removesuffix(" (exact)")
            assert figure in {build.driver_minor, build.driver_exact}


@needs_gathered
def test_every_figure_of_jax_is_the_gathered_one() -> None:
    document = gathered("jax_builds.yml")
    plugins = {(row["package"], row["version"]): row for row in document["plugins"]}
    assert [row["version"] for row in document["jax"]] == facts.build_versions("jax")
    checked = 0
    for row in document["jax"]:
        own, *others = facts.variants("jax", row["version"])
        assert own.row["extras"] == row["extras"]
        assert own.row["cuda_from"] == row["cuda_from"]
        if own.unavailable:
            stored = any("Google storage" in each for each in row["cuda_from"])
            assert stored or "yanked" in own.unavailable
            continue
        for build in (own, *others):
            package, _, version = build.row["plugin"].partition("==")
            plugin = plugins[package, version]
            assert build.cuda == plugin["built_with"]["cuda"]
            assert build.cudnn == plugin["built_with"]["cudnn"]
            for key in ("sass_archs", "ptx_archs", "cc_native", "cc_via_ptx_jit", "wheel",
                        "min_compute_capability", "wheel_platform_tag", "built_with"):
                assert build.row[key] == plugin[key], (row["version"], key)
            assert {*build.pythons} <= {*plugin["python"]}
            assert build.driver_minor == plugin["min_driver"]["minor_compat"]
            assert build.driver_exact == plugin["min_driver"]["toolkit_exact"]
            if isinstance(plugin.get("preload"), list):
                # The loader of the plugin opens these; it lacks nvJitLink (`preload_lacks`).
                major = build.cuda.partition(".")[0]
                assert {*build.sonames} == {*plugin["preload"], f"libnvJitLink.so.{major}"}
            checked += 1
    assert checked == 41 + 17


@needs_gathered
def test_a_release_is_without_cuda_on_the_index_only_where_it_has_no_plugin() -> None:
    plugins = {row["version"] for row in gathered("jax_builds.yml")["plugins"]
               if row["package"] == "jax-cuda12-plugin" and row.get("pjrt") is None}
    for build in facts.builds("jax"):
        assert build.row["plugin"].partition("==")[2] in plugins
    # The plugin of 0.4.22 asks for a library that PyPI does not have.
    first = facts.build("jax", "0.4.22")
    assert first is not None
    assert first.unavailable


def test_libraries_come_after_those_that_they_need() -> None:
    for framework in FRAMEWORKS.keys() - {"tensorflow"}:
        for build in facts.builds(framework):  # type: ignore[arg-type]
            stems = [name.split(".")[0] for name in build.sonames]
            order = [each for each in import_frameworks.ORDER if each in stems]
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
        floating = [pin for pin in build.row.get("nvidia_pins_not_exact", [])
                    if pin.startswith("nvidia-nvjitlink<")]
        pinned = [each for each in build.requirements(build.cuda_sources[0])
                  if each.startswith("nvidia-nvjitlink==")]
        assert len(floating) == len(pinned), build.version
    assert "nvidia-nvjitlink==13.0.*" in facts.builds("pytorch")[-2].requirements("pip")


def test_jax_asks_for_the_cudnn_that_xla_asks_for() -> None:
    for build in facts.builds("jax"):
        own = next(each for each in build.requirements("pip") if "cudnn" in each)
        below = {8: "9", 9: "9.11"}[build.cudnn_major]  # no code for older GPUs from 9.11 on
        assert f">={versions.short(build.cudnn)},<{below}" in own
