"""A stack's module: exact packages, an environment of its own, receipts, and installers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.ansible_modules import sha256
from tests.support.stack_bench import VERSION, Bench

# What stands for the environment's own interpreter: it notes what `-m pip` is called with, and
# installs packages that are nothing but their metadata. Like pip it replaces none without a record.
PIP = """#!/bin/sh
if [ "$2" != pip ]; then exec {python} "$@"; fi
for last; do :; done
echo "$@" >>{calls}; cat "$last" >>{calls}; echo -- >>{calls}
site=$(echo {venv}/lib/python3*/site-packages)
grep -o '^[a-z]*==[0-9.]*' "$last" | while IFS== read -r name _ version; do
  info="$site/$name-$version.dist-info"
  if [ -d "$info" ] && ! [ -e "$info/RECORD" ]; then exit 1; fi
  mkdir -p "$info"
  printf 'Name: %s\\nVersion: %s\\n\\n' "$name" "$version" >"$info/METADATA"
  echo "$name.dist-info/RECORD,," >"$info/RECORD"
done || exit 1
"""


def test_installs_what_the_lock_lists_and_says_so_in_the_receipt(bench: Bench) -> None:
    (bench.root / "cache").mkdir()
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "absent")
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1", "numpy": "1.24.3"}
    assert bench.receipt()["lock_sha256"] == sha256(bench.lock).partition(":")[2]
    # Its files are links to the cache, and the next stack may have some of them too.
    assert (bench.root / "cache").exists()


BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
ENTRY = "stack-tensorflow-2.13.1.json"


def fill(bench: Bench, filled: str, boot: str = BOOT, **more: Any) -> None:
    """Leave the work of gpu_stack_download: an environment with packages, and a journal's entry."""
    for command in (["venv", bench.venv], ["pip", "install", bench.lock]):
        subprocess.run([bench.uv, *command], check=True)
    stack = {"schema": 1, "kind": "stack", "id": "tensorflow-2.13.1", "version": "2.13.1"}
    entry = {**stack, "path": str(bench.venv), "state": "installing", "fresh": True,
             "filled": {"lock_sha256": filled, "boot_id": boot}, **more}  # fmt: skip
    journal = bench.state / "journal"
    journal.mkdir(parents=True)
    (journal / ENTRY).write_text(json.dumps(entry))
    bench.calls.unlink()
    (bench.venv / "mark").touch()


def test_an_environment_that_has_its_packages_already_is_bound(bench: Bench) -> None:
    fill(bench, sha256(bench.lock).partition(":")[2])
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "absent")
    (installed,) = bench.calls.read_text().splitlines()
    assert "--reinstall" not in installed
    assert (bench.venv / "mark").exists()
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1", "numpy": "1.24.3"}
    assert not list((bench.state / "journal").iterdir())


@pytest.mark.parametrize(
    "changed",
    [
        {"filled": "0" * 64},
        {"boot": "another"},
        {"state": "removing"},
        {"fresh": None},
    ],
    ids=["another lock", "the host was restarted", "it was being removed", "a damaged entry"],
)
def test_an_environment_that_nobody_vouches_for_is_created_again(
    bench: Bench, changed: dict[str, Any]
) -> None:
    fill(bench, **{"filled": sha256(bench.lock).partition(":")[2], **changed})
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "half-installed")
    assert not (bench.venv / "mark").exists()
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1", "numpy": "1.24.3"}


def test_a_filled_environment_that_cannot_be_bound_is_created_again_by_the_next_run(
    bench: Bench,
) -> None:
    fill(bench, sha256(bench.lock).partition(":")[2])
    (bench.venv / "bin/python").unlink()
    (bench.venv / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    (bench.venv / "bin/python").chmod(0o755)
    assert bench.install()["failed"]
    assert "filled" not in json.loads((bench.state / "journal" / ENTRY).read_text())
    assert bench.install()["state"] == "half-installed"
    assert bench.receipt()["packages"] == {"tensorflow": "2.13.1", "numpy": "1.24.3"}


def test_an_installation_started_elsewhere_is_not_continued_here(
    bench: Bench, tmp_path: Path
) -> None:
    fill(bench, "0" * 64, path=str(tmp_path / "before"))
    output = bench.install()["msg"]
    assert f"was started in {tmp_path}/before" in output
    assert (bench.venv / "mark").exists()


def test_downloads_that_take_space_of_their_own_are_removed(bench: Bench, tmp_path: Path) -> None:
    other = Path("/dev/shm") / tmp_path.name
    other.mkdir()
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
    declared = {"gpu_stacks": [{"tensorflow": "2.13.1", "environment": given}]}
    text = next(
        row["text"] for row in resolve(declared)["environment"] if "leave ()" in row["text"]
    )
    (bench.root / "variables.sh").write_text(text)
    done = subprocess.run(
        [shell, "-e"],
        input=SESSION.format(venv=bench.venv),
        env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV_DISABLE_PROMPT": "1", "_": "", **before},
        capture_output=True,
        text=True,
        check=False,
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


def test_a_wheelhouse_that_is_not_there_is_reported_before_anything_is_begun(bench: Bench) -> None:
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


def test_an_environment_of_another_python_is_made_again(bench: Bench) -> None:
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
        path
        for path in bench.venv.rglob("*")
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


def test_uv_installs_an_interpreter_into_its_directory(bench: Bench) -> None:
    place = bench.root / "pythons"
    made = place / f"cpython-{VERSION}.9-linux-x86_64-gnu" / "bin"
    installs = f"mkdir -p {made}; ln -sf {sys.executable} {made}/python{VERSION}"
    bench.write(fails=f'[ "$1" != python ] || {{ {installs}; exit; }}')
    assert bench.install(interpreter=None, python_dir=place)["changed"]
    calls = bench.calls.read_text().splitlines()
    assert calls[0] == f"python install --install-dir {place} --no-bin {VERSION}"
    assert f"--python {made}/python{VERSION}" in calls[1]


def with_pip(bench: Bench) -> dict[str, Any]:
    """The arguments for an interpreter that uv does not know; it makes environments with PIP."""
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
    return {"installer": "pip", "uv": None, "interpreter": str(python)}


def test_pip_replaces_a_package_whose_record_is_gone(bench: Bench) -> None:
    arguments = with_pip(bench)
    bench.install(**arguments)
    record = next(bench.site().glob("numpy-*.dist-info")) / "RECORD"
    record.unlink()
    answer = bench.install(**arguments)
    assert "numpy-1.24.3.dist-info/RECORD: missing" in answer["because"], answer
    assert record.read_text()
    assert not bench.install(**arguments)["changed"]


def test_pip_of_the_lock_comes_first_for_an_interpreter_that_uv_does_not_know(
    bench: Bench,
) -> None:
    answer = bench.install(**with_pip(bench))
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


def test_a_build_of_the_release_is_the_release(bench: Bench) -> None:
    bench.write(version="2.13.1+cu118")
    assert bench.install(index="https://wheels.example.org/cu118")["changed"]
    assert bench.receipt()["packages"]["tensorflow"] == "2.13.1+cu118"
    bench.write(version="2.13.10")
    assert "is not in" in bench.install()["msg"]
