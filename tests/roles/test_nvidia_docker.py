"""The nvidia-docker command: what it adds, and when it leaves a command alone; what differs by
distribution."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROLE = Path(__file__).resolve().parents[2] / "roles" / "nvidia_docker"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def output(tmp_path: Path, engine: str, line: list[str], **environment: str) -> list[str]:
    """The arguments of the engine when somebody calls nvidia-docker so."""
    text = jinja2.Template((ROLE / "templates/nvidia-docker.sh.j2").read_text()).render(
        __nvidia_docker_engine=engine
    )
    # Not this machine's own driver and nodes.
    text = text.replace("/dev/nvidia", f"{tmp_path}/dev/nvidia")
    text = text.replace("/proc/driver", f"{tmp_path}/proc/driver")
    wrapper, fake = tmp_path / "nvidia-docker", tmp_path / engine
    wrapper.write_text(text)
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    wrapper.chmod(0o755)
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [wrapper, *line], env={"PATH": path, **environment}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


ADDED = {"docker": ["--gpus", "all"], "podman": ["--device", "nvidia.com/gpu=all"]}


@pytest.mark.parametrize(
    "line",
    [
        "run --name x -p 6006:6006 -v /data:/data tensorflow/tensorflow:latest-gpu",
        "run tensorflow/tensorflow:latest-gpu train.py --gpus 2",
        "run -it --rm image",
        "run -itp 8888:8888 image --runtime fast",
        "run -p8888:8888 image run --gpus all",
        "run --env=A=1 -e B=2 --label --gpus image",
        "create --name x image",
        "container run image",
        "--log-level debug run image",
        "-H tcp://host:2375 run image",
        "-D run image",
    ],
)
def test_run_and_create_get_the_gpus(tmp_path: Path, engine: str, line: str) -> None:
    words = line.split()
    at = next(i for i, word in enumerate(words) if word in {"run", "create"}) + 1
    assert output(tmp_path, engine, words) == [*words[:at], *ADDED[engine], *words[at:]]


@pytest.mark.parametrize(
    "line",
    [
        "ps --all",
        "",
        "--version",
        "cp x:/run /tmp/run",
        "exec x run --name y",
        "run --gpus 1 image",
        "run --gpus=device=0 image",
        "run --name x --runtime nvidia image",
        "run --runtime=nvidia image",
        "run --device nvidia.com/gpu=0 image",
        "run --device=nvidia.com/gpu=0 image",
        "image run",
    ],
)
def test_everything_else_is_left_alone(tmp_path: Path, engine: str, line: str) -> None:
    assert output(tmp_path, engine, line.split()) == line.split()


def test_words_with_blanks_and_patterns_stay_whole(tmp_path: Path, engine: str) -> None:
    words = ["run", "-e", "A=1 2", "image", "sh", "-c", "echo * $HOME 'x'", ""]
    assert output(tmp_path, engine, words) == [words[0], *ADDED[engine], *words[1:]]


@pytest.mark.parametrize(
    ("chosen", "docker", "podman"),
    [
        ("0,1", ["--gpus", '"device=0,1"'],
         ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("all", *ADDED.values()),
        ("", *ADDED.values()),
        ("0 1", ["--gpus", '"device=0,1"'],
         ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("none", ["--env", "NVIDIA_VISIBLE_DEVICES=void"], []),
    ],
)  # fmt: skip
def test_nv_gpu_chooses_as_it_did(
    tmp_path: Path, chosen: str, docker: list[str], podman: list[str]
) -> None:
    for engine, added in (("docker", docker), ("podman", podman)):
        assert output(tmp_path, engine, ["run", "image"], NV_GPU=chosen) == ["run", *added, "image"]


def selects(gpus: str, engine: str) -> list[str]:
    """The options that give these GPUs to a container."""
    if not gpus:
        return ["--env", "NVIDIA_VISIBLE_DEVICES=void"] if engine == "docker" else []
    if engine == "docker":
        return ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']
    return [word for gpu in gpus.split(",") for word in ("--device", f"nvidia.com/gpu={gpu}")]


UUID = "GPU-8f2c9d1e-0000-1111-2222-333344445555"
MIG = "MIG-GPU-8f2c9d1e-0000-1111-2222-333344445555/1/0"
FORMS = (
    "-e {0}",
    "-e{0}",
    "-e={0}",
    "-ite {0}",
    "--env {0}",
    "--env={0}",
    "-e NAME",
    "--env-file F",
    "--env-file=F",
    "shell",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("1", "1"),
        ("0,1", "0,1"),
        ("0 1", "0,1"),
        (UUID, UUID),
        (MIG, MIG),
        ("0:1", "0:1"),
        ("all", "all"),
        ("void", ""),
        ("none", ""),
        ("", ""),
    ],
)
def test_visible_devices_select(
    tmp_path: Path, engine: str, form: str, value: str, gpus: str
) -> None:
    """A container that asked for one card got all of them."""
    text = f"NVIDIA_VISIBLE_DEVICES={value}"
    file, environment = tmp_path / "variables", {}
    file.write_text(f"# NVIDIA_VISIBLE_DEVICES=all\nA=1\n  {text}")
    if form in {"shell", "-e NAME"}:
        environment = {"NVIDIA_VISIBLE_DEVICES": value}
    options = [
        word.replace("NAME", "NVIDIA_VISIBLE_DEVICES").replace("F", str(file))
        if "{0}" not in word
        else word.format(text)
        for word in form.split()
        if word != "shell"
    ]
    line = ["run", *options, "--rm", "image", "-e", "NVIDIA_VISIBLE_DEVICES=all"]
    assert output(tmp_path, engine, line, **environment) == [
        "run",
        *selects(gpus, engine),
        *line[1:],
    ]


def test_a_file_with_windows_line_ends_selects(tmp_path: Path, engine: str) -> None:
    file = tmp_path / "variables"
    file.write_bytes(b"\xef\xbb\xbfNVIDIA_VISIBLE_DEVICES=1\r\nA=1\r\n")
    line = ["run", "--env-file", str(file), "image"]
    assert output(tmp_path, engine, line) == ["run", *selects("1", engine), *line[1:]]


def test_an_option_selects_before_a_file_and_a_file_before_the_shell(
    tmp_path: Path, engine: str
) -> None:
    file = tmp_path / "variables"
    file.write_text("NVIDIA_VISIBLE_DEVICES=1\n")
    name = "NVIDIA_VISIBLE_DEVICES"
    shell = {"NV_GPU": "2", name: "3"}
    for options, gpus in (
        (["-e", f"{name}=5", "-e", f"{name}=0", "--env-file", str(file)], "0"),
        (["--env-file", str(file)], "1"),
        ([], "2"),
    ):
        assert output(tmp_path, engine, ["run", *options, "image"], **shell) == [
            "run",
            *selects(gpus, engine),
            *options,
            "image",
        ]
    assert output(tmp_path, engine, ["run", "image"], NV_GPU="", **{name: "3"}) == [
        "run",
        *selects("3", engine),
        "image",
    ]


@pytest.mark.parametrize(
    "value",
    ["al", "0;1", "*", "0,all", "GPU", "0-1", "1:", ",", " ", "0\n1", "$(id)", "GPU-*", "-1"],
)
@pytest.mark.parametrize("form", ["-e", "NV_GPU"])
def test_an_unknown_selection_is_refused(
    tmp_path: Path, engine: str, value: str, form: str
) -> None:
    options = ["-e", f"NVIDIA_VISIBLE_DEVICES={value}"] if form == "-e" else []
    with pytest.raises(subprocess.CalledProcessError) as refused:
        output(tmp_path, engine, ["run", *options, "image"], **{} if options else {"NV_GPU": value})
    assert refused.value.returncode == 125
    assert refused.value.stdout == ""
    assert f"is '{value}'. Give all, none, void" in refused.value.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-e NVIDIA_VISIBLE_DEVICES", "the shell has no variable"),
        ("--env-file nowhere", "not a regular file"),
        ("--env-file /dev/null", "not a regular file"),
        ("-e NVIDIA_IMEX_CHANNELS=GPU-1", "NVIDIA_IMEX_CHANNELS is 'GPU-1'"),
    ],
)
def test_a_selection_that_cannot_be_read_is_refused(
    tmp_path: Path, engine: str, options: str, message: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        output(tmp_path, engine, ["run", *options.split(), "image"])
    assert message in refused.value.stderr
    asked = ["run", *options.split(), "--runtime", "nvidia", "image"]
    assert output(tmp_path, engine, asked) == asked


@pytest.mark.parametrize(
    ("options", "shell", "channels"),
    [
        ("-e NVIDIA_IMEX_CHANNELS=0", {}, ["channel0"]),
        ("--env NVIDIA_IMEX_CHANNELS=1,0", {}, ["channel1", "channel0"]),
        ("--env=NVIDIA_IMEX_CHANNELS=all", {}, ["channel0", "channel1"]),
        ("-e NVIDIA_IMEX_CHANNELS", {"NVIDIA_IMEX_CHANNELS": "1"}, ["channel1"]),
        ("-e NVIDIA_IMEX_CHANNELS=void", {}, []),
        ("-e A=1", {"NVIDIA_IMEX_CHANNELS": "1"}, []),
    ],
)
def test_imex_channels_are_named_to_the_engine(
    tmp_path: Path, engine: str, options: str, shell: dict[str, str], channels: list[str]
) -> None:
    """A channel that only NVIDIA's hook allows is denied after a daemon-reload."""
    directory = tmp_path / "dev/nvidia-caps-imex-channels"
    directory.mkdir(parents=True)
    for name in ("channel0", "channel1"):
        (directory / name).symlink_to("/dev/null")
    nodes = [word for name in channels for word in ("--device", f"{directory}/{name}")]
    line = ["run", *options.split(), "image"]
    assert output(tmp_path, engine, line, **shell) == ["run", *ADDED[engine], *nodes, *line[1:]]


@pytest.mark.parametrize("chosen", ["all", "MIG-1f"])
def test_mig_instances_are_named_with_all_gpus(tmp_path: Path, chosen: str) -> None:
    """Not the capabilities that configure and monitor MIG: --gpus all does not give these. Nor what
    no program computes with: without it the container would not start again."""
    capabilities = tmp_path / "proc/driver/nvidia/capabilities"
    for name, minor in (
        ("mig/config", 1),
        ("mig/monitor", 2),
        ("gpu0/mig/gi1/access", 12),
        ("gpu0/mig/gi1/ci0/access", 13),
        ("gpu0/mig/gi2/access", 21),
    ):
        (capabilities / name).parent.mkdir(parents=True, exist_ok=True)
        (capabilities / name).write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in (
        "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0", "nvidia-fs0",
        *(f"nvidia-caps/nvidia-cap{n}" for n in (1, 2, 12, 13)),
    ):  # fmt: skip
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    nodes = (
        [
            word
            for name in (
                "nvidiactl",
                "nvidia-uvm",
                "nvidia0",
                "nvidia-caps/nvidia-cap12",
                "nvidia-caps/nvidia-cap13",
            )
            for word in ("--device", f"{tmp_path}/dev/{name}")
        ]
        if chosen == "all"
        else []
    )
    assert output(tmp_path, "docker", ["run", "image"], NV_GPU=chosen) == [
        "run",
        *selects(chosen, "docker"),
        *nodes,
        "image",
    ]


# -- distributions --------------------------------------------------------------------------------


def variables(family: str, release: str) -> dict[str, Any]:
    """The variables of the role for a distribution: the family's facts, then its release's."""
    found: dict[str, Any] = {}
    for name in (family, release):
        path = ROLE / "vars" / f"{name}.yml"
        found |= yaml.safe_load(path.read_text()) if path.exists() else {}
    return found


@pytest.mark.parametrize(
    ("family", "release", "docker", "podman"),
    [
        ("Debian", "Debian_11", ["docker.io"], None),
        ("Debian", "Debian_12", ["docker.io"], "podman"),
        ("Debian", "Debian_13", ["docker.io", "docker-cli"], "podman"),
        ("Debian", "Ubuntu_20", ["docker.io"], None),
        ("Debian", "Ubuntu_22", ["docker.io"], None),
        ("Debian", "Ubuntu_24", ["docker.io"], "podman"),
        ("RedHat", "RedHat_8", [], "podman"),
        ("RedHat", "Rocky_9", [], "podman"),
        ("RedHat", "Rocky_10", [], "podman"),
    ],
)
def test_what_each_distribution_has(
    family: str, release: str, docker: list[str], podman: str | None
) -> None:
    found = variables(family, release)
    assert found["__nvidia_docker_packages_docker"] == docker
    assert found["__nvidia_docker_packages_docker_repo"][0] == "docker-ce"
    assert (found["__nvidia_docker_packages_podman"] or [None])[0] == podman
    names = [entry["name"] for entry in found["__nvidia_docker_repositories"]]
    assert names == ["gpufleet-nvidia-container-toolkit", "gpufleet-docker"]


# -- the unit that describes the cards -------------------------------------------------------------

UNIT = (ROLE / "files/gpufleet-containers.service").read_text()
STARTS = [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith("ExecStart=")]


def test_the_specification_waits_for_no_link() -> None:
    """`create-dev-char-symlinks --create-all` fails where nvidia-uvm is not loaded."""
    required = [line for line in STARTS if not line.startswith("-")]
    assert not [line for line in required if "create-" in line]
    assert "cdi generate" in required[-1]


def test_a_node_in_dev_starts_no_unit() -> None:
    """Programs of the driver's create /dev/nvidiactl also where no driver is loaded."""
    conditions = [line for line in UNIT.splitlines() if line.startswith("Condition")]
    assert conditions == ["ConditionPathExists=/proc/driver/nvidia/version"]


@pytest.mark.parametrize(("failures", "calls", "status"), [(0, 1, 0), (2, 3, 0), (9, 4, 1)])
def test_the_specification_is_tried_again(
    tmp_path: Path, failures: int, calls: int, status: int
) -> None:
    program = tmp_path / "nvidia-ctk"
    program.write_text(
        f"#!/bin/sh\necho >>{tmp_path}/calls\n[ $(wc -l <{tmp_path}/calls) -gt {failures} ]\n"
    )
    program.chmod(0o755)
    script = STARTS[-1].partition("-c '")[2].rstrip("'").replace("sleep $wait", ":")
    done = subprocess.run(
        ["sh", "-c", script.replace("/usr/bin/nvidia-ctk", str(program))], check=False
    )
    assert done.returncode == status
    assert len((tmp_path / "calls").read_text().splitlines()) == calls
