"""The fact base: complete, well formed, and the same as what was gathered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.catalog import facts, import_facts, import_smi, versions
from tests.support.gathered_facts import GATHERED, needs_gathered

LENGTHS = {"sha256": 64, "md5": 32, "sha512": 128}


def rows(folder: str, key: str) -> list[dict[str, Any]]:
    parts = facts.document(f"{folder}/meta.yml")["parts"]
    return [row for part in parts for row in facts.document(f"{folder}/{part}.yml")[key]]


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar with the key it stands under; all within a `source` stands under that."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from walk(part, "source" if key == "source" else name)
    elif isinstance(value, list):
        for part in value:
            yield from walk(part, key)
    else:
        yield key, value


def data_files() -> list[Path]:
    return sorted(facts.DATA.rglob("*.yml"))


def test_everything_gathered_is_there() -> None:
    assert len(rows("toolkits", "toolkits")) == 73
    assert len(rows("cudnn", "archives")) == 346
    assert len(rows("tensorflow", "builds")) == 101
    assert len(rows("pytorch", "builds")) == 52
    assert len(rows("jax", "builds")) == 109
    assert len(facts.branches()) == 34


def test_every_checksum_has_its_length() -> None:
    found = dict.fromkeys(LENGTHS, 0)
    for path in data_files():
        for key, value in walk(facts.document(str(path.relative_to(facts.DATA)))):
            if key in LENGTHS and isinstance(value, str):
                assert re.fullmatch(f"[0-9a-f]{{{LENGTHS[key]}}}", value), (path, key, value)
                found[key] += 1
    assert found["sha256"] > 500
    assert found["md5"] > 100
    assert found["sha512"] > 150


def test_unknown_is_null_and_never_a_word() -> None:
    for path in data_files():
        for key, value in walk(facts.document(str(path.relative_to(facts.DATA)))):
            assert value != "unknown", (path, key)
            assert not str(value).startswith("unknown ("), (path, key)


@pytest.mark.parametrize(
    ("folder", "key"), [("toolkits", "toolkits"), ("cudnn", "archives"), ("tensorflow", "builds"),
                        ("pytorch", "builds"), ("jax", "builds")]
)
def test_rows_are_sorted_and_their_contents_page_agrees(folder: str, key: str) -> None:
    found = [row["version"] for row in rows(folder, key)]
    assert found == sorted(found, key=versions.key)
    assert list(dict.fromkeys(found)) == list(facts.listed(folder))


@pytest.mark.parametrize(("folder", "key"), [("toolkits", "toolkits"), ("cudnn", "archives")])
def test_every_source_key_is_explained(folder: str, key: str) -> None:
    explained = facts.document(f"{folder}/meta.yml")["meta"]["sources"]
    used = {str(each) for row in rows(folder, key) for name, each in walk(row) if name == "source"}
    keys = {each for each in used if " " not in each}  # the others explain themselves
    assert len(keys) > 5
    assert keys <= set(explained)


def test_figures_known_from_elsewhere() -> None:
    runfile = facts.toolkits_matching("11.8")[0].installer
    assert runfile is not None
    assert runfile["file"] == "cuda_11.8.0_520.61.05_linux.run"
    assert runfile["size_bytes"] == 4336730777
    assert runfile["md5"] == "d6cf26349e5a4104b8683e26b717fa22"
    assert runfile["sha256"].startswith("9223c4af3aebe4a7")
    build = facts.build("tensorflow", "2.13.1")
    assert build is not None
    assert (build.cuda, build.cudnn, build.pythons[-1]) == ("11.8", "8.6", "3.11")
    old = facts.build("tensorflow", "1.4.0")
    assert old is not None
    assert (old.distribution, old.cuda, old.cudnn_major) == ("tensorflow-gpu", "8.0", 6)


def test_curand_is_optional_from_2_14_on_and_the_data_says_why() -> None:
    for build in facts.builds("tensorflow"):
        optional = versions.key(build.version) >= versions.key("2.14.0")
        assert ("libcurand.so.10" in build.sonames_optional) is optional, build.version
        assert not set(build.sonames) & set(build.sonames_optional)
        if optional:
            assert "does not look" in build.row["sonames_optional_note"]
            assert "libcurand.so.10" not in build.sonames


def test_no_soname_belongs_to_the_driver() -> None:
    assert all("libcuda.so.1" not in build.sonames for build in facts.builds("tensorflow"))


def test_the_soname_rules_agree_with_what_the_builds_look_for() -> None:
    for build in facts.builds("tensorflow"):
        own = {name for name in build.sonames if not name.startswith("libcudnn.")}
        assert own
        assert own <= set(facts.toolkit_sonames(versions.short(build.cuda))), build.version


def test_every_toolkit_has_a_soname_rule() -> None:
    for version in facts.toolkit_versions():
        assert facts.toolkit_sonames(versions.short(version)), version


@needs_gathered
def test_the_importer_writes_exactly_what_is_committed(tmp_path: Path) -> None:
    assert import_facts.main([str(GATHERED), str(tmp_path)]) == 0
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.yml"))
    own = {
        Path(f"{name}.yml")
        for name in ("distributions/redhat", "distributions/ubuntu", "driver_offers", "fabric",
                     "gpus", "measured/jax", "measured/pytorch", "measured/tensorflow", "pci",
                     "performance", "rules", "smi_rules", "xids/judgement")
    }
    committed = {path.relative_to(facts.DATA) for path in data_files()} - own
    assert set(written) == committed
    for path in written:
        assert (tmp_path / path).read_bytes() == (facts.DATA / path).read_bytes(), path


def gathered(name: str, key: str) -> list[dict[str, Any]]:
    text = (GATHERED / name).read_text(encoding="utf-8")
    loaded: list[dict[str, Any]] = yaml.load(text, Loader=facts.LOADER)[key]
    return loaded


def known(value: Any) -> Any:
    """A gathered figure, with `unknown` as None."""
    return None if str(value).startswith("unknown") else value


@needs_gathered
def test_every_toolkit_figure_is_the_gathered_one() -> None:
    ours = {row["version"]: row for row in rows("toolkits", "toolkits")}
    for row in gathered("cuda_toolkits.yml", "toolkits"):
        own = ours.pop(row["version"])
        for platform in (name for name in row if name.startswith("linux_")):
            for key, value in row[platform].items():
                assert own["installers"][platform][key] == known(value), (row["version"], key)
        assert own["compute_capability"] == row["compute_capability"]
        assert own["host_gcc"]["max_major"] == row["host_gcc"]["max_major"]
        assert own["driver"]["bundled"] == row["driver"]["bundled_in_runfile"]
        minimum = known(row["driver"]["corresponding_min_linux"])
        assert own["driver"]["minimum"] == (minimum and minimum.removeprefix(">="))
        for key in ("glibc_min", "glibc_max"):
            assert own.get(key) == row.get(key)
        for patch, theirs in zip(own["patches"], row["patches"], strict=True):
            for key in ("patch", "file", "url", "sha256", "md5", "installer"):
                assert patch.get(key) == known(theirs.get(key)), (row["version"], key)
    assert not ours


@needs_gathered
def test_every_archive_figure_is_the_gathered_one() -> None:
    ours = {(row["url"], row["version"]): row for row in rows("cudnn", "archives")}
    for row in gathered("cudnn_archives.yml", "archives"):
        own = ours.pop((row["url"], row["version"]))
        assert own["file"] == row["archive"]
        for key in ("cuda", "platform", "sha256", "md5", "sha512", "size_bytes", "layout",
                    "soname", "soname_major", "login_required", "source", "pip_wheel"):
            assert own.get(key) == known(row.get(key)), (row["archive"], key)
    assert not ours


@needs_gathered
def test_every_build_figure_is_the_gathered_one() -> None:
    ours = {row["version"]: row for row in rows("tensorflow", "builds")}
    for row in gathered("tensorflow_builds.yml", "builds"):
        own = ours.pop(row["version"])
        for key in ("distribution", "python", "cuda_version", "cudnn_major", "measured",
                    "inferred_from", "linkage", "sass_archs", "ptx_archs", "cc_native",
                    "cc_via_ptx_jit", "min_compute_capability", "wheel", "source",
                    "ceilings_needed_today", "wheel_platform_tag"):
            assert own.get(key) == row.get(key), (row["version"], key)
        assert own.get("cuda_pins") == row.get("and_cuda_pins")
        both = {*own["sonames_required"], *own["sonames_optional"]}
        assert both == set(row["sonames_required"])
        exact = row["min_driver"]["exact_for_toolkit"].removeprefix(">=")
        assert own["min_driver"]["exact"] == exact
    assert not ours


@needs_gathered
def test_every_branch_figure_is_the_gathered_one() -> None:
    ours = dict(facts.branches())
    for row in gathered("driver_branches.yml", "branches"):
        own = ours.pop(row["branch"].removeprefix("R")).row
        for key, value in row.items():
            if key not in {"branch", "source", "note"}:
                assert own[key] == known(value), (row["branch"], key)
    assert not ours


@needs_gathered
def test_every_element_of_nvidia_smi_is_the_gathered_one() -> None:
    text = (GATHERED / "smi_fields.yml").read_text(encoding="utf-8")
    elements, seen = import_smi.table(yaml.load(text, Loader=facts.LOADER))
    assert facts.document("smi_fields.yml")["elements"] == import_facts.clean(elements)
    assert facts.document("smi_samples.yml") == import_facts.clean(seen)
    assert len(elements) == 145


def test_no_sample_lacks_what_is_demanded_of_its_card() -> None:
    seen = facts.document("smi_samples.yml")
    for row in facts.document("smi_fields.yml")["elements"]:
        path = row["path"]
        for sample in seen["samples"]:
            states = seen["elements"].get(path, {})
            there = any(sample["id"] in ids for ids in states.values())
            first, _, last = row["demanded"].get(sample["generation"], "").partition("-")
            inside = first and import_smi.driver(first) <= import_smi.driver(sample["driver"]) and (
                not last or import_smi.driver(sample["driver"]) <= import_smi.driver(last))
            around = any(sample["id"] in seen["elements"].get(path[:at], {}).get("N/A", ())
                         for at in range(len(path)) if path[at] == "/")
            assert there or around or not inside or sample.get("partial"), (path, sample["id"])
