"""No error repeats the secrets of an address, whichever program printed it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import receipts

from gpufleet import errors
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.schedulers import SchedulerError
from gpufleet.mirror.needs import MirrorError
from gpufleet.watch.channels import DeliveryError
from gpufleet.watch.database import HistoryError
from tools.catalog.errors import MeasureError, UnansweredError

PRINTED = {
    "Failed to fetch: https://a.example/x/?token=hidden": "Failed to fetch: https://a.example/x/?***",
    "`https://me:hidden@a.example/x`": "`https://***@a.example/x`",
    "(http://hidden@a.example:8080/x?hidden=hidden#hidden)": "(http://***@a.example:8080/x?***",
    "'ftp://a/?hidden' and 'https://b/c?hidden'": "'ftp://a/?***' and 'https://b/c?***'",
    "git+https://hidden:hidden@a/x.git?hidden": "git+https://***@a/x.git?***",
    "https://a/b?x=hidden?hidden\nhttps://c": "https://a/b?***\nhttps://c",
    "https://a.example/why? Because it is so": "https://a.example/why?*** Because it is so",
    "What is it? See https://a.example/x": "What is it? See https://a.example/x",
}


@pytest.mark.parametrize("text", PRINTED)
def test_secrets_of_addresses_are_hidden_and_nothing_else(text: str) -> None:
    assert errors.public_addresses(text) == PRINTED[text]
    # Hosts have a function of their own.
    assert receipts.public_addresses(text) == PRINTED[text]


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("{}", "{}", "{}"),
        SchedulerError("{}", "{}", "{}"),
        HistoryError("{}", "{}", "{}"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("text", PRINTED)
def test_an_error_of_the_configuration_hides_them(error: ConfigurationError, text: str) -> None:
    made = type(error)(*(each.format(text) for each in (error.message, error.where, error.remedy)))
    assert "hidden" not in f"{made} {made.message} {made.where} {made.remedy} {made.args}"


@pytest.mark.parametrize("text", PRINTED)
def test_errors_that_quote_programs_hide_them(text: str) -> None:
    mirror = MirrorError(text, text)
    made = [mirror.message, mirror.remedy, mirror.args]
    made += [MeasureError(text).args, UnansweredError(text).args, DeliveryError(text).args]
    made += [receipts.StateError(text).args]
    assert "hidden" not in str(made)


INVENTORY = {
    "gpu01": {
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "gpu_stacks": [{"tensorflow": "2.13.1"}],
        "gpu_pip_index_url": "https://hidden1:hidden2@127.0.0.1:1/simple?token=hidden3",
        "gpu_artifacts_source": "https://hidden4:hidden5@127.0.0.1:1/files?token=hidden6",
    }
}


@pytest.mark.costly
@pytest.mark.parametrize("wrong", ["", "gpu_pip_index_url", "gpu_artifacts_source", "gpu_toolkits"])
@pytest.mark.parametrize(
    "verb",
    [
        *("plan --offline", "plan", "plan --json", "verify", "verify --json", "provision"),
        *("artifacts fetch DIR", "artifacts fetch DIR --json", "artifacts verify DIR"),
        *("manifest", "rollout start", "fabric"),
    ],
)
def test_no_verb_prints_them_where_it_fails(verb: str, wrong: str, tmp_path: Path) -> None:
    values = {**INVENTORY["gpu01"]}
    if wrong:
        # What is refused is quoted.
        values[wrong] = [values.get(wrong, values["gpu_pip_index_url"])]
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"gpu01": values}}}))
    (tmp_path / "DIR").mkdir()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("gpufleet")), *verb.split(), "-i", str(inventory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode or "--offline" in verb
    assert "hidden" not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        assert path == inventory or not path.is_file() or b"hidden" not in path.read_bytes()
