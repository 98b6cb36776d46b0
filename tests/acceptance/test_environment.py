"""Modules, activation, profile and kernels, as people use them on a host with Debian's packages.

The tests of this module are one story on the same host, and run in their order.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lab_fleet import STACK, TOOLKIT, Fleet

pytestmark = pytest.mark.lab

NAME = "tensorflow-2.13.1"
DECLARED = {
    "gpu_stacks": [{"tensorflow": "2.13.1", "environment": {"TF_CPP_MIN_LOG_LEVEL": 1}}],
    "gpu_toolkits": [],
    "gpu_stack_environment": {"TF_FORCE_GPU_ALLOW_GROWTH": True},
    "gpu_profile": True,
    "gpu_jupyter_kernels": True,
}
WHERE = ("--limit", "lab1", "-e", json.dumps(DECLARED))
LOGIN = "env -i HOME=/root TERM=dumb"

# A second toolkit to be in conflict with, as a site's own modulefile of the same family.
OTHER = "/opt/site/modulefiles/cuda/99.0"

SESSION = """
say() { echo "$1: ${CUDA_HOME-} ${TF_CPP_MIN_LOG_LEVEL-} $(command -v python || :)"; }
say login
module load cuda && say toolkit
module use --append /opt/site/modulefiles
module load cuda/99.0; say second
module unload cuda; module load cuda/11.8 && module load tensorflow/2.13.1 && say both
test "$TF_FORCE_GPU_ALLOW_GROWTH" = true && python -c 'import sys; print(sys.prefix)'
module unload tensorflow && say unloaded
"""

ACTIVATION = """
old=$(env | sort)
. STACK/bin/activate
echo "$TF_CPP_MIN_LOG_LEVEL $TF_FORCE_GPU_ALLOW_GROWTH $(command -v python)"
deactivate
test "$old" = "$(env | sort)" && echo restored
""".replace("STACK", STACK)

KERNEL = f"""
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="{NAME}")
client.execute_interactive(
    "import os, tensorflow;"
    "print(tensorflow.__file__, os.environ['TF_CPP_MIN_LOG_LEVEL'],"
    " os.environ['TF_FORCE_GPU_ALLOW_GROWTH']);"
    "print(*{{line.split()[-1] for line in open('/proc/self/maps') if 'libcudart' in line}})",
    timeout=120,
)
client.stop_channels()
manager.shutdown_kernel()
"""


@pytest.fixture(scope="module", autouse=True)
def _provisioned(fleet: Fleet) -> None:
    fleet.gpufleet("provision", *WHERE)


def modules(fleet: Fleet, package: str, shell: str) -> dict[str, str]:
    """The output of `say` at each moment of a session in a fresh login, with that package alone."""
    fleet.on(
        "lab1",
        "dpkg --purge environment-modules lmod >/dev/null 2>&1; apt-get -q update >/dev/null;"
        f"apt-get install -q -y --no-install-recommends {package} >/dev/null 2>&1",
    )
    fleet.on(
        "lab1",
        f"mkdir -p {OTHER.rpartition('/')[0]}; cat >{OTHER} <<'E'\n"
        "#%Module1.0\nconflict cuda\nsetenv CUDA_HOME /opt/99\nE",
    )
    fleet.on("lab1", f"cat >/tmp/session <<'E'\n. /etc/profile\n{SESSION}E")
    output = fleet.on("lab1", f"{LOGIN} {shell} /tmp/session 2>/tmp/said; cat /tmp/said >&2")
    lines = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
    assert f"{STACK}\n" in output
    return {moment: " ".join(words.split()) for moment, words in lines.items()}


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    ("package", "second", "unloaded"),
    [
        ("environment-modules", TOOLKIT, TOOLKIT),  # the second is refused
        ("lmod", "/opt/99", TOOLKIT),  # the second takes the first one's place
    ],
)
def test_modules_load_in_a_fresh_login(
    fleet: Fleet, package: str, second: str, unloaded: str, shell: str
) -> None:
    assert modules(fleet, package, shell) == {
        "login": "/usr/local/cuda",
        "toolkit": TOOLKIT,
        "second": second,
        "both": f"{TOOLKIT} 1 {STACK}/bin/python",
        "unloaded": unloaded,
    }


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_activation_sets_the_variables_and_puts_back_what_was_there(
    fleet: Fleet, shell: str
) -> None:
    fleet.on("lab1", f"cat >/tmp/activation <<'E'\n{ACTIVATION}E")
    given = "VIRTUAL_ENV_DISABLE_PROMPT=1 TF_CPP_MIN_LOG_LEVEL=3 PATH=/usr/bin:/bin"
    output = fleet.on("lab1", f"env -i {given} {shell} /tmp/activation")
    assert output == f"1 true {STACK}/bin/python\nrestored\n"


def test_the_kernel_starts_with_the_stack_s_python_libraries_and_variables(fleet: Fleet) -> None:
    fleet.on("lab1", f"cat >/tmp/kernel.py <<'E'\n{KERNEL}E")
    output = fleet.on("lab1", f"{LOGIN} PATH=/usr/bin:/bin {STACK}/bin/python /tmp/kernel.py")
    assert f"{STACK}/lib/python3.11/site-packages/tensorflow/__init__.py 1 true\n" in output
    assert f"{TOOLKIT}/targets/x86_64-linux/lib/libcudart.so.11.8.89\n" in output


def test_the_profile_gives_the_default_and_disturbs_no_login(fleet: Fleet) -> None:
    output = fleet.on("lab1", f"{LOGIN} bash -lc 'echo $CUDA_HOME; command -v nvcc; env'")
    assert output.startswith("/usr/local/cuda\n/usr/local/cuda/bin/nvcc\n")
    assert "LD_LIBRARY_PATH" not in output
    verdicts = fleet.verdicts(0, *WHERE)["lab1"]
    assert verdicts["environment.login"]["verdict"] == "PASS"
    assert verdicts["environment.files"]["verdict"] == "PASS"


def test_a_second_provision_changes_nothing(fleet: Fleet) -> None:
    before = fleet.state("lab1")
    assert "changed=0 " in fleet.gpufleet("provision", "--force", *WHERE).stdout
    assert fleet.state("lab1") == before


def test_a_changed_file_is_named_and_written_again(fleet: Fleet) -> None:
    fleet.on("lab1", "echo 'setenv X 1' >>/opt/gpufleet/modulefiles/cuda/11.8")
    verdicts = fleet.verdicts(1, *WHERE)["lab1"]
    failed = {name: row for name, row in verdicts.items() if row["verdict"] == "FAIL"}
    assert set(failed) == {"environment.files"}
    assert "opt/gpufleet/modulefiles/cuda/11.8" in failed["environment.files"]["cause"]
    fleet.gpufleet("provision", *WHERE)
    fleet.verdicts(0, *WHERE)


def test_what_is_removed_takes_its_files_along_and_leaves_those_of_others(fleet: Fleet) -> None:
    fleet.on(
        "lab1",
        "mkdir -p /usr/local/share/jupyter/kernels/theirs;"
        "echo {} >/usr/local/share/jupyter/kernels/theirs/kernel.json",
    )
    places = "/opt/gpufleet/modulefiles /opt/gpufleet/environment /usr/local/share/jupyter"
    find = f"find {places} /etc/profile.d/*gpufleet* -type f 2>/dev/null | sort"
    fleet.gpufleet("remove", "--stack", NAME, *WHERE)
    assert fleet.on("lab1", find).split() == [
        "/etc/profile.d/gpufleet-cuda.sh",
        "/etc/profile.d/zz-gpufleet-modules.sh",
        "/opt/gpufleet/modulefiles/cuda/.version",
        "/opt/gpufleet/modulefiles/cuda/11.8",
        "/usr/local/share/jupyter/kernels/theirs/kernel.json",
    ]
    fleet.gpufleet("remove", "--toolkit", "11.8", *WHERE)
    left = "/usr/local/share/jupyter/kernels/theirs/kernel.json\n"
    assert fleet.on("lab1", find) == left
    assert fleet.on("lab1", "find /var/lib/gpufleet -name '*.json'") == ""
