"""Libraries written without a compiler: the dynamic linker takes them, and they answer."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpufleet.on_host import payload
from lab import elf, stubs
from lab.stubs import derive, library
from lab.stubs.library import Function
from tests.support.lab_artifacts import wheel

V8_CUDNN6 = {"cuda": 8000, "cudnn": 6021}
OLD = ["tensorflow_gpu-1.0.0", "tensorflow_gpu-1.4.0"]


def load(path: Path, functions: dict[str, Function]) -> ctypes.CDLL:
    library.write(path, "libstub.so.1", functions)
    return ctypes.CDLL(str(path))


def test_status_value_and_text(tmp_path: Path) -> None:
    stub = load(
        tmp_path / "stub.so",
        {
            "status": Function(status=38),
            "count": Function(status=7, writes=0, to=0),
            "version": Function(writes=8000, to=1),
            "named": Function(writes="no error"),
            "name": Function(status=3, writes="a name", to=1),
        },
    )
    number, text = ctypes.c_int(99), ctypes.c_char_p()
    assert stub.status() == 38
    assert (stub.count(ctypes.byref(number)), number.value) == (7, 0)
    assert (stub.version(None, ctypes.byref(number)), number.value) == (0, 8000)
    stub.named.restype = ctypes.c_char_p
    assert stub.named() == b"no error"
    assert (stub.name(1, ctypes.byref(text)), text.value) == (3, b"a name")


def test_one_that_pauses_gives_no_answer_until_it_is_killed(tmp_path: Path) -> None:
    load(tmp_path / "stub.so", {"pause": Function(pauses=True)})
    words = f"import ctypes; ctypes.CDLL({str(tmp_path / 'stub.so')!r}).pause()"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", words], timeout=1, check=False)


@pytest.mark.parametrize("to", [0, 1])
def test_a_text_may_be_copied(tmp_path: Path, to: int) -> None:
    stub = load(tmp_path / "stub.so", {"reported": Function(2, "a longer text", to, copied=True)})
    room = ctypes.create_string_buffer(b"x" * 32)
    assert stub.reported(*[room] * (to + 1)) == 2
    assert room.raw.startswith(b"a longer text\0xxx")


def test_the_compiler_compiles_as_matmul_asks_it_to(tmp_path: Path) -> None:
    numbers = {"cuda": 8000, "cuda_major": 8}
    stubs.place(tmp_path / "lib64", "libnvrtc.so.8.0", "8.0.61", OLD, numbers)
    script = tmp_path / "matmul.py"
    script.write_text(payload.workload(), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "--toolkit", str(tmp_path), "--expect-gpus", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1].partition(" ")[2])
    assert found["nvrtc"] == {
        "version": "8.0",
        "arch": "sm_20",
        "ptx": True,
        "ran": [],
        "error": None,
    }


def test_a_null_pointer_is_not_written_to(tmp_path: Path) -> None:
    stub = load(
        tmp_path / "stub.so",
        {"a": Function(5, 1, 0), "b": Function(6, 1, 1), "c": Function(7, "text", 1)},
    )
    assert [stub.a(None), stub.b(None, None), stub.c(None, None)] == [5, 6, 7]


def test_every_one_of_many_functions_is_found_and_no_other(tmp_path: Path) -> None:
    many = {f"function{n}": Function(status=n) for n in range(1000)}
    stub = load(tmp_path / "stub.so", many)
    assert [getattr(stub, name)() for name in many] == list(range(1000))
    assert not hasattr(stub, "function1000")
    assert elf.soname(tmp_path / "stub.so") == "libstub.so.1"


def test_a_library_without_functions_can_be_loaded(tmp_path: Path) -> None:
    assert load(tmp_path / "stub.so", {})._handle


def test_no_executable_stack_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "stub.so"
    library.write(path, "libstub.so.1", {"status": Function()})
    # A process whose stack was made executable says so in its maps.
    code = f"import ctypes; ctypes.CDLL({str(path)!r}); print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (stack,) = (line for line in maps.stdout.splitlines() if line.endswith("[stack]"))
    assert stack.split()[1] == "rw-p"


def test_a_second_library_needs_the_first_by_its_soname(tmp_path: Path) -> None:
    """A TensorFlow is bound so: a library is loaded by path, and found again by SONAME."""
    load(tmp_path / "any-name", {"status": Function(status=4)})
    code = (
        f"import ctypes; ctypes.CDLL({str(tmp_path / 'any-name')!r});"
        " print(ctypes.CDLL('libstub.so.1').status())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4\n", done.stderr


def test_functions_are_those_of_the_release_and_the_always_there(tmp_path: Path) -> None:
    found = stubs.functions("libcudnn", ["tensorflow_gpu-1.4.0"], V8_CUDNN6)
    assert found["cudnnGetVersion"] == Function(status=6021)
    assert found["cudnnConvolutionForward"] == Function(status=1)
    assert "cudnnConvolutionBiasActivationForward" in found
    assert "cudnnConvolutionBiasActivationForward" not in stubs.functions(
        "libcudnn", ["tensorflow_gpu-1.0.0"], V8_CUDNN6
    )
    assert all(name.startswith("cudnn") for name in found)


def test_every_name_belongs_to_one_library() -> None:
    known = yaml.safe_load((stubs.HERE / "functions.yml").read_text())
    asked = yaml.safe_load((stubs.HERE / "names.yml").read_text())
    for release in OLD:
        count = dict.fromkeys(asked[release]["names"].split(), 0)
        for stem in known:
            for name in stubs.functions(stem, [release], V8_CUDNN6).keys() & count.keys():
                count[name] += 1
        assert set(count.values()) == {1}


def test_the_runtime_says_that_there_is_no_device(tmp_path: Path) -> None:
    stubs.place(tmp_path, "libcudart.so.8.0", "8.0.61", OLD, V8_CUDNN6)
    assert (tmp_path / "libcudart.so").readlink() == Path("libcudart.so.8.0")
    assert (tmp_path / "libcudart.so.8.0").readlink() == Path("libcudart.so.8.0.61")
    cudart = ctypes.CDLL(os.fspath(tmp_path / "libcudart.so"))
    count, version = ctypes.c_int(9), ctypes.c_int()
    assert (cudart.cudaGetDeviceCount(ctypes.byref(count)), count.value) == (38, 0)
    assert (cudart.cudaRuntimeGetVersion(ctypes.byref(version)), version.value) == (0, 8000)
    cudart.cudaGetErrorString.restype = ctypes.c_char_p
    assert cudart.cudaGetErrorString(38) == b"no CUDA-capable device is detected"


@pytest.mark.parametrize(
    ("version", "factors", "number"),
    [("8.0", (1000, 10), 8000), ("5.1.10", (1000, 100, 1), 5110), ("11.8", (1000, 10), 11080)],
)
def test_version_numbers(version: str, factors: tuple[int, ...], number: int) -> None:
    assert stubs.number(version, *factors) == number


def test_names_are_read_from_a_wheel(tmp_path: Path) -> None:
    texts = b"\0cublasSgemm_v2\0cuBLAS\0xcudnnCreate\0cudnnCreate\0__cudaRegisterVar\0cuInit\0"
    path = wheel(
        tmp_path / "tensorflow_gpu-1.4.0-cp36-cp36m-manylinux1_x86_64.whl",
        {
            "t.data/purelib/tensorflow/libtensorflow_framework.so": texts,
            "t.data/purelib/tensorflow/contrib/other.so": b"\0cufftDestroy\0",
        },
    )
    made = yaml.safe_load(derive.document([path]))["tensorflow_gpu-1.4.0"]
    assert made["names"].split() == ["__cudaRegisterVar", "cuInit", "cublasSgemm_v2", "cudnnCreate"]
    assert made["wheel"] == path.name
    assert len(made["sha256"]) == 64
