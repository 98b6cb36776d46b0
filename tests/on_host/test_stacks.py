"""Section `stacks`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.processes import NoAnswer
from gpufleet.on_host.sections import stacks
from gpufleet.on_host.sections.stacks import start_interpreter
from gpufleet.on_host.venvs import start_hooks
from tests.support.planted_host import probe_tree, put


def test_a_stack_is_started_as_people_start_it(tmp_path: Path) -> None:
    venv = tmp_path / "stack"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    host = Host({})
    assert start_interpreter(host, str(venv)) == {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "prefix": str(venv),
        "strange": [],
        "error": None,
        "sets": {},
        "customized": [],
    }
    other = tmp_path / "other/site-packages"
    other.mkdir(parents=True)
    # At the end of the way it shadows nothing, as after `pip install --editable`.
    (site / "end.pth").write_text(f"{other}\n")
    assert (start_interpreter(host, str(venv))["strange"], start_hooks(host, str(venv))) == ([], [])
    (site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(other)!r})\n")
    assert start_interpreter(host, str(venv))["strange"] == [str(other)]
    assert start_hooks(host, str(venv)) == [str(site / "first.pth")]


def test_a_start_that_hides_the_gpus_is_reported_wherever_its_code_is(tmp_path: Path) -> None:
    """A line in /etc/python3.11/sitecustomize.py, which every stack runs, went unnoticed."""
    venv = tmp_path / "stack"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    hook = next(venv.glob("lib/python3*/site-packages")) / "usercustomize.py"
    hook.write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nos.environ['A'] = '1'\n")
    settings = venv / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("= false", "= true"))
    started = start_interpreter(Host({}), str(venv))
    assert started["sets"] == {"CUDA_VISIBLE_DEVICES": ""}
    assert str(hook) in started["customized"]


def test_packages_are_read_without_importing_anything(root: Path) -> None:
    venv = root / "opt/gpufleet/stacks/legacy"
    put(venv, "pyvenv.cfg", "home = /usr/bin\nversion_info = 3.6.15\n")
    site = "lib/python3.6/site-packages/"
    put(
        venv,
        site + "Keras_Preprocessing-1.1.2.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: Keras_Preprocessing\nVersion: 1.1.2\n\nName: no\n",
    )
    put(venv, site + "termcolor-1.1.0.egg-info/PKG-INFO", "Name: termcolor\nVersion: 1.1.0\n")
    put(
        venv,
        site + "_gpufleet_binding.json",
        '{"libraries": ["/usr/local/cuda-8.0/lib64/libcudart.so.8.0"]}',
    )
    assert probe_tree(root)["stacks"]["stacks"] == [
        {
            "name": "legacy",
            "venv": "/opt/gpufleet/stacks/legacy",
            "python": "3.6.15",
            "packages": {"keras-preprocessing": "1.1.2", "termcolor": "1.1.0"},
            "receipt": False,
            "bound_to": "/usr/local/cuda-8.0/lib64",
            "framework": None,
            "runs": "tensorflow",
            "realpath": "/opt/gpufleet/stacks/legacy",
            "closed": [],
            "hooks": [],
            "binding": None,
            "exposed": [],
            "start": {
                "python": None,
                "prefix": None,
                "strange": [],
                "error": f"{venv}/bin/python: No such file or directory",
                "hung": False,
                "sets": {},
                "customized": [],
            },
        }
    ]


def test_an_interpreter_and_a_binding_that_give_no_answer_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = put(tmp_path, "venv/bin/python", "", 0o755)
    monkeypatch.setattr(
        stacks, "run_command", lambda *_, **__: (None, "", NoAnswer("no answer within 4 s"))
    )
    venv = str(python.parent.parent)
    start = stacks.start_interpreter(Host({}), venv)
    binding = stacks.try_binding(Host({}), {"venv": venv, "bound_to": "/usr/local/cuda-11.8"})
    for found in (start, binding):
        assert (found["error"], found["hung"]) == ("no answer within 4 s", True)
