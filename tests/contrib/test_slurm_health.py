"""The node's own health check (contrib/slurm/gpufleet-health)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "contrib" / "slurm" / "gpufleet-health"
PROMISE = " (returns by itself)"
WHEN = "[r@2026-11-21T01:55:05]"
SCONTROL = """#!/bin/sh
echo "$*" >>"$ASKED"
echo "NodeName=n1 Arch=x86_64 State=${STATE_IS:-IDLE} ThreadsPerCore=1  $REASON_IS"
"""


class Node:
    """A host with one small toolkit, an nvidia-smi and a scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "cuda"
        for name in ("bin", "state/receipts", "state/journal", "cuda"):
            (folder / name).mkdir(parents=True)
        (self.tree / "libcublas.so.8.0.61").write_text("text")
        (self.tree / "libcublas.so").symlink_to("libcublas.so.8.0.61")
        seen = (self.tree / "libcublas.so.8.0.61").stat()
        manifest = [
            {
                "path": "libcublas.so.8.0.61",
                "type": "file",
                "size": seen.st_size,
                "mtime": int(seen.st_mtime),
                "mode": "0644",
                "sha256": None,
            },
            {"path": "libcublas.so", "type": "link", "target": "libcublas.so.8.0.61"},
        ]
        self.receipt = folder / "state" / "receipts" / "toolkit-8.0.json"
        self.receipt.write_text(json.dumps({"path": str(self.tree), "manifest": manifest}))
        self.program(
            "nvidia-smi",
            '#!/bin/sh\nfor i in 0 1; do echo "GPU $i: NVIDIA L4 (UUID: GPU-$i)"; done\n',
        )
        self.program("scontrol", SCONTROL)

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run(self, *words: str, state: str = "IDLE", reason: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [PROGRAM, *words],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "GPUFLEET_STATE": str(self.folder / "state"),
                "SLURMD_NODENAME": "n1",
                "ASKED": str(self.folder / "asked"),
                "STATE_IS": state,
                "REASON_IS": reason,
            },
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.strip()

    @property
    def updates(self) -> list[str]:
        """The updates that Slurm was told."""
        file = self.folder / "asked"
        output = file.read_text().splitlines() if file.exists() else []
        return [line for line in output if line.startswith("update")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_as_it_was_installed_is_fit(node: Node) -> None:
    assert node.run("--gpus", "2") == (0, "")
    assert node.run() == (0, "")


@pytest.mark.parametrize(
    ("broken", "reported"),
    [
        (
            lambda node: node.program("nvidia-smi", "#!/bin/sh\necho No devices; exit 6\n"),
            "0 of 2 GPUs answer: No devices",
        ),
        (
            lambda node: node.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: L4 (UUID: x)'\n"),
            "1 of 2 GPUs answer",
        ),
        (lambda node: (node.folder / "bin" / "nvidia-smi").chmod(0), "nvidia-smi cannot be run"),
        (
            lambda node: (node.folder / "state/journal/cudnn-8.0-5.json").write_text("{}"),
            "half installed: cudnn-8.0-5",
        ),
        (
            lambda node: (node.tree / "libcublas.so.8.0.61").write_text("other text"),
            "changed since it was installed: {tree}/libcublas.so.8.0.61",
        ),
        (
            lambda node: (node.tree / "libcublas.so.8.0.61").unlink(),
            "missing or unreadable: {tree}/libcublas.so.8.0.61",
        ),
        (
            lambda node: (
                (node.tree / "libcublas.so").unlink(),
                (node.tree / "libcublas.so").symlink_to("/nowhere"),
            ),
            "points elsewhere since it was installed: {tree}/libcublas.so",
        ),
        (lambda node: node.receipt.write_text("{"), "the receipt is damaged: {receipt}"),
    ],
)
def test_what_is_wrong_is_reported_in_a_line(node: Node, broken: Any, reported: str) -> None:
    broken(node)
    status, output = node.run("--gpus", "2")
    assert status == 1
    assert output.startswith(
        "gpufleet health: " + reported.format(tree=node.tree, receipt=node.receipt)
    )


@pytest.mark.parametrize(
    ("wrong", "state", "reason", "reported"),
    [
        (
            True,
            "IDLE",
            "",
            [f"update NodeName=n1 State=DRAIN Reason=gpufleet health: half installed: x{PROMISE}"],
        ),
        (True, "IDLE+DRAIN", "Reason=broken fan [root@2026-11-21T01:55:05]", []),
        (True, "IDLE+DRAIN", f"Reason=gpufleet health: x{PROMISE} {WHEN}", []),
        (
            False,
            "IDLE+DRAIN",
            f"Reason=gpufleet health: x{PROMISE} {WHEN}",
            ["update NodeName=n1 State=RESUME"],
        ),
        (
            False,
            "IDLE+DRAIN",
            f"Reason=gpufleet health: x{PROMISE} {WHEN} Comment=rack 7",
            ["update NodeName=n1 State=RESUME"],
        ),
        (
            False,
            "IDLE+DRAIN",
            f"Reason=gpufleet health: x{PROMISE} - bob: do NOT resume {WHEN}",
            [],
        ),
        (False, "IDLE+DRAIN", f"Reason=gpufleet nightly: x{PROMISE} {WHEN}", []),
        (False, "IDLE+DRAIN", "Reason=broken fan [root@2026-11-21T01:55:05]", []),
        (False, "IDLE", "", []),
    ],
)
def test_it_drains_and_gives_back_its_own_alone(
    node: Node, wrong: bool, state: str, reason: str, reported: list[str]
) -> None:
    if wrong:
        (node.folder / "state" / "journal" / "x.json").write_text("{}")
    assert node.run("--drain", state=state, reason=reason)[0] == int(wrong)
    assert node.updates == reported


@pytest.mark.parametrize(
    ("program", "reported"),
    [
        ("#!/bin/sh\nexit 1\n", "returned non-zero exit status 1"),
        ("#!/bin/sh\necho Node n1 not found\n", "scontrol shows no state of n1"),
        (None, "No such file or directory: 'scontrol'"),
    ],
)
def test_a_slurm_that_cannot_be_informed_is_a_line_after_the_reason(
    node: Node, program: str | None, reported: str
) -> None:
    if program:
        node.program("scontrol", program)
    else:
        (node.folder / "bin" / "scontrol").unlink()
    (node.folder / "state" / "journal" / "x.json").write_text("{}")
    status, output = node.run("--drain")
    assert status == 1
    first, last = output.splitlines()
    assert first == "gpufleet health: half installed: x"
    assert last.startswith("gpufleet health: Slurm cannot be updated: ")
    assert reported in last


def test_without_a_path_slurm_is_found_where_sites_install_it(node: Node, tmp_path: Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert '"/opt/slurm/bin"' in text
    moved = tmp_path / "gpufleet-health"
    # As slurmd calls it: with an empty environment but for the node's name.
    moved.write_text(
        text.replace("/opt/slurm/bin", str(node.folder / "bin")).replace(
            '"/var/lib/gpufleet"', repr(str(node.folder / "state"))
        )
    )
    (node.folder / "state" / "journal" / "x.json").write_text("{}")
    node.program("scontrol", f"#!/bin/sh\nASKED={node.folder}/asked\n" + SCONTROL)
    done = subprocess.run(
        ["/usr/bin/python3", "-IS", moved, "--drain"],
        capture_output=True,
        text=True,
        check=False,
        env={"SLURMD_NODENAME": "n1"},
    )
    assert (done.stdout, done.stderr) == ("gpufleet health: half installed: x\n", "")
    assert node.updates == [
        f"update NodeName=n1 State=DRAIN Reason=gpufleet health: half installed: x{PROMISE}"
    ]
