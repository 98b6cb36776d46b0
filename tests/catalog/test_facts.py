"""The catalog's data: complete and well formed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import facts, versions

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


def test_no_table_lost_rows() -> None:
    assert len(rows("toolkits", "toolkits")) >= 73
    assert len(rows("cudnn", "archives")) >= 348
    assert len(rows("tensorflow", "builds")) >= 101
    assert len(rows("pytorch", "builds")) >= 52
    assert len(rows("jax", "builds")) >= 109
    assert len(facts.branches()) >= 34


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
    ("folder", "key"),
    [
        ("toolkits", "toolkits"),
        ("cudnn", "archives"),
        ("tensorflow", "builds"),
        ("pytorch", "builds"),
        ("jax", "builds"),
    ],
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


def test_the_soname_rules_agree_with_what_the_builds_search() -> None:
    for build in facts.builds("tensorflow"):
        own = {name for name in build.sonames if not name.startswith("libcudnn.")}
        assert own
        assert own <= set(facts.toolkit_sonames(versions.short(build.cuda))), build.version


def test_every_toolkit_has_a_soname_rule() -> None:
    for version in facts.toolkit_versions():
        assert facts.toolkit_sonames(versions.short(version)), version


def test_no_sample_lacks_what_is_demanded_of_its_card() -> None:
    seen = facts.document("smi_samples.yml")
    for row in facts.document("smi_fields.yml")["elements"]:
        path = row["path"]
        for sample in seen["samples"]:
            states = seen["elements"].get(path, {})
            there = any(sample["id"] in ids for ids in states.values())
            first, _, last = row["demanded"].get(sample["generation"], "").partition("-")
            inside = (
                first
                and versions.key(first) <= versions.key(sample["driver"])
                and (not last or versions.key(sample["driver"]) <= versions.key(last))
            )
            around = any(
                sample["id"] in seen["elements"].get(path[:at], {}).get("N/A", ())
                for at in range(len(path))
                if path[at] == "/"
            )
            assert there or around or not inside or sample.get("partial"), (path, sample["id"])
