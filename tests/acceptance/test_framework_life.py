"""The life of a PyTorch and a JAX stack: from a mirror, in use, declared no longer, removed.

One story on the same host, which reaches nothing but the mirror; the tests run in their order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import Fleet
from tests.support.lab_frameworks import ROOT, SITE
from tests.support.lab_mirror import cut_off

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1")
ARTIFACTS = ("--cuda", "12.5")

TORCH, JAX = f"{ROOT}/pytorch-2.6.0", f"{ROOT}/jax-0.5.3"
TOOLKIT = "/usr/local/cuda-12.5"
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
DECLARED: dict[str, Any] = {
    "gpu_stacks": [
        {"pytorch": "2.6.0", "python": "3.11", "environment": {VARIABLE: "max_split_size_mb:512"}},
        # The cuDNN that the lab has for this toolkit.
        {"jax": "0.5.3", "python": "3.11", "cuda": "12.5", "cudnn": "9.3"},
    ],
    "gpu_toolkits": [], "gpu_expect": {"count": 0}, "gpu_jupyter_kernels": True,
}  # fmt: skip

# What a person does at a prompt, and in a notebook.
SESSION = f"""
. /etc/profile
module load pytorch/2.6.0 && python -c 'import sys; print(sys.prefix)' && echo "${VARIABLE}"
module unload pytorch; echo "${{{VARIABLE}-none}}"
module load jax/0.5.3 && python -c 'import sys; print(sys.prefix)'
"""
KERNEL = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="{name}")
client.execute_interactive(
    "import {module}; print({module}.__file__);"
    "files = {{line.split()[-1] for line in open('/proc/self/maps')}};"
    "print(*[path for path in files if 'libcudart' in path])",
    timeout=120,
)
client.stop_channels()
manager.shutdown_kernel()
"""


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The declaration of the host; its locks are not those of the inventory."""
    return {**DECLARED, "gpu_locks_dir": str(tmp_path_factory.mktemp("locks"))}


@pytest.fixture(scope="module")
def directory(
    fleet: Fleet, declared: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A mirror of what the host declares; gigabytes, so nothing of it is kept."""
    made = tmp_path_factory.mktemp("mirror")
    words = ("-i", "inventory/lab", "--limit", "lab1", "-e", json.dumps(declared))
    assert json.loads(fleet.gpufleet("artifacts", "fetch", str(made), *words, "--json").stdout)[
        "complete"]  # fmt: skip
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def where(fleet: Fleet, declared: dict[str, Any], mirror: dict[str, str]) -> tuple[str, ...]:
    """How each command finds the host, which from here on reaches the mirror alone."""
    # Packages of the distribution are the site's own business; the guide says which.
    fleet.on("lab1", "apt-get -q update >/dev/null; apt-get install -q -y --no-install-recommends"
                     " libxml2 environment-modules >/dev/null 2>&1")  # fmt: skip
    cut_off(fleet, "lab1", mirror)
    return ("-i", "inventory/lab", "--limit", "lab1", "-e", json.dumps({**declared, **mirror}))


def test_what_somebody_else_put_there_is_refused_and_kept(
    fleet: Fleet, where: tuple[str, ...]
) -> None:
    fleet.on("lab1", f"mkdir -p {TORCH}/bin && echo theirs >{TORCH}/bin/python")
    before = fleet.state("lab1")
    output = fleet.gpufleet("provision", *where, status=None)
    assert output.returncode != 0
    assert TORCH in output.stdout
    assert "did not install it" in " ".join(output.stdout.split())
    assert fleet.state("lab1") == before
    fleet.on("lab1", f"rm -r {TORCH}")


def test_the_mirror_is_enough(fleet: Fleet, where: tuple[str, ...], directory: Path) -> None:
    fleet.gpufleet("provision", *where)
    assert "changed=0 " in fleet.gpufleet("provision", "--force", *where).stdout
    fleet.verdicts(0, *where)
    served = (directory / ".log").read_text()
    assert '"GET /wheels/torch-2.6.0-' in served
    assert '"GET /wheels/jax_cuda12_plugin-0.5.3-' in served


def test_modules_load_the_stacks(fleet: Fleet) -> None:
    fleet.on("lab1", f"cat >/tmp/session <<'E'\n{SESSION}E")
    output = fleet.on("lab1", "env -i HOME=/root TERM=dumb bash /tmp/session 2>&1")
    assert output.split() == [TORCH, "max_split_size_mb:512", "none", JAX]


@pytest.mark.parametrize(("stack", "name", "module", "cudart"), [
    (TORCH, "pytorch-2.6.0", "torch", f"{TORCH}/{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"),
    (JAX, "jax-0.5.3", "jax", f"{TOOLKIT}/targets/x86_64-linux/lib/libcudart.so.12.5.82"),
])  # fmt: skip
def test_a_kernel_has_the_stack_s_libraries(
    fleet: Fleet, stack: str, name: str, module: str, cudart: str
) -> None:
    program = KERNEL.format(name=name, module=module)
    fleet.on("lab1", f"cat >/tmp/kernel.py <<'E'\n{program}E")
    output = fleet.on("lab1", "env -i HOME=/root TERM=dumb PATH=/usr/bin:/bin"
                            f" {stack}/bin/python /tmp/kernel.py")  # fmt: skip
    assert output.split() == [f"{stack}/{SITE}/{module}/__init__.py", cudart]


def test_what_is_declared_no_longer_is_listed_and_then_removed(
    fleet: Fleet, where: tuple[str, ...]
) -> None:
    fleet.on("lab1", f"echo precious >{TORCH}/theirs")
    fewer = ("-e", json.dumps({"gpu_stacks": DECLARED["gpu_stacks"][1:], "gpu_prune": True}))
    before = fleet.state("lab1")
    assert "pytorch-2.6.0" in fleet.gpufleet("plan", *where, *fewer).stdout
    assert fleet.state("lab1") == before
    fleet.gpufleet("provision", *where, *fewer)
    assert fleet.on("lab1", f"find {TORCH} -type f") == f"{TORCH}/theirs\n"
    assert "pytorch" not in fleet.on("lab1", "ls -R /opt/gpufleet/modulefiles"
                                             " /usr/local/share/jupyter/kernels")  # fmt: skip
    fleet.verdicts(0, *where, *fewer)


def test_the_toolkit_of_a_jax_stack_is_not_removed_from_under_it(
    fleet: Fleet, where: tuple[str, ...]
) -> None:
    before = fleet.state("lab1")
    output = fleet.gpufleet("remove", "--toolkit", "12.5", *where, status=None)
    assert output.returncode != 0
    assert "needed by jax-0.5.3" in " ".join(output.stdout.split())
    assert fleet.state("lab1") == before


def test_everything_is_removed_by_its_receipts(fleet: Fleet, where: tuple[str, ...]) -> None:
    fleet.gpufleet("remove", "--stack", "jax-0.5.3", "--toolkit", "12.5", *where)
    assert fleet.on("lab1", f"find {ROOT} -type f -o -type l") == f"{TORCH}/theirs\n"
    assert fleet.on("lab1", "find /usr/local -name 'cuda*'") == ""
    assert fleet.on("lab1", "find /var/lib/gpufleet -name '*.json'") == ""
