"""Root executes and loads nothing that another account could have written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.fleet import sides
from gpufleet.fleet.transport.connection import NO_PYTHON
from gpufleet.on_host import login, processes, trust
from gpufleet.on_host.host import Host
from gpufleet.on_host.processes import run_command
from gpufleet.on_host.python_start import interpreter_code
from gpufleet.on_host.sections import environment
from gpufleet.on_host.sections.compute import section_compute
from gpufleet.on_host.sections.stacks import section_stacks
from gpufleet.on_host.sections.toolkits import section_toolkits
from tests.support.access_lists import may_write
from tests.support.elf_file import shared_library
from tests.support.planted_host import NOBODY, probe_tree, put

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
OTHER = 1  # `daemon`, on every distribution
SHOW = "#!/bin/sh\nid -u >&2\nid -G >&2\n"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that every account comes to, as pytest's own are not."""
    path = Path("/var/tmp") / f"gpufleet-{tmp_path_factory.mktemp('trust').name}-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path
    subprocess.run(["rm", "-r", path], check=True)


def given(path: Path, mode: int | None = None, uid: int = NOBODY) -> Path:
    os.chown(path, uid, 0, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)
    return path


def acl(path: Path) -> None:
    """As by `setfacl -m u:nobody:rwx`: the mode shows it as a group that may write."""
    if not may_write(path, NOBODY):
        # The temporary directory's file system decides it (an old tmpfs, NFS); no code of ours.
        pytest.skip("no access lists here")


def by_link(top: Path, target: Path) -> Path:
    (top / "link").symlink_to(target)
    return top / "link"


# What is done with `top/dir/program`: (what is judged, the accounts that could have written it).
CASES: dict[str, tuple[Callable[[Path, Path], Any], set[int]]] = {
    "root's": (lambda top, path: path, set()),
    "its owner": (lambda top, path: given(path), {NOBODY}),
    "everybody": (lambda top, path: path.chmod(0o777), {trust.ANYONE}),
    "a directory's owner": (lambda top, path: given(path.parent), {NOBODY}),
    "a directory above": (lambda top, path: given(top), {NOBODY}),
    "a directory for everybody": (lambda top, path: top.chmod(0o777), {trust.ANYONE}),
    "a sticky one": (lambda top, path: top.chmod(0o1777), set()),
    "a sticky one of another": (lambda top, path: (given(top, 0o1777), path)[1], {NOBODY}),
    "all in a sticky one": (lambda top, path: (top.chmod(0o1777), top)[1], {trust.ANYONE}),
    "all in a sticky one of a group": (
        lambda top, path: (os.chown(top, 0, 77), top.chmod(0o3775), top)[2],
        {NOBODY, OTHER},
    ),
    "an access list": (lambda top, path: acl(path.parent), {NOBODY}),
    "a group with members": (
        lambda top, path: (os.chown(path, 0, 77), path.chmod(0o775)),
        {NOBODY, OTHER},
    ),
    "a group without": (lambda top, path: (os.chown(path, 0, 78), path.chmod(0o775)), set()),
    "a group of a directory service": (
        lambda top, path: (os.chown(path, 0, 99), path.chmod(0o775)),
        {trust.ANYONE},
    ),
    "root's group": (lambda top, path: path.chmod(0o775), set()),
    "a link of another": (lambda top, path: given(by_link(top, path)), {NOBODY}),
    "a link to what another owns": (
        lambda top, path: by_link(top, given(path.parent / "dir2")),
        {NOBODY},
    ),
    "a name that anybody can create": (
        lambda top, path: (top.chmod(0o1777), top / "missing")[1],
        {trust.ANYONE},
    ),
    "a link to itself": (lambda top, path: looped(path), set()),
    "a link to itself of another": (lambda top, path: given(looped(path)), {NOBODY}),
    "more links than the kernel follows": (
        lambda top, path: chained(top, given(path.parent / "dir2"), 60),
        {NOBODY},
    ),
    "two accounts": (lambda top, path: (given(path), given(top, uid=OTHER)), {NOBODY, OTHER}),
}


def looped(path: Path) -> Path:
    """A link to itself, in place of the file."""
    path.unlink()
    path.symlink_to(path.name)
    return path


def chained(top: Path, end: Path, links: int) -> Path:
    """The last of links that lead to each other, and the first to `end`."""
    for number in range(links):
        (top / str(number)).symlink_to(end)
        end = top / str(number)
    return end


@pytest.mark.parametrize("case", CASES)
def test_who_could_have_written_a_program(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "passwd", f"root:x:0:0\ndaemon:x:{OTHER}:77\nnobody:x:{NOBODY}:5\n")
    put(tmp_path, "group", "some:x:77:nobody\nnone:x:78:\n")
    rows = trust._rows
    monkeypatch.setattr(trust, "_rows", lambda name: rows(str(tmp_path / Path(name).name)))
    top = tmp_path / "top"
    path = put(top, "dir/program", "data\n", 0o755)
    (top / "dir/dir2").mkdir()
    change, wanted = CASES[case]
    judged = change(top, path)
    assert set(trust.code_writers(str(judged if isinstance(judged, Path) else path))) == wanted


def test_what_a_program_brings_with_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interpreter of a script, RUNPATH, a needed library, the linker's cache, ld.so.preload."""

    def writers(path: Path | str) -> set[int]:
        return set(trust.code_writers(str(path)))

    foreign = given(put(tmp_path, "bin/python3", "", 0o755))
    assert writers(put(tmp_path, "script", f"#!{foreign} -I\n", 0o755)) == {NOBODY}
    own = given(put(tmp_path, "own/sub/x").parent)
    assert writers(shared_library(tmp_path / "libr.so.1", None, (), "$ORIGIN/own/sub")) == {NOBODY}
    library = given(shared_library(own / "libforeign.so.1", "libforeign.so.1"))
    needs = shared_library(tmp_path / "libneeds.so.1", "libneeds.so.1", ("libforeign.so.1",))
    assert writers(needs) == set()
    monkeypatch.setattr(trust, "cached_libraries", lambda: {"libforeign.so.1": [str(library)]})
    assert writers(needs) == {NOBODY}
    # What is opened by its name alone may be any of the cache.
    assert set(trust.code_writers(trust.CACHE)) == {NOBODY}
    monkeypatch.setattr(trust, "cached_libraries", dict)
    monkeypatch.setattr(trust, "PRELOAD", str(put(tmp_path, "preload", f"{library}\n")))
    assert writers("/bin/sh") == {NOBODY}


def test_what_one_account_owns_runs_as_that_account_alone(place: Path) -> None:
    """Root ran the nvcc of a user's toolkit."""
    secret = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(secret, True)
    nvcc = put(
        place, "nvcc", SHOW + "ls -l /proc/self/fd\ngrep NoNewPrivs /proc/self/status\nenv\n", 0o755
    )
    given(nvcc)
    os.environ["LD_PRELOAD_PATH_OF_ROOT"] = "x"
    status, out, err = run_command([str(nvcc)], 10, code=[])
    del os.environ["LD_PRELOAD_PATH_OF_ROOT"]
    os.close(secret)
    assert (status, err.split()[0], "0" in err.split()) == (0, str(NOBODY), False)
    assert ("shadow" in out, "NoNewPrivs:\t1" in out, "OF_ROOT" in out) == (False, True, False)
    # A program that has to be root's does not run as another.
    with pytest.raises(trust.RefusedError, match=rf"{nvcc} belongs to nobody \({NOBODY}\)"):
        run_command([str(nvcc)], 10)
    # Two accounts: neither may have the other run its files.
    given(place, uid=OTHER)
    with pytest.raises(trust.RefusedError, match="it is not run as root"):
        run_command([str(nvcc)], 10, code=[])


def test_whoever_is_not_root_runs_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = given(put(tmp_path, "program", "", 0o755))
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert trust.account_for([str(path)], as_owner=False) is None


def test_programs_get_nothing_of_the_environment_that_steers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's LD_LIBRARY_PATH or PYTHONPATH, kept by sudo, steered nvidia-smi and docker."""
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "BASH_ENV", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given(put(tmp_path, "env", SHOW, 0o755))
    out = run_command(["env"], 10)[1]
    assert f"PATH={trust.SYSTEM_PATH}" in out.splitlines()
    assert str(tmp_path) not in out


def stack_of(place: Path) -> Path:
    venv = place / "stacks/s"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Its interpreter is in the home of who tests; a program of the system's stands for it.
    (venv / "bin/python").unlink()
    put(venv, "bin/python", SHOW + "exit 1\n", 0o755)
    return venv


def test_neither_plan_nor_verify_runs_a_users_files_as_root(place: Path) -> None:
    """A toolkit, an environment or only a file in one belongs to a user."""
    tree, venv = place / "cuda-12.3", stack_of(place)
    put(tree, "bin/nvcc", SHOW, 0o755)
    (tree / "lib64").mkdir()
    host = Host(
        {
            "prefix": str(place),
            "stack_root": str(venv.parent),
            "state_dir": str(place),
            "mode": "full",
            "matmul": "raise SystemExit(str(__import__('os').getuid()))",
            "expect_gpus": 0,
        }
    )
    site = next(venv.glob("lib/python3*")) / "site-packages"

    def found() -> list[str]:
        (stack,) = section_stacks(host)["stacks"]
        (toolkit,) = section_toolkits(host)["trees"]
        (run,) = section_compute(host)["runs"]
        texts = [
            stack["start"]["error"],
            stack["framework"]["error"],
            toolkit["nvcc_error"],
            run["error"],
        ]
        return [
            next(
                (
                    str(number)
                    for number in (0, NOBODY)
                    if re.search(rf"(^|\s){number}(\s|$)", text)
                ),
                text,
            )
            for text in texts
        ]

    put(venv, ".lock", "", 0o666)  # as uv leaves it
    assert found() == ["0", "0", "0", "0"]
    given(put(site, "sitecustomize.py"))
    given(put(tree, "lib64/libcublas.so.12"))
    assert found() == [str(NOBODY), str(NOBODY), "0", str(NOBODY)]
    given(put(tree, "bin/nvcc.profile"), uid=OTHER)
    given(tree)
    put(site, "x.pth", f"{given(put(place, 'editable/x').parent, uid=OTHER)}\n")
    refused = found()
    assert all(text.endswith("it is not run as root") for text in refused[:3])
    assert f"{site}/sitecustomize.py belongs to nobody" in refused[0]
    assert {
        row["what"].partition(" belongs")[0]
        for row in section_toolkits(host)["trees"][0]["exposed"]
    } >= {str(tree)}


def test_a_stack_of_roots_that_is_bound_to_a_users_toolkit_runs_as_that_user(place: Path) -> None:
    venv, library = stack_of(place), given(put(place, "cuda/lib64/libcudart.so.12"))
    site = next(venv.glob("lib/python3*")) / "site-packages"
    put(site, "_gpufleet_binding.json", f'{{"libraries": ["{library}"]}}')
    account = trust.account_for(interpreter_code(str(venv / "bin/python")), as_owner=True)
    assert account is not None
    assert account.uid == NOBODY


def test_a_side_of_a_pair_starts_as_the_account_that_could_have_written_its_stack(
    place: Path,
) -> None:
    """Its standard input goes on to the program that it becomes, from the first byte."""
    venv = stack_of(place)
    python, site = venv / "bin/python", next(venv.glob("lib/python3*")) / "site-packages"
    python.write_text("#!/bin/sh\nid -u; cat\n")

    def side() -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", sides.READER],
            input=sides.gate(str(python)) + b"for the stack\n",
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    assert side() == (0, "0\nfor the stack\n", "")
    given(put(site, "sitecustomize.py"))
    assert side() == (0, f"{NOBODY}\nfor the stack\n", "")
    other = given(put(site, "other.py"), uid=OTHER)
    status, out, error = side()
    assert (status, out) == (1, "")
    assert str(other) in error or "sitecustomize.py" in error
    assert error.endswith("it is not run as root\n")
    python.unlink()
    assert side() == (NO_PYTHON, "", "")


def test_roots_login_runs_no_profile_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/etc/profile.d and root's .bashrc ran, whoever owned them and what they source."""
    own = put(tmp_path, "own.sh", f"# . {tmp_path}/x\n")
    monkeypatch.setattr(login, "PROFILE_LOCATIONS", (str(tmp_path / "*.sh"),))
    variables: dict[str, str | None] = {"LD_LIBRARY_PATH": None, "LD_PRELOAD": None}
    assert login.foreign_profile(Host({}), variables) is None
    foreign = given(put(tmp_path, "home/conda.init"))
    own.write_text(f"LD_LIBRARY_PATH=/stubs\n. {foreign}\n")
    reason = login.foreign_profile(Host({}), variables)
    assert reason == f"{foreign} belongs to nobody ({NOBODY}): it is not run as root"
    assert login.variables_by_reading(Host({}), variables)["LD_LIBRARY_PATH"] == "/stubs"
    ran = []
    monkeypatch.setattr(environment, "login_as", lambda *_: ran.append(1))
    found = environment.section_environment(Host({}))
    assert (ran, found["login"]["LD_LIBRARY_PATH"], found["refused"]) == ([], "/stubs", reason)
    own.write_text("")
    variables["LD_LIBRARY_PATH"] = str(given(tmp_path / "home"))
    assert "belongs to nobody" in str(login.foreign_profile(Host({}), variables))


@pytest.mark.parametrize(
    "line",
    [
        '. "{top}/a b/init"',
        ". {top}/a\\ b/init",
        "if true; then source {top}/own.sh; fi",
        "export PATH=$PATH:{top}/shared",
        'PATH="{top}/shared:$PATH"',
    ],
)
def test_roots_login_runs_nothing_that_a_profile_leads_to(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(put(tmp_path, "a b/init"))
    put(tmp_path, "own.sh", f". '{tmp_path}/a b/init'\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    profile = put(tmp_path, "profile", f"TMPDIR={tmp_path}/shared\n")
    monkeypatch.setattr(login, "PROFILE_LOCATIONS", (str(profile),))
    variables: dict[str, str | None] = {"LD_LIBRARY_PATH": None, "LD_PRELOAD": None}
    assert login.foreign_profile(Host({}), variables) is None
    profile.write_text(line.format(top=tmp_path) + "\n")
    assert "it is not run as root" in str(login.foreign_profile(Host({}), variables))


def test_a_library_of_another_account_is_not_loaded_by_root(tmp_path: Path, root: Path) -> None:
    library = given(shared_library(tmp_path / "libcuda.so.1", "libcuda.so.1"))
    with pytest.raises(trust.RefusedError):
        processes.open_library(str(library))
    given(root / "usr/local/cuda-11.8/targets/x86_64-linux/lib/libcudnn.so.8.6.0", uid=OTHER)
    given(root / "usr/local/cuda-11.8")
    error = probe_tree(root)["cudnn"]["trees"][0]["loaded"][0]["error"]
    assert error.endswith("it is not run as root")


def test_a_pipe_an_endless_file_and_a_link_of_others_are_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, secret = Host({"root": str(root)}), put(root, "etc/shadow", "root:$6$x\n", 0o600)
    os.mkfifo(root / "etc/pipe")
    (root / "etc/zero").symlink_to("/dev/zero")
    for name in ("/etc/pipe", "/etc/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            host.text(name)
    (root / "etc/link").symlink_to(secret)
    assert host.text("/etc/link") == "root:$6$x\n"
    given(root / "etc/link")
    with pytest.raises(PermissionError):
        host.text("/etc/link")
    sparse = root / "etc/sparse"
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    with pytest.raises(OSError, match="more than"):
        host.text("/etc/sparse")


def test_there_is_one_gate() -> None:
    """Each program and library goes through `processes`; a pair's side through `as_owner`."""
    source = Path(processes.__file__).parent
    texts = {
        path.relative_to(source).as_posix(): path.read_text(encoding="utf-8")
        for path in source.rglob("*.py")
    }
    starts = {
        name
        for name, text in texts.items()
        if re.search(
            r"subprocess\.|os\.(system|exec|spawn|posix_spawn|popen)|CDLL\(|LoadLibrary", text
        )
    }
    assert starts == {"as_owner.py", "processes.py", "privileges.py"}
    assert texts["as_owner.py"].count("os.exec") == 1
    assert re.findall(r"CDLL\((.*)\)", texts["privileges.py"]) == ["None"]
