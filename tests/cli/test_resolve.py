"""The command: `python -m gpufleet resolve`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpufleet.cli.main import main as run
from gpufleet.components.resolver import release
from gpufleet.frameworks import FRAMEWORKS, FrameworkId

ROOT = Path(__file__).parents[2]


def main(args: list[str]) -> int:
    """`gpufleet resolve`; its exit status."""
    return run(["resolve", *args])


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tensorflow", "2.13.1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == release("tensorflow", "2.13.1")
    assert printed.err == ""


def test_problems_are_json_too_with_status_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tensorflow", "1.4.0", "--cudnn", "5.1", "--json"]) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert set(problem) == {"code", "message", "where", "remedy"}
    assert problem["code"] == "cudnn-mismatch"


def test_every_option_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "--cuda": "10.0",
        "--cudnn": "7.6",
        "--driver": "390",
        "--gpu": "K80",
        "--python": "2.7",
    }
    words = [word for pair in options.items() for word in pair]
    assert main(["--tensorflow", "2.17.1", *words, "--json"]) == 4
    places = {each["where"] for each in json.loads(capsys.readouterr().out)["problems"]}
    assert {"--cuda", "--cudnn", "--driver", "--python", "--tensorflow"} <= places
    assert main(["--tensorflow", "2.13.1", "--gpu", "nonsense", "--json"]) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["where"] == "--gpu"


def test_people_read_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tensorflow", "2.13.1", "--gpu", "V100", "--driver", "535"]) == 0
    printed = capsys.readouterr().out
    for word in ("TensorFlow 2.13.1", "11.8", "8.6.0.163", "450.80.02", "libcudnn.so.8"):
        assert word in printed


def test_people_read_the_notes_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--pytorch",
        "2.6.0",
        "--cuda",
        "11.8",
        "--index",
        "https://download.pytorch.org/whl/cu118",
    ]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Note: pytorch-2.6.0: the wheel of this variant was not read" in text
    assert main([*words, "--json"]) == 0
    assert "was not read" in json.loads(capsys.readouterr().out)["notes"][0]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (
            ["2.6.0", "--cuda", "11.8", "--index", "https://download.pytorch.org/whl/cu118"],
            "from nvidia-* wheels",
        ),
        (["1.11.0"], "inside of its wheel"),
    ],
)
def test_people_read_where_libraries_without_names_are(
    words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--pytorch", *words]) == 0
    assert f"Libraries {reported}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("framework", "version", "cuda"),
    [
        ("tensorflow", "2.17.1", None),
        ("tensorflow", "2.17.1", "pip"),
        ("pytorch", "2.6.0", None),
        ("jax", "0.5.3", None),
        ("jax", "0.5.3", "12.6"),
    ],
)
def test_notes_are_not_about_a_host(framework: FrameworkId, version: str, cuda: str | None) -> None:
    assert release(framework, version, cuda=cuda)["notes"] == []


def test_a_problem_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--jax", "0.6.2", "--cuda", "12.8", "--cudnn", "9.10.0", "--json"]
    assert main(words) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["remedy"] == "declare cuDNN 9.10.1 or newer in --cudnn"
    assert "gpu_stacks" not in str(problem)


def test_a_name_of_a_gpu_may_be_in_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pytorch", "2.8.0", "--gpu", "RTX4090"]) == 0
    assert main(["--pytorch", "2.6.0", "--gpu", "RTX5090"]) == 4
    assert "RTX5090 (compute capability 12.0) is too new" in capsys.readouterr().err


def test_people_read_the_reason_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tensorflow", "9.9"]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--tensorflow: no TensorFlow 9.9" in printed.err
    assert "2.21.0" in printed.err


@pytest.mark.parametrize("words", [[], ["resolve"], ["--tensorflow"], ["what"]])
def test_wrong_usage_is_status_4(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 4
    assert "gpufleet resolve --help" in capsys.readouterr().err


def test_it_answers_from_a_fresh_interpreter_without_delay() -> None:
    command = [sys.executable, "-m", "gpufleet", "resolve", "--tensorflow", "2.17.1", "--json"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["cuda"] == "12.3"
    assert time.monotonic() - started < 3  # a tenth of that on a quiet machine


WRONG = [
    "",
    " ",
    "\t\n",
    "None",
    "-",
    "==",
    "2..6",
    "2.6\n.0",
    "é",
    "²",
    "\u202e2.6",
    "٢.٦",
    "9" * 5000,
]
WRONG += [
    "1." * 400,
    "x" * 100_000,
    "'; rm -rf /",
    "{{ 7 }}",
    "latest",
    "2.6.0+",
    "+cu118",
    "[",
    "\ud800",
]


@pytest.mark.parametrize("text", WRONG, ids=lambda text: ascii(text)[:20])
def test_a_wrong_value_of_any_option_is_refused_in_short(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [[f"--{framework}={text}"] for framework in FRAMEWORKS]
    options = ("cuda", "cudnn", "driver", "gpu", "python")
    for framework, about in FRAMEWORKS.items():
        commands += [[f"--{framework}={about.example}", f"--{each}={text}"] for each in options]
    for words in commands:
        assert main(words) == 4, words
        printed = capsys.readouterr()
        assert printed.out == ""
        # One line says what is wrong and where, one what to do.
        assert len(printed.err.splitlines()) == 2, printed.err
        assert len(printed.err) < 1200, printed.err


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_blanks_around_a_value_are_ignored(
    framework: FrameworkId, capsys: pytest.CaptureFixture[str]
) -> None:
    about = FRAMEWORKS[framework]
    assert main([f"--{framework}", f" {about.example} ", "--cuda", " 12.4 ", "--json"]) in {0, 4}
    assert main([f"--{framework}", f" {about.example}\n", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.partition("\n}\n")[2])
    assert answer[framework] == about.example


@pytest.mark.parametrize(
    ("words", "where", "printed"),
    [
        (["--pytorch", "==2.6.0"], "--pytorch", 'such as "2.6.0"'),
        (["--pytorch", "2.6.0", "--python", "3.13t"], "--python", "free-threaded"),
        (["--pytorch", "2.6.0", "--driver", "579.99"], "--driver", "nearest: 580, 575"),
    ],
)
def test_what_was_meant_is_named(
    words: list[str], where: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["where"] == where
    assert printed in problem["message"] + problem["remedy"]
