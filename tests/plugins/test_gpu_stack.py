"""A stack's module and the binding: exact packages, the toolkit's own libraries, receipts."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpufleet.model.frameworks import FRAMEWORKS
from gpufleet.probe.host import Host
from gpufleet.probe.venvs import bound_to
from gpufleet.resolver import resolve
from tests.support.ansible_modules import Run, load, sha256
from tests.support.elf_file import shared_library

from ansible_collections.gpufleet.gpu.plugins.module_utils import (  # isort: skip
    stack_binding,
    stack_contents,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import (  # isort: skip
    libraries_in_order,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (  # isort: skip
    Installation,
    StateError,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (  # isort: skip
    Recreation,
)

ROOT = Path(__file__).resolve().parents[2]
BINDING = ROOT / "roles" / "tensorflow_gpu" / "files" / "_gpufleet_binding.py"

SONAME = "libcudart.so.11.0"

# uv, reduced to what the module asks of it: an environment, and "installed" packages.
UV = """#!/bin/sh
echo "$@" >>{calls}
{fails}
for word; do last=$word; done
case $1 in
venv) {python} -m venv --without-pip "$last" ;;
pip) site=$(echo {venv}/lib/python3*/site-packages)
  if [ "$2" = uninstall ]; then rm -r "$site/$last"-* "$site/native.so"; exit; fi
  printf whole >"$site/native.so"
  grep '==' "$last" | sed 's/==/ /; s/ *\\\\$//' | while read -r name version; do
    rm -rf "$site/$name"-*
    mkdir -p "$site/$name-$version.dist-info"
    printf 'Name: %s\\nVersion: %s\\n' "$name" "$version" \\
      >"$site/$name-$version.dist-info/METADATA"
    echo "native.so,sha256=x,5" >"$site/$name-$version.dist-info/RECORD"
  done ;;
esac
"""

# What stands for the environment's own interpreter: it notes what `-m pip` is called with, and
# installs packages that are nothing but their metadata.
PIP = """#!/bin/sh
if [ "$2" != pip ]; then exec {python} "$@"; fi
for last; do :; done
echo "$@" >>{calls}; cat "$last" >>{calls}; echo -- >>{calls}
site=$(echo {venv}/lib/python3*/site-packages)
grep -o '^[a-z]*==[0-9.]*' "$last" | while IFS== read -r name _ version; do
  info="$site/$name-$version.dist-info"
  mkdir -p "$info"
  printf 'Name: %s\\nVersion: %s\\n\\n' "$name" "$version" >"$info/METADATA"
done
"""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Bench:
    """A stack's place, its lock, a toolkit's libraries, and a stand-in for uv."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root, module, run
        self.venv, self.state, self.calls = root / "stack", root / "state", root / "calls"
        self.lock, self.uv = root / "stack.lock", root / "uv"
        self.lib = root / "cuda" / "lib64"
        self.lib.mkdir(parents=True)
        self.write()

    def write(self, version: str = "2.13.1", fails: str = "") -> None:
        """Write lock and uv."""
        self.lock.write_text(f"tensorflow=={version} \\\n    --hash=sha256:00\nnumpy==1.24.3\n")
        self.uv.write_text(
            UV.format(calls=self.calls, fails=fails, python=sys.executable, venv=self.venv)
        )
        self.uv.chmod(0o755)

    def install(self, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        arguments = {
            "name": "tensorflow-2.13.1",
            "distribution": "tensorflow",
            "version": "2.13.1",
            "venv": self.venv,
            "python": VERSION,
            "interpreter": sys.executable,
            "uv": self.uv,
            "lock": self.lock,
            "lock_sha256": sha256(self.lock).partition(":")[2],
            "binding": BINDING.read_text(),
            "activation": self.root / "variables.sh",
            "cache": self.root / "cache",
            "state_dir": self.state,
        }
        return self.run(self.module, check, **{**arguments, **more})

    def receipt(self) -> dict[str, Any]:
        """The stack's receipt."""
        document: dict[str, Any] = json.loads(
            (self.state / "receipts" / "stack-tensorflow-2.13.1.json").read_text()
        )
        return document

    def site(self) -> Path:
        """The environment's packages."""
        return next(self.venv.glob("lib/python3*/site-packages"))


@pytest.fixture
def bench(tmp_path: Path, run: Run) -> Bench:
    return Bench(tmp_path, load("gpu_stack"), run)


def test_installs_what_the_lock_lists_and_says_so_in_the_receipt(bench: Bench) -> None:
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "absent")
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1", "numpy": "1.24.3"}
    assert bench.receipt()["lock_sha256"] == sha256(bench.lock).partition(":")[2]
    # Its files are links to the cache, and the next stack may have some of them too.
    assert (bench.root / "cache").exists()


def test_downloads_that_take_space_of_their_own_are_removed(bench: Bench, tmp_path: Path) -> None:
    other = Path("/dev/shm") / tmp_path.name
    try:
        assert bench.install(cache=other)["changed"]
        assert not other.exists()
    finally:
        shutil.rmtree(other, ignore_errors=True)


SESSION = """
old=$(env | sort)
. {venv}/bin/activate
echo "$TF_CPP_MIN_LOG_LEVEL $TF_FORCE_GPU_ALLOW_GROWTH $(command -v python)"
. {venv}/bin/activate
deactivate
test "$old" = "$(env | sort)" || {{ echo "$old" >&2; env | sort >&2; exit 1; }}
set | grep -i gpufleet | grep -v "^old=" || echo "nothing is left"
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("before", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3 'quoted'"}])
def test_activation_sets_the_variables_and_puts_back_what_was_there(
    bench: Bench, shell: str, before: dict[str, str]
) -> None:
    bench.install()
    given = {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    wishes = {"gpu_stacks": [{"tensorflow": "2.13.1", "environment": given}]}
    text = next(row["text"] for row in resolve(wishes)["environment"] if "leave ()" in row["text"])
    (bench.root / "variables.sh").write_text(text)
    done = subprocess.run(
        [shell, "-e"],
        input=SESSION.format(venv=bench.venv),
        env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV_DISABLE_PROMPT": "1", "_": "", **before},
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"1 true {bench.venv}/bin/python\nnothing is left\n"


def test_activation_needs_no_variables(bench: Bench) -> None:
    bench.install()
    words = ["dash", "-e", "-c", f". {bench.venv}/bin/activate; deactivate; echo well"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "well\n"


def test_a_stack_of_before_learns_to_read_its_variables(bench: Bench) -> None:
    bench.install(activation=bench.root / "elsewhere.sh")
    answer = bench.install()
    assert "activation is" in answer["because"]
    assert not bench.install()["changed"]
    script = (bench.venv / "bin" / "activate").read_text()
    assert str(bench.root / "variables.sh") in script
    assert "elsewhere" not in script


def test_insists_on_hashes(bench: Bench) -> None:
    bench.install()
    assert "pip install --no-deps --require-hashes" in bench.calls.read_text()


@pytest.mark.parametrize(
    ("wheelhouse", "words"),
    [
        ("http://m.example.org:8090/wheels", " --trusted-host m.example.org -r"),
        ("https://m.example.org/wheels", " -r"),
    ],
)
def test_a_wheelhouse_is_the_only_place_that_is_asked(
    bench: Bench, wheelhouse: str, words: str
) -> None:
    bench.install(wheelhouse=wheelhouse)
    assert f"--no-index --find-links {wheelhouse}{words}" in bench.calls.read_text()


def test_a_wheelhouse_that_is_not_there_is_told_before_anything_is_begun(bench: Bench) -> None:
    answer = bench.install(wheelhouse="/no/such/place")
    assert answer["failed"]
    assert "gpu_wheelhouse is /no/such/place" in answer["msg"]
    assert not bench.venv.exists()
    assert not list(bench.state.glob("journal/*"))


def test_a_second_run_changes_nothing_and_calls_nothing(bench: Bench) -> None:
    bench.install()
    bench.calls.unlink()
    assert not bench.install()["changed"]
    assert not bench.calls.exists()


def test_what_only_an_earlier_lock_listed_is_taken_away(bench: Bench) -> None:
    bench.install()
    bench.lock.write_text("tensorflow==2.13.1\n")
    bench.install()
    assert not list(bench.site().glob("numpy-*"))
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1"}
    assert not bench.install()["changed"]


def test_somebody_s_pip_install_is_undone(bench: Bench) -> None:
    bench.install()
    metadata = bench.site() / "tensorflow-2.13.1.dist-info" / "METADATA"
    metadata.write_text("Name: tensorflow\nVersion: 2.14.0\n")
    answer = bench.install()
    assert "tensorflow 2.14.0 (lock: 2.13.1)" in answer["because"]
    assert not bench.install()["changed"]


def test_what_people_installed_beside_the_lock_is_theirs(bench: Bench) -> None:
    bench.install()
    extra = bench.site() / "extra-1.0.dist-info"
    extra.mkdir()
    (extra / "METADATA").write_text("Name: extra\nVersion: 1.0\n")
    assert not bench.install()["changed"]
    bench.write()
    bench.lock.write_text(bench.lock.read_text() + "six==1.16.0\n")
    assert bench.install()["changed"]
    assert extra.exists()
    assert set(bench.receipt()["packages"]) == {"numpy", "six", "tensorflow"}


def test_a_damaged_library_of_a_package_is_installed_again(bench: Bench) -> None:
    bench.install()
    (bench.site() / "native.so").write_text("cut")
    answer = bench.install()
    assert "native.so: size" in answer["because"]
    assert "--reinstall" in bench.calls.read_text()
    assert (bench.site() / "native.so").read_text() == "whole"


def test_another_lock_is_installed(bench: Bench) -> None:
    bench.install()
    bench.lock.write_text("tensorflow==2.13.1\nnumpy==1.24.2\n")
    assert bench.install()["changed"]
    assert bench.receipt()["packages"]["numpy"] == "1.24.2"


def test_after_a_killed_repair_metadata_is_not_believed(bench: Bench) -> None:
    bench.install()
    entry = {"fresh": False, "started": "2026-01-01T00:00:00Z", "state": "installing"}
    (bench.state / "journal" / "stack-tensorflow-2.13.1.json").write_text(json.dumps(entry))
    bench.calls.unlink()
    assert bench.install()["state"] == "half-installed"
    assert "--reinstall" in bench.calls.read_text()


def test_an_environment_of_another_python_is_made_anew(bench: Bench) -> None:
    bench.install()
    receipt = bench.receipt()
    path = bench.state / "receipts" / "stack-tensorflow-2.13.1.json"
    path.write_text(json.dumps({**receipt, "python": "3.8.1"}))
    (bench.venv / "old").write_text("")
    answer = bench.install()
    assert answer["because"] == f"made with Python 3.8.1, declared is {VERSION}"
    assert not (bench.venv / "old").exists()


def test_nothing_is_left_that_everybody_may_write(bench: Bench) -> None:
    bench.write(fails=f"[ $1 = venv ] || touch {bench.venv}/.lock; chmod -f 666 {bench.venv}/.lock")
    bench.install()
    open_files = [
        path for path in bench.venv.rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o022
    ]
    assert open_files == []


def test_the_index_s_password_is_in_no_command(bench: Bench) -> None:
    url = "https://user:secret@mirror.example.org/simple"
    answer = bench.install(index_url=url)
    assert "secret" not in bench.calls.read_text()
    assert "secret" not in json.dumps(answer)


def test_a_lock_without_the_release_is_refused(bench: Bench) -> None:
    bench.write(version="2.12.0")
    answer = bench.install()
    assert answer["failed"]
    assert "tensorflow 2.13.1 is not in " in answer["msg"]


def test_an_environment_of_unknown_origin_is_refused(bench: Bench) -> None:
    bench.venv.mkdir()
    (bench.venv / "theirs").write_text("precious")
    answer = bench.install()
    assert answer["failed"]
    assert "was not created by gpufleet" in answer["msg"]
    assert (bench.venv / "theirs").exists()


def test_a_failing_installer_is_quoted_and_the_next_run_starts_afresh(bench: Bench) -> None:
    bench.write(fails='[ $1 = venv ] || { echo "no such index" >&2; exit 2; }')
    answer = bench.install()
    assert answer["failed"]
    assert "no such index" in answer["msg"]
    bench.write()
    assert bench.install()["state"] == "half-installed"
    assert not bench.install()["changed"]


def test_a_python_that_is_not_there_is_named(bench: Bench) -> None:
    answer = bench.install(python="3.99", interpreter=None)
    assert answer["failed"]
    assert "Python 3.99 is not on this host" in answer["msg"]
    answer = bench.install(interpreter="/nowhere/bin/python3.9")
    assert "/nowhere/bin/python3.9 is not on this host" in answer["msg"]


def test_uv_brings_an_interpreter_into_its_directory(bench: Bench) -> None:
    place = bench.root / "pythons"
    made = place / f"cpython-{VERSION}.9-linux-x86_64-gnu" / "bin"
    brings = f"mkdir -p {made}; ln -sf {sys.executable} {made}/python{VERSION}"
    bench.write(fails=f'[ "$1" != python ] || {{ {brings}; exit; }}')
    assert bench.install(interpreter=None, python_dir=place)["changed"]
    calls = bench.calls.read_text().splitlines()
    assert calls[0] == f"python install --install-dir {place} --no-bin {VERSION}"
    assert f"--python {made}/python{VERSION}" in calls[1]


def test_pip_of_the_lock_comes_first_for_an_interpreter_that_uv_does_not_know(
    bench: Bench,
) -> None:
    python = bench.root / "python3"
    python.write_text(
        f"#!/bin/sh\n{sys.executable} -m venv --without-pip {bench.venv}\n"
        f"cat >{bench.venv}/bin/python3-pip <<'E'\n"
        + PIP.format(calls=bench.calls, python=sys.executable, venv=bench.venv)
        + f"E\nchmod +x {bench.venv}/bin/python3-pip\n"
        f"ln -sf python3-pip {bench.venv}/bin/python\n"
    )
    python.chmod(0o755)
    bench.lock.write_text(
        "tensorflow==2.13.1 \\\n    --hash=sha256:00\n"
        "pip==21.3.1 \\\n    --hash=sha256:11 \\\n    --hash=sha256:22\nnumpy==1.24.3\n"
    )
    answer = bench.install(installer="pip", uv=None, interpreter=str(python))
    assert answer["changed"], answer
    first, second = bench.calls.read_text().split("--\n")[:2]
    assert first.split("\n", 1)[1] == (
        "pip==21.3.1 \\\n    --hash=sha256:11 \\\n    --hash=sha256:22\n"
    )
    assert "--require-hashes" in first
    assert "tensorflow==2.13.1" in second


def test_check_mode_changes_nothing(bench: Bench) -> None:
    assert bench.install(check=True)["changed"]
    assert not bench.venv.exists()
    assert not bench.calls.exists()


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
    said = imported(
        bench,
        "import sys; mapped = lambda: sys.argv[1] in open('/proc/self/maps').read();"
        "before = mapped(); import tensorflow; print(before, mapped())",
    )
    assert (said.stdout.split(), said.stderr) == (["False", "True"], "")


def test_the_binding_wins_over_the_environment(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    other = shared_library(bench.root / "other" / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    said = imported(
        bench,
        f"import ctypes, sys, tensorflow; ctypes.CDLL('{SONAME}');"
        "maps = open('/proc/self/maps').read();"
        f"print(sys.argv[1] in maps, '{other}' in maps)",
        LD_LIBRARY_PATH=str(other.parent),
    )
    assert said.stdout.split() == ["True", "False"]


def test_the_binding_says_what_it_cannot_load_and_lets_the_import_go_on(bench: Bench) -> None:
    shared_library(bench.lib / SONAME, SONAME)
    bench.install(libraries=[SONAME], library_dir=bench.lib)
    (bench.lib / SONAME).unlink()
    said = imported(bench, "import tensorflow; print('imported')")
    assert said.stdout == "imported\n"
    assert f"gpufleet: cannot load {bench.lib}/{SONAME}" in said.stderr


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
    said = imported(
        bench,
        f"import tensorflow; mapped = lambda: {str(library)!r} in open('/proc/self/maps').read();"
        f"before = mapped(); import {module}; print(before, mapped())",
    )
    assert (said.stdout.split(), said.stderr) == (["False", "True"], "")


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
    said = imported(
        bench,
        "import glob, sys, torch, mine;"
        "print(*[p for e in sys.path for p in glob.glob(e + '/nvidia/*/lib/*')])",
        PYTHONPATH=str(other),
    )
    assert said.stdout.split()[0] == str(wheel)
    assert str(other) in said.stdout.split()[1]


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
        said = imported(bench, "import jax, os; print(os.environ['CUDA_ROOT'])", CUDA_ROOT="/x")
        assert said.stdout.strip() == str(root)


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
    """1.12 brings cuBLAS under a plain name, and finds it after LD_LIBRARY_PATH."""
    bench.install()
    library = bench.site() / "torch" / "lib" / "libcublas.so.10"
    shared_library(library, library.name)
    bench.install(framework="pytorch", libraries=[library.name])
    assert bench.receipt()["binding"] == [str(library)]


def test_a_build_of_the_release_is_the_release(bench: Bench) -> None:
    bench.write(version="2.13.1+cu118")
    assert bench.install(index="https://wheels.example.org/cu118")["changed"]
    assert bench.receipt()["packages"]["tensorflow"] == "2.13.1+cu118"
    bench.write(version="2.13.10")
    assert "is not in" in bench.install()["msg"]


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


@pytest.mark.parametrize(("needed", "symbol", "status"), [
    ("libcuda.so.1", "nothing", 0), ("libnowhere.so.1", "nothing", 1),
    (None, "cuTensorMapEncodeIm2col", 0), (None, "cublasCreate_v2", 1)])
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


def step(bench: Bench, repair: str, **more: Any) -> dict[str, Any]:
    """A step of the stack's repair; it must succeed, and a run without one has nothing to do."""
    answer = bench.install(repair=repair, **more)
    assert not answer.get("failed"), answer
    assert not bench.install()["changed"]
    return answer


def aside(bench: Bench) -> set[str]:
    """What was set aside, by name."""
    return {path.name for path in (bench.state / "set-aside").rglob("*") if path.is_file()}


@pytest.fixture
def whole(bench: Bench) -> Bench:
    """A stack whose one package has a right record."""
    bench.install()
    content = b"whole"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    bench.uv.write_text(bench.uv.read_text().replace("sha256=x", f"sha256={digest}"))
    for record in bench.site().glob("*.dist-info/RECORD"):
        record.write_text(record.read_text().replace("sha256=x", f"sha256={digest}"))
    assert not bench.install()["changed"]
    return bench


def test_a_library_of_the_same_size_and_another_content_is_restored(whole: Bench) -> None:
    """Bit rot: provision compared sizes only, and had nothing to do."""
    library = whole.site() / "native.so"
    library.write_text("WHOLE")
    assert not whole.install()["changed"]
    assert whole.install(check=True, repair="contents")["because"].endswith("native.so: sha256")
    assert step(whole, "contents")["changed"]
    assert library.read_text() == "whole"
    assert not whole.install(repair="contents")["changed"]


@pytest.mark.parametrize("python", ["script", "gone", "directory", "hangs", "another"])
def test_a_replaced_interpreter_is_not_executed_to_repair_the_stack(
    whole: Bench, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair ran the script, failed, and left a journal on which each later run failed."""
    place, ran = whole.venv / "bin" / "python", whole.root / "ran"
    target = place.resolve()
    place.unlink()
    if python == "directory":
        place.mkdir()
        (place / "theirs").write_text("")
    elif python == "another":
        place.symlink_to("/bin/sh")
    elif python != "gone":
        place.write_text(f"#!/bin/sh\ntouch {ran}\n{'exec sleep 99' if python == 'hangs' else ''}")
        place.chmod(0o755)
    assert whole.install()["changed"]
    assert place.resolve() == target
    assert not ran.exists()
    assert not whole.install()["changed"]


def test_an_interpreter_that_does_not_start_is_replaced(
    whole: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole.site() / "sitecustomize.py").write_text("import time; time.sleep(99)")
    monkeypatch.setattr(stack_contents, "START_S", 1)
    step(whole, "contents")
    assert not (whole.site() / "sitecustomize.py").exists()
    assert aside(whole) == {"sitecustomize.py"}


def test_a_failed_repair_does_not_block_the_next_one(whole: Bench) -> None:
    entry = {"fresh": False, "state": "installing", "kind": "stack", "id": "tensorflow-2.13.1",
             "path": str(whole.venv), "started": "2026-01-01T00:00:00Z"}  # fmt: skip
    (whole.state / "journal" / "stack-tensorflow-2.13.1.json").write_text(json.dumps(entry))
    (whole.venv / "bin" / "python").unlink()
    (whole.venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert whole.install()["state"] == "half-installed"
    assert not whole.install()["changed"]


def test_code_that_no_package_contains_is_set_aside_and_compiled_code_removed(
    whole: Bench,
) -> None:
    """A broken file in tensorflow-plugins and a replaced .pyc: provision had nothing to do."""
    plugins, cache = whole.site() / "tensorflow-plugins", whole.site() / "__pycache__"
    for folder in (plugins, cache):
        folder.mkdir(exist_ok=True)
    (plugins / "libbroken.so").write_text("no library")
    (cache / "native.cpython-311.pyc").write_bytes(b"raises")
    assert not whole.install()["changed"]
    assert "libbroken.so" in whole.install(check=True, repair="contents")["because"]
    step(whole, "contents")
    assert not plugins.exists()
    assert not list(cache.glob("*"))
    assert aside(whole) == {"libbroken.so"}
    assert not whole.install(repair="contents")["changed"]


@pytest.mark.parametrize("text", [None, "", "{}", "no JSON", "[]", '{"schema": 1}', "directory"])
def test_a_lost_or_damaged_receipt_is_written_again(whole: Bench, text: str | None) -> None:
    """The stack became a foreign one, and only moving it away by hand helped."""
    receipt, before = whole.state / "receipts" / "stack-tensorflow-2.13.1.json", whole.receipt()
    receipt.unlink()
    if text == "directory":
        receipt.mkdir()
    elif text is not None:
        receipt.write_text(text)
    (whole.venv / "mine").write_text("")
    step(whole, "reinstall")
    after = whole.receipt()
    assert {**after, "installed": 0, "manifest": 0} == {**before, "installed": 0, "manifest": 0}
    assert {row["path"] for row in before["manifest"]} <= {row["path"] for row in after["manifest"]}
    assert (whole.venv / "mine").exists(), "its contents are the lock's: it is kept"


def test_a_recreated_stack_keeps_what_people_added_aside(whole: Bench) -> None:
    (whole.venv / "mine").write_text("precious")
    step(whole, "recreate")
    assert not (whole.venv / "mine").exists()
    assert aside(whole) == {"mine"}
    assert not list(whole.root.glob(".gpufleet-*"))


@pytest.mark.parametrize("call", [
    "uv venv", "uv pip install", "bind", "set_aside", "recreation.finish", "installation.finish"])
def test_a_recreation_that_is_killed_is_finished_by_the_next_run(
    whole: Bench, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole.venv / "mine").write_text("precious")

    def killed(*_: Any, **__: Any) -> None:
        raise StateError("killed")

    if call.startswith("uv "):
        whole.write(fails=f'[ "$1 $2" != "{call[3:]}" ] && [ "$1" != "{call[3:]}" ] || exit 9')
    else:
        where = {"recreation.finish": (Recreation, "finish"),
                 "installation.finish": (Installation, "finish")}  # fmt: skip
        monkeypatch.setattr(*where.get(call, (whole.module, call)), killed)
    assert whole.install(repair="recreate")["failed"]
    monkeypatch.undo()
    whole.write()
    assert whole.install()["state"] == "half-installed"
    assert not whole.install()["changed"]
    assert aside(whole) == {"mine"}
    assert not list(whole.root.glob(".gpufleet-*"))
