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


def said(tmp_path: Path, engine: str, line: list[str], **environment: str) -> list[str]:
    """What the engine is called with when somebody calls nvidia-docker so."""
    text = jinja2.Template((ROLE / "templates/nvidia-docker.sh.j2").read_text()).render(
        __nvidia_docker_engine=engine
    )
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
    assert said(tmp_path, engine, words) == [*words[:at], *ADDED[engine], *words[at:]]


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
    assert said(tmp_path, engine, line.split()) == line.split()


def test_words_with_blanks_and_patterns_stay_whole(tmp_path: Path, engine: str) -> None:
    words = ["run", "-e", "A=1 2", "image", "sh", "-c", "echo * $HOME 'x'", ""]
    assert said(tmp_path, engine, words) == [words[0], *ADDED[engine], *words[1:]]


@pytest.mark.parametrize(
    ("chosen", "docker", "podman"),
    [
        ("0,1", ["--gpus", '"device=0,1"'],
         ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("all", *ADDED.values()),
        ("", *ADDED.values()),
        ("none", [], []),
    ],
)  # fmt: skip
def test_nv_gpu_chooses_as_it_did(
    tmp_path: Path, chosen: str, docker: list[str], podman: list[str]
) -> None:
    for engine, added in (("docker", docker), ("podman", podman)):
        assert said(tmp_path, engine, ["run", "image"], NV_GPU=chosen) == ["run", *added, "image"]


# -- distributions --------------------------------------------------------------------------------


def variables(family: str, release: str) -> dict[str, Any]:
    """What the role reads for a distribution: the family's facts, then its release's."""
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
