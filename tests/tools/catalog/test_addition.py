"""`gpufleet catalog add`: what is published becomes rows, and nothing is overwritten."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.cli.main import main
from gpufleet.frameworks import FRAMEWORKS
from tests.support import published
from tests.support.wheel_index import (
    BUILD_INFO,
    CONFIG,
    HANDLES,
    Index,
    device_code,
    library,
    modern,
    wheel_file,
)
from tools.catalog import addition, other_wheels, validation
from tools.catalog.errors import ContradictionError, MeasureError
from tools.catalog.tables import DRIVERS, Data, Row

TODAY = "2026-11-24"
TAG = "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """A copy of the catalog's data."""
    return Data(published.copy_of_data(tmp_path))


def saved(folder: Path, name: str, manifest: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return str(path)


def row_of(data: Data, folder: str, version: str) -> Row:
    return next(row for row in data.rows(folder) if row["version"] == version)


# -- CUDA ------------------------------------------------------------------------------------------


def test_a_new_toolkit_has_its_source_and_null_for_unpublished_figures(
    tmp_path: Path, data: Data
) -> None:
    source = saved(tmp_path, "redistrib_13.99.0.json", published.cuda("13.99.0"))
    done = addition.add(data, source, TODAY)
    assert any("to be confirmed: host_gcc, compute_capability" in line for line in done)
    row = row_of(data, "toolkits", "13.99.0")
    assert set(row["installers"]) == {"linux_x86_64", "linux_sbsa"}
    installer = row["installers"]["linux_x86_64"]
    assert installer["file"] == "cuda_13.99.0_linux.run"
    assert (installer["sha256"], installer["size_bytes"]) == (None, None)
    assert (row["driver"]["bundled"], row["driver"]["minimum"]) == (None, None)
    assert "not in the manifest" in row["host_gcc"]["note"]
    assert data.meta("toolkits")["sources"]["redistrib_13.99.0"] == (
        "redistrib_13.99.0.json, NVIDIA's manifest of 2026-11-20, read on 2026-11-24"
    )
    assert validation.row_faults(data) == []


def test_a_toolkit_with_a_driver_has_it_in_the_name_of_its_runfile(
    tmp_path: Path, data: Data
) -> None:
    manifest = published.cuda("12.9.9", driver="575.99.01")
    addition.add(data, saved(tmp_path, "redistrib_12.9.9.json", manifest), TODAY)
    row = row_of(data, "toolkits", "12.9.9")
    assert row["installers"]["linux_x86_64"]["file"] == "cuda_12.9.9_575.99.01_linux.run"
    assert row["driver"]["bundled"] == "575.99.01"


def test_the_first_release_of_a_major_version_is_refused(tmp_path: Path, data: Data) -> None:
    source = saved(tmp_path, "redistrib_14.0.0.json", published.cuda("14.0.0"))
    with pytest.raises(ContradictionError, match="No older release of CUDA 14"):
        addition.add(data, source, TODAY)


def test_a_toolkit_with_another_driver_than_in_the_catalog_is_refused(
    tmp_path: Path, data: Data
) -> None:
    manifest = published.cuda("13.0.0", driver="580.65.99")
    source = saved(tmp_path, "redistrib_13.0.0.json", manifest)
    with pytest.raises(ContradictionError, match=r"bundled is 580\.65\.06 in the catalog"):
        addition.add(data, source, TODAY)


def test_a_known_toolkit_adds_nothing(tmp_path: Path, data: Data) -> None:
    manifest = published.cuda("13.0.0", driver="580.65.06")
    assert addition.add(data, saved(tmp_path, "redistrib_13.0.0.json", manifest), TODAY) == []
    assert data.difference() == ""


def test_md5_sums_are_added_and_another_sum_is_refused(tmp_path: Path, data: Data) -> None:
    addition.add(data, saved(tmp_path, "redistrib_13.99.0.json", published.cuda("13.99.0")), TODAY)
    listed = tmp_path / "md5sum.txt"
    md5 = published.digest("runfile", "md5")
    listed.write_text(f"{md5}  cuda_13.99.0_linux.run\n{md5}  cuda_13.99.0_windows.exe\n")
    assert addition.add(data, str(listed), TODAY) == ["CUDA 13.99.0, linux_x86_64: md5"]
    installer = row_of(data, "toolkits", "13.99.0")["installers"]["linux_x86_64"]
    assert (installer["md5"], installer["source"]["md5"]) == (md5, ["md5sum_13.99.0"])
    assert validation.row_faults(data) == []
    listed.write_text(f"{'0' * 32}  cuda_13.99.0_linux.run\n")
    with pytest.raises(ContradictionError, match="md5 is"):
        addition.add(data, str(listed), TODAY)


# -- cuDNN and the driver --------------------------------------------------------------------------


def test_missing_checksums_of_a_known_archive_are_filled_in(tmp_path: Path, data: Data) -> None:
    for row in data.rows("cudnn"):
        if row["version"] == "9.27.0.42":
            row |= {"sha256": None, "md5": None, "size_bytes": None}
    source = saved(tmp_path, "redistrib_9.27.0.json", published.cudnn("9.27.0.42"))
    done = addition.add(data, source, TODAY)
    assert len(done) == 4
    rows = [row for row in data.rows("cudnn") if row["version"] == "9.27.0.42"]
    assert len(rows) == 4
    assert all(row["sha256"] == published.digest(_path(row)) for row in rows)
    assert all(row["source"]["sha256"] == ["redistrib_9.27.0"] for row in rows)


def test_an_older_manifest_has_one_file_of_one_cuda(tmp_path: Path, data: Data) -> None:
    manifest = published.cudnn("8.99.0.1", ("11",))
    component = manifest["cudnn"]
    component |= {label: component[label]["cuda11"] for label in (published.X86, published.ARM)}
    source = saved(tmp_path, "redistrib_8.99.0.json", manifest)
    assert len(addition.add(data, source, TODAY, "a copy")) == 2
    assert row_of(data, "cudnn", "8.99.0.1")["cuda"] == "11"
    text = data.meta("cudnn")["sources"]["redistrib_8.99.0"]
    assert text.endswith("NVIDIA's manifest of 2026-11-06 (a copy), read on 2026-11-24")


def _path(row: Row) -> str:
    return str(row["url"].partition("/redist/")[2])


def test_a_new_archive_is_added_for_each_platform_and_cuda(tmp_path: Path, data: Data) -> None:
    source = saved(tmp_path, "redistrib_9.99.0.json", published.cudnn("9.99.0.1"))
    assert len(addition.add(data, source, TODAY)) == 4
    assert validation.row_faults(data) == []
    row = row_of(data, "cudnn", "9.99.0.1")
    assert row["layout"]["lib_dir"] == "cudnn-linux-x86_64-9.99.0.1_cuda12-archive/lib"
    assert row["url"].endswith("/cudnn/redist/" + _path(row))
    assert row["size_bytes"] > 1000


def test_another_checksum_of_an_archive_is_refused(tmp_path: Path, data: Data) -> None:
    source = saved(tmp_path, "redistrib_9.27.0.json", published.cudnn("9.27.0.42"))
    with pytest.raises(ContradictionError, match=r"sha256 is .* in the catalog") as refused:
        addition.add(data, source, TODAY)
    assert "cuDNN 9.27.0.42 for CUDA 12, linux_x86_64" in str(refused.value)


def test_a_driver_is_the_newest_of_its_branch_or_a_new_branch(tmp_path: Path, data: Data) -> None:
    def newest(number: str) -> Any:
        rows = data.document(DRIVERS)["branches"]
        return next((row["latest_linux"] for row in rows if row["branch"] == number), None)

    before = newest("580")
    for version in ("580.999.01", "580.1.1", "699.10.01"):
        source = saved(tmp_path, f"redistrib_{version}.json", published.driver(version))
        addition.add(data, source, TODAY)
    assert before != "580.999.01"
    assert (newest("580"), newest("699")) == ("580.999.01", "699.10.01")
    row = data.document(DRIVERS)["branches"][-1]
    assert (row["eol"], row["type"], row["cuda_max_native"]) == (None, None, None)
    assert validation.row_faults(data) == []


# -- what is no source -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("redistrib_1.2.3.json", "{", "no JSON"),
        ("redistrib_1.2.3.json", "[]", "no redistribution manifest"),
        ("redistrib_1.2.3.json", "{}", "no components with a version"),
        ("redistrib_1.2.3.json", '{"libcutensor": {"version": "2"}}', "neither CUDA, cuDNN"),
        ("redistrib.json", '{"cuda_cudart": {"version": "2"}}', "no release_label"),
        ("md5sum.txt", "<html>", "no list of md5 sums"),
        ("md5sum.txt", f"{'0' * 32}  cuda_99.0.0_linux.run", "No file of it is one of the catalog"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, data: Data, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ContradictionError, match=message):
        addition.add(data, str(path), TODAY)


def test_a_missing_file_is_refused(tmp_path: Path, data: Data) -> None:
    with pytest.raises(ContradictionError, match="cannot be read: No such file"):
        addition.add(data, str(tmp_path / "redistrib_1.json"), TODAY)


# -- releases on the index -------------------------------------------------------------------------


def tensorflow(folder: Path, version: str, config: str = CONFIG) -> tuple[str, bytes]:
    """A wheel of a release that is newer than the catalog's of its series."""
    name = f"tensorflow-{version}-{TAG}.whl"
    members = {
        "tensorflow/libtensorflow_framework.so.2": library(folder, (), HANDLES),
        "tensorflow/include/third_party/gpus/cuda/cuda_config.h": config,
        "tensorflow/python/platform/build_info.py": BUILD_INFO,
        f"tensorflow-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: tensorflow\n"
        "Requires-Dist: numpy >=1.22\n",
    }
    return name, wheel_file(folder / name, members).read_bytes()


@pytest.fixture
def served(index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The index on this machine is the one that is asked."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
    return index


def test_a_new_release_is_added_from_its_wheel(tmp_path: Path, data: Data, served: Index) -> None:
    name, content = tensorflow(tmp_path, "2.13.9")
    served.files[name] = content
    done = addition.add(data, "tensorflow==2.13.9", TODAY)
    assert done[0].startswith("TensorFlow 2.13.9: new; as 2.13.1: distribution, linkage")
    row, before = row_of(data, "tensorflow", "2.13.9"), row_of(data, "tensorflow", "2.13.1")
    assert (row["cuda_version"], row["cudnn_major"], row["python"]) == ("11.8", 8, ["3.11"])
    assert row["requirements"] == {"toolkit": ["tensorflow==2.13.9"]}
    assert row["sonames_required"] == before["sonames_required"]
    assert (row["sass_archs"], row["ptx_archs"]) == (["3.5", "8.0"], ["8.0"])
    assert "3.7" in row["cc_native"]
    assert "9.0" in row["cc_via_ptx_jit"]
    assert row["min_driver"]["minor_compat"] == before["min_driver"]["minor_compat"]
    assert row["wheel"]["size_bytes"] == len(content)
    assert row["declared_requirements"] == ["numpy>=1.22"]
    assert row["source"] == [f"wheel {name} on the package index, read on {TODAY}"]
    assert validation.row_faults(data) == []


def test_a_release_for_a_new_major_version_of_cuda_is_refused(
    tmp_path: Path, data: Data, served: Index
) -> None:
    config = CONFIG.replace("11.8", "12.5")
    name, content = tensorflow(tmp_path, "2.13.9", config)
    served.files[name] = content
    with pytest.raises(ContradictionError, match="It is the first for CUDA 12"):
        addition.add(data, "tensorflow==2.13.9", TODAY)


def test_a_known_release_whose_wheel_differs_is_refused(
    tmp_path: Path, data: Data, served: Index
) -> None:
    name = f"tensorflow-2.13.1-{TAG}.whl"
    served.files[name] = modern(tmp_path / name).read_bytes()
    with pytest.raises(ContradictionError, match=r"the plan says .*, the wheel does not"):
        addition.add(data, name, TODAY)


def test_a_release_that_is_not_on_the_index_is_reported(
    tmp_path: Path, data: Data, served: Index
) -> None:
    name, content = tensorflow(tmp_path, "2.13.9")
    served.files[name] = content
    with pytest.raises(MeasureError, match=r"tensorflow 2\.13\.8 is not on the index"):
        addition.add(data, "tensorflow==2.13.8", TODAY)


def plugin(folder: Path, cuda: str, version: str, arch: str = "x86_64") -> dict[str, bytes]:
    """A plugin of JAX for a major version of CUDA, and its wheel with XLA."""
    name = f"jax_cuda{cuda}_plugin"
    members: dict[str, bytes | str] = {
        f"{name}/_linalg.so": library(folder) + device_code((2, 80), (2, 90), (1, 90)),
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
        f"Requires-Dist: nvidia-cudnn-cu{cuda}<10.0,>=9.8; extra == 'with-cuda'\n",
    }
    wheel = f"{name}-{version}-cp312-cp312-manylinux_2_27_{arch}.whl"
    xla = f"jax_cuda{cuda}_pjrt-{version}-py3-none-manylinux_2_27_{arch}.whl"
    return {
        wheel: wheel_file(folder / wheel, members).read_bytes(),
        xla: wheel_file(
            folder / xla, {f"{name}-{version}.dist-info/METADATA": "Name: x\n"}
        ).read_bytes(),
    }


def test_a_release_of_jax_has_a_row_for_each_plugin(
    tmp_path: Path, data: Data, served: Index
) -> None:
    served.files |= plugin(tmp_path, "12", "0.12.9") | plugin(tmp_path, "13", "0.12.9")
    addition.add(data, "jax==0.12.9", TODAY)
    row = row_of(data, "jax", "0.12.9")
    assert (row["plugin"], row["python"]) == ("jax-cuda12-plugin==0.12.9", ["3.12"])
    assert row["requirements"]["pip"][0] == "jax[cuda12]==0.12.9"
    assert (row["sass_archs"], row["ptx_archs"]) == (["8.0", "9.0"], ["9.0"])
    assert {"cuda_version", "cudnn_version"} <= set(row["taken_over"])
    assert set(row["wheel"]) == {"plugin", "pjrt"}
    (variant,) = row["variants"]
    assert variant["plugin"] == "jax-cuda13-plugin==0.12.9"
    assert variant["requirements"]["pip"][0] == "jax[cuda13]==0.12.9"
    assert validation.row_faults(data) == []


# -- other machines --------------------------------------------------------------------------------


def torch(
    folder: Path, version: str, arch: str, cuda: str | None = "13.2", archs: str = "sm_80 sm_90"
) -> dict[str, bytes]:
    """A wheel of PyTorch for a machine."""
    name = f"torch-{version}-cp312-cp312-manylinux_2_28_{arch}.whl"
    members: dict[str, bytes | str] = {
        "torch/version.py": f"cuda = {cuda!r}\n",
        "torch/lib/libtorch_python.so": library(folder) + f"\0{archs}\0".encode(),
        f"torch-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\n"
        'Requires-Dist: nvidia-cudnn-cu13==9.26.0.51; platform_system == "Linux"\n'
        "Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_machine == 'x86_64'\n",
    }
    return {name: wheel_file(folder / name, members).read_bytes()}


def test_the_wheels_of_other_machines_are_a_part_of_the_row(
    tmp_path: Path, data: Data, served: Index
) -> None:
    served.files |= torch(tmp_path, "2.15.9", "x86_64")
    served.files |= torch(tmp_path, "2.15.9", "aarch64", archs="sm_90 sm_100 compute_100")
    done = addition.add(data, "torch==2.15.9", TODAY)
    assert "PyTorch 2.15.9 for aarch64: Python 3.12; machine code for 9.0, 10.0" in done
    row = row_of(data, "pytorch", "2.15.9")
    part = row["aarch64"]
    assert (part["on_pypi"], part["gpu"], part["measured"]) == (True, True, True)
    assert (part["sass_archs"], part["ptx_archs"]) == (["9.0", "10.0"], ["10.0"])
    assert (row["sass_archs"], row["ptx_archs"]) == (["8.0", "9.0"], [])
    assert part["min_compute_capability"] == "9.0"
    assert "8.0" not in part["cc_native"]
    assert "12.0" in part["cc_via_ptx_jit"]
    # A requirement of the other machine alone is no pin here.
    assert row["cuda_pins"] == ["nvidia-cudnn-cu13==9.26.0.51", "nvidia-nccl-cu13==2.30.7"]
    assert part["same_pins_as_x86_64"] is False
    assert part["wheel_platform_tag"] == ["manylinux_2_28_aarch64"]
    [file] = [name for name in served.files if "aarch64" in name]
    assert part["wheel"]["file"] == file
    assert part["source"] == [f"wheel {file} on the package index, read on {TODAY}"]
    assert validation.row_faults(data) == []


def test_each_plugin_of_jax_has_its_part(tmp_path: Path, data: Data, served: Index) -> None:
    for cuda in ("12", "13"):
        served.files |= plugin(tmp_path, cuda, "0.12.9")
    served.files |= plugin(tmp_path, "12", "0.12.9", "aarch64")
    done = addition.add(data, "jax==0.12.9", TODAY)
    row = row_of(data, "jax", "0.12.9")
    assert (row["aarch64"]["plugin_on_pypi"], row["aarch64"]["gpu"]) == (True, True)
    assert row["aarch64"]["same_pins_as_x86_64"] is True
    assert row["aarch64"]["wheel"]["plugin"]["file"].startswith("jax_cuda12_plugin-0.12.9-")
    [variant] = row["variants"]
    assert variant["aarch64"]["gpu"] is variant["aarch64"]["plugin_on_pypi"] is False
    assert f"JAX 0.12.9 {variant['name']} for aarch64: no wheel was published" in done
    assert validation.row_faults(data) == []


def test_a_wheel_without_cuda_is_recorded_as_one(tmp_path: Path, data: Data, served: Index) -> None:
    served.files |= torch(tmp_path, "2.15.9", "x86_64")
    served.files |= torch(tmp_path, "2.15.9", "aarch64", cuda=None)
    assert "PyTorch 2.15.9 for aarch64: its wheel has no CUDA" in addition.add(
        data, "torch==2.15.9", TODAY
    )
    part = row_of(data, "pytorch", "2.15.9")["aarch64"]
    assert (part["on_pypi"], part["gpu"]) == (True, False)


def test_a_wheel_with_another_cuda_needs_a_person(
    tmp_path: Path, data: Data, served: Index
) -> None:
    """A part of a row has no CUDA of its own: a stack would be bound to the wrong one."""
    served.files |= torch(tmp_path, "2.15.9", "x86_64")
    served.files |= torch(tmp_path, "2.15.9", "aarch64", cuda="13.0")
    done = addition.add(data, "torch==2.15.9", TODAY)
    assert any("was built with CUDA 13.0, that for x86_64 with 13.2" in line for line in done)
    assert "aarch64" not in row_of(data, "pytorch", "2.15.9")


def test_what_was_published_later_for_another_machine_is_filled_in(
    tmp_path: Path, data: Data, served: Index
) -> None:
    served.files |= torch(tmp_path, "2.15.0", "aarch64")
    row = row_of(data, "pytorch", "2.15.0")
    del row["aarch64"]
    found = other_wheels.part(
        FRAMEWORKS["pytorch"], row, "aarch64", known=["9.0"], address=served.address, today=TODAY
    )
    assert (found["gpu"], found["cc_native"]) == (True, ["9.0"])
    assert other_wheels.missing(FRAMEWORKS["pytorch"], row) == ["aarch64"]


def test_tensorflow_has_no_gpu_wheel_elsewhere(tmp_path: Path, data: Data, served: Index) -> None:
    name, content = tensorflow(tmp_path, "2.13.9")
    served.files |= {name: content, name.replace("x86_64", "aarch64"): content}
    assert not any("aarch64" in line for line in addition.add(data, "tensorflow==2.13.9", TODAY))
    assert "aarch64" not in row_of(data, "tensorflow", "2.13.9")
    assert not [path for path, _ in served.asked if "aarch64" in path]


def test_another_package_is_refused(data: Data, served: Index) -> None:
    with pytest.raises(
        ContradictionError, match="numpy is no package of a framework of the catalog"
    ):
        addition.add(data, "numpy==2.0.0", TODAY)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.costly
def test_add_prints_the_difference_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = published.copy_of_data(tmp_path)
    monkeypatch.setattr(facts, "DATA", copied)
    source = saved(tmp_path, "redistrib_9.99.0.json", published.cudnn("9.99.0.1"))
    before = (copied / "cudnn" / "9.yml").read_text()
    assert main(["catalog", "add", source, "--dry-run"]) == 0
    assert "+  - version: 9.99.0.1" in capsys.readouterr().out
    assert (copied / "cudnn" / "9.yml").read_text() == before
    assert main(["catalog", "add", source]) == 0
    assert "version: 9.99.0.1" in (copied / "cudnn" / "9.yml").read_text()
    assert validation.faults(Data(copied)) == []
    capsys.readouterr()
    assert main(["catalog", "add", source]) == 0
    assert capsys.readouterr().out == "The catalog has all of it: nothing is added.\n"


def test_a_refused_source_writes_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = published.copy_of_data(tmp_path)
    monkeypatch.setattr(facts, "DATA", copied)
    good = saved(tmp_path, "redistrib_9.99.0.json", published.cudnn("9.99.0.1"))
    wrong = saved(tmp_path, "redistrib_9.27.0.json", published.cudnn("9.27.0.42"))
    before = copy.copy((copied / "cudnn" / "9.yml").read_text())
    assert main(["catalog", "add", good, wrong]) == 1
    assert "refused: cuDNN 9.27.0.42" in capsys.readouterr().err
    assert (copied / "cudnn" / "9.yml").read_text() == before
