"""The binding of a stack: which libraries it names, and what an import of the framework loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.frameworks import FRAMEWORKS
from gpufleet.on_host.host import Host
from gpufleet.on_host.venvs import bound_to
from tests.support.elf_file import shared_library
from tests.support.stack_bench import BINDING, SONAME, Bench

from ansible_collections.gpufleet.gpu.plugins.module_utils import stack_binding  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import (  # isort: skip
    libraries_in_order,
)

pytestmark = pytest.mark.costly


def test_the_binding_is_tried_at_once(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    assert bench.install(libraries=[SONAME], library_dir=bench.lib)["changed"]
    assert bench.receipt()["binding"] == [str(bench.lib / SONAME)]
    # By this a toolkit is spared that somebody's copy of the environment is bound to.
    assert bound_to(Host({}), str(bench.venv)) == str(bench.lib)
    listed = {Path(entry["path"]).name for entry in bench.receipt()["manifest"]}
    assert listed >= {"_gpufleet_binding.json", "_gpufleet_binding.pth", "_gpufleet_binding.py"}
    assert listed >= {"pyvenv.cfg", "python"}
    assert "native.so" not in listed  # pip's own record speaks for packages


def test_a_missing_library_stops_the_installation(bench: Bench) -> None:
    answer = bench.install(libraries=["libcublas.so.11"], library_dir=bench.lib)
    assert answer["failed"]
    assert f"libcublas.so.11 is missing in {bench.lib}" in answer["msg"]


def imported(bench: Bench, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the stack's environment, in which an empty module plays TensorFlow."""
    (bench.site() / "tensorflow.py").write_text("")
    return subprocess.run(
        [bench.venv / "bin" / "python", "-c", program, str(bench.lib / SONAME)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_library_that_does_not_load_stops_the_installation(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME, ("libnowhere.so.1",))
    answer = bench.install(libraries=[SONAME], library_dir=bench.lib)
    assert answer["failed"]
    assert "libnowhere.so.1: cannot open shared object file" in answer["msg"]


def test_the_binding_loads_by_path_when_tensorflow_is_first_imported(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    output = imported(
        bench,
        "import sys; mapped = lambda: sys.argv[1] in open('/proc/self/maps').read();"
        "before = mapped(); import tensorflow; print(before, mapped())",
    )
    assert (output.stdout.split(), output.stderr) == (["False", "True"], "")


def test_the_binding_wins_over_the_environment(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    other = shared_library(bench.root / "other" / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    output = imported(
        bench,
        f"import ctypes, sys, tensorflow; ctypes.CDLL('{SONAME}');"
        "maps = open('/proc/self/maps').read();"
        f"print(sys.argv[1] in maps, '{other}' in maps)",
        LD_LIBRARY_PATH=str(other.parent),
    )
    assert output.stdout.split() == ["True", "False"]


def test_the_binding_says_what_it_cannot_load_and_lets_the_import_go_on(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    (bench.lib / SONAME).unlink()
    output = imported(bench, "import tensorflow; print('imported')")
    assert output.stdout == "imported\n"
    assert f"gpufleet: cannot load {bench.lib}/{SONAME}" in output.stderr


def test_libraries_are_loaded_after_those_they_need(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "order"
    needed = ("libcublasLt.so.11", "libc.so.6")
    shared_library(folder / "libcublas.so.11", "libcublas.so.11", needed)
    shared_library(folder / "libcublasLt.so.11", "libcublasLt.so.11")
    shared_library(folder / "libcudnn.so.8", "libcudnn.so.8")
    shared_library(
        folder / "libcudnn_cnn_infer.so.8", "libcudnn_cnn_infer.so.8", ("libcudnn_ops_infer.so.8",)
    )
    shared_library(folder / "libcudnn_ops_infer.so.8", "libcudnn_ops_infer.so.8")
    # Opened by cuBLAS and cuDNN while they run, under a name that their own version does not tell.
    shared_library(folder / "libnvrtc.so.11.8.89", "libnvrtc.so.11.2")
    (folder / "libnvrtc.so.11.2").symlink_to("libnvrtc.so.11.8.89")
    shared_library(folder / "libnvrtc-builtins.so.11.8", "libnvrtc-builtins.so.11.8")
    paths = libraries_in_order([str(folder)], ["libcublas.so.11", "libcudnn.so.8"])
    assert [Path(path).name for path in paths] == [
        "libnvrtc-builtins.so.11.8",
        "libnvrtc.so.11.2",
        "libcublasLt.so.11",
        "libcublas.so.11",
        "libcudnn_ops_infer.so.8",
        "libcudnn_cnn_infer.so.8",
        "libcudnn.so.8",
    ]


def test_what_may_be_there_is_bound_if_it_is(bench: Bench) -> None:
    """A variant of PyTorch, of which it is not known what it has inside."""
    names = [SONAME, "libcublas.so.11"]
    bench.install(framework="pytorch", libraries_optional=names)
    assert bench.receipt()["binding"] == []
    assert not (bench.site() / "_gpufleet_binding.pth").exists()
    wheel = bench.site() / "nvidia" / "cuda_runtime" / "lib"
    shared_library(wheel / SONAME, SONAME)
    bench.write("2.14.0")
    bench.install(framework="pytorch", version="2.14.0", libraries_optional=names)
    assert bench.receipt()["binding"] == [str(wheel / SONAME)]
    assert (bench.site() / "_gpufleet_binding.pth").exists()


def test_a_stack_with_cuda_from_pip_is_bound_to_its_own_wheels(bench: Bench) -> None:
    bench.install()
    assert bench.receipt()["binding"] == []
    wheel = bench.site() / "nvidia" / "cuda_runtime" / "lib"
    shared_library(wheel / SONAME, SONAME)
    assert bench.install(libraries=[SONAME])["because"] == "bound to other libraries than declared"
    assert bench.receipt()["binding"] == [str(wheel / SONAME)]
    assert not bench.install(libraries=[SONAME])["changed"]
    away = bench.install(libraries=[SONAME], library_dir=bench.lib)
    assert f"{SONAME} is missing in {bench.lib}" in away["msg"]


@pytest.mark.parametrize(
    ("framework", "module"), [("pytorch", "torch"), ("jax", "jax"), ("jax", "jaxlib")]
)
def test_each_framework_s_own_module_binds_the_environment(
    bench: Bench, framework: str, module: str
) -> None:
    bench.install()
    library = bench.site() / "nvidia" / "cudnn" / "lib" / SONAME
    shared_library(library, SONAME)
    bench.install(framework=framework, libraries=[SONAME])
    (bench.site() / f"{module}.py").write_text("")
    output = imported(
        bench,
        f"import tensorflow; mapped = lambda: {str(library)!r} in open('/proc/self/maps').read();"
        f"before = mapped(); import {module}; print(before, mapped())",
    )
    assert (output.stdout.split(), output.stderr) == (["False", "True"], "")


def test_every_framework_has_modules_that_bind() -> None:
    assert set(stack_binding.MODULES) == set(FRAMEWORKS)
    for name, framework in FRAMEWORKS.items():
        assert framework.module in stack_binding.MODULES[name]


def test_another_stack_on_pythonpath_brings_neither_its_binding_nor_its_cuda(bench: Bench) -> None:
    """PyTorch from 2.10 on opens the libraries in the first `nvidia` on sys.path."""
    bench.install()
    wheel = shared_library(bench.site() / "nvidia" / "cudart" / "lib" / SONAME, SONAME)
    bench.install(framework="pytorch", libraries=[SONAME])
    other = bench.root / "other"
    shared_library(other / "nvidia" / "cudart" / "lib" / SONAME, SONAME)
    (other / "_gpufleet_binding.py").write_text("raise SystemExit('the other binding')")
    (other / "mine.py").write_text("")
    (bench.site() / "torch.py").write_text("")
    output = imported(
        bench,
        "import glob, sys, torch, mine;"
        "print(*[p for e in sys.path for p in glob.glob(e + '/nvidia/*/lib/*')])",
        PYTHONPATH=str(other),
    )
    assert output.stdout.split()[0] == str(wheel)
    assert str(other) in output.stdout.split()[1]


def test_jax_finds_its_programs_in_its_own_cuda(bench: Bench) -> None:
    bench.install()
    nvcc = bench.site() / "nvidia" / "cuda_nvcc"
    (nvcc / "bin").mkdir(parents=True)
    (nvcc / "bin" / "ptxas").write_text("")
    shared_library(bench.site() / "nvidia" / "cudart" / "lib" / SONAME, SONAME)
    shared_library(bench.lib / SONAME, SONAME)
    (bench.lib.parent / "bin").mkdir()
    (bench.lib.parent / "bin" / "ptxas").write_text("")
    (bench.site() / "jax.py").write_text("")
    for more, root in (({}, nvcc), ({"library_dir": bench.lib}, bench.lib.parent)):
        assert bench.install(framework="jax", libraries=[SONAME], **more)["changed"]
        output = imported(bench, "import jax, os; print(os.environ['CUDA_ROOT'])", CUDA_ROOT="/x")
        assert output.stdout.strip() == str(root)


def test_jax_on_a_toolkit_takes_from_its_packages_what_no_toolkit_has(bench: Bench) -> None:
    bench.install()
    shared_library(bench.lib / SONAME, SONAME)
    cupti = bench.lib.parent / "extras" / "CUPTI" / "lib64" / "libcupti.so.12"
    nccl = bench.site() / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    own = bench.site() / "nvidia" / "cudart" / "lib" / SONAME
    for path in (cupti, nccl, own):
        shared_library(path, path.name)
    wanted = {"framework": "jax", "library_dir": bench.lib, "libraries": [SONAME, "libnccl.so.2"],
              "libraries_optional": ["libcupti.so.12", "libnvJitLink.so.12"]}  # fmt: skip
    bench.install(**wanted)
    assert bench.receipt()["binding"] == [str(bench.lib / SONAME), str(nccl), str(cupti)]
    assert not bench.install(**wanted)["changed"]


def test_a_stack_that_is_installed_keeps_the_binding_of_its_release(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    shared_library(bench.lib / "libcurand.so.10", "libcurand.so.10")
    newer = {"binding": "import nothing", "libraries_optional": ["libcurand.so.10"]}
    assert not bench.install(libraries=[SONAME], library_dir=bench.lib, **newer)["changed"]


def test_pytorch_s_own_directory_is_searched(bench: Bench) -> None:
    """1.12 has cuBLAS under a plain name, and finds it after LD_LIBRARY_PATH."""
    bench.install()
    library = bench.site() / "torch" / "lib" / "libcublas.so.10"
    shared_library(library, library.name)
    bench.install(framework="pytorch", libraries=[library.name])
    assert bench.receipt()["binding"] == [str(library)]


def test_the_binding_steps_aside_and_the_finders_after_it_are_all_asked(tmp_path: Path) -> None:
    (tmp_path / "_gpufleet_binding.py").write_text(BINDING.read_text())
    (tmp_path / "_gpufleet_binding.json").write_text('{"libraries": []}')
    program = """
import shutil
import sys
class Next:
    asked = []
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        cls.asked.append(name)
sys.meta_path.insert(0, Next)
import _gpufleet_binding
_gpufleet_binding.watch("tensorflow")
for _ in range(2):
    try:
        import tensorflow
    except ImportError:
        pass
    binders = [each for each in sys.meta_path if isinstance(each, _gpufleet_binding._Binder)]
    print(Next.asked.count("tensorflow"), binders)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines() == ["1 []", "2 []"]


@pytest.mark.parametrize(
    ("needed", "symbol", "status"),
    [
        ("libcuda.so.1", "nothing", 0),
        ("libnowhere.so.1", "nothing", 1),
        (None, "cuTensorMapEncodeIm2col", 0),
        (None, "cublasCreate_v2", 1),
    ],
)
def test_a_library_that_lacks_but_the_driver_is_no_failure_of_the_binding(
    tmp_path: Path, needed: str | None, symbol: str, status: int
) -> None:
    """cuDNN 9.28's engines need a driver of CUDA 12, and a host may have no GPU."""
    (tmp_path / "_gpufleet_binding.py").write_text(BINDING.read_text())
    source, stub = tmp_path / "engines.c", tmp_path / "stub.so"
    source.write_text(f"int {symbol}(void); int (*used)(void) = {symbol};")
    library = tmp_path / "libengines.so.9"
    empty = tmp_path / "empty.c"
    empty.write_text(f"int {symbol}(void) {{ return 0; }}")
    shared = ["gcc", "-shared", "-fPIC"]
    subprocess.run([*shared, empty, "-o", stub, f"-Wl,-soname,{needed}"], check=True)
    subprocess.run([*shared, source, "-o", library, *([stub] if needed else [])], check=True)
    (tmp_path / "_gpufleet_binding.json").write_text(json.dumps({"libraries": [str(library)]}))
    done = subprocess.run([sys.executable, "-m", "_gpufleet_binding"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == status, done.stderr
    assert ((needed or symbol) in done.stderr) is bool(status)
