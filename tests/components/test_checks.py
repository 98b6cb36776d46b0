"""All checks: each is proven by a fault; what hung or was not observed is reported as that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.judge import judge, table
from tests.support.healthy_host import Document, data, verdicts
from tests.support.host_parts import cudnn_tree, stack


def test_a_toolkit_behind_a_link_is_its_own(plan: Document, snapshot: Document) -> None:
    there = "/data/cuda-11.8"
    data(snapshot, "toolkits")["trees"][0]["realpath"] = there
    for entry in data(snapshot, "linker")["cache"]:
        entry["realpath"] = entry["realpath"].replace("/usr/local/cuda-11.8", there)
    framework = stack(snapshot)["framework"]
    for row in (framework, *data(snapshot, "receipts")["receipts"]):
        key = "mapped" if row is framework else "libraries"
        row[key] = [path.replace("/usr/local/cuda-11.8", there) for path in row[key]]
    found = verdicts(plan, snapshot)
    assert (found["linker.cache"], found["stack.mapped"]) == ("PASS", "PASS")


def test_a_library_mapped_under_another_name_is_a_stranger(
    plan: Document, snapshot: Document
) -> None:
    framework = stack(snapshot)["framework"]
    framework["mapped"] = [path for path in framework["mapped"] if "libcudart" not in path]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.mapped"]["verdict"] == "FAIL"
    assert "opened libcudart.so.11.0" in found["stack.mapped"]["cause"]


@pytest.mark.parametrize(
    ("check", "place"),
    [
        ("stack.python", lambda snapshot: stack(snapshot)["start"]),
        ("stack.libraries", lambda snapshot: stack(snapshot)["binding"]),
        ("cudnn.present", lambda snapshot: cudnn_tree(snapshot)["loaded"][0]),
    ],
)
@pytest.mark.parametrize("more", [{"hung": True}, {}], ids=["1.1", "1.0"])
def test_what_gave_no_answer_hung_and_is_not_called_broken(
    plan: Document,
    snapshot: Document,
    check: str,
    place: Callable[[Document], Document],
    more: Document,
) -> None:
    """Release 1.0 says so in the words of the error alone."""
    place(snapshot).pop("hung", None)
    place(snapshot).update(error="no answer within 4 s", **more)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}[check]
    assert (found["verdict"], "gave no answer" in found["cause"]) == ("HUNG", True)
    assert "state D" in found["remedy"]


@pytest.mark.parametrize(("hung", "verdict"), [(True, "HUNG"), (False, "FAIL")])
def test_a_compiler_hung_where_the_probe_says_so_whatever_its_words(
    plan: Document, snapshot: Document, hung: bool, verdict: str
) -> None:
    data(snapshot, "toolkits")["trees"][0].update(
        nvcc=None, nvcc_error="no answer within 4 s", nvcc_hung=hung
    )
    assert verdicts(plan, snapshot)["toolkit.present"] == verdict


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ("/usr/local", "INCONCLUSIVE"),
        ("/usr/local/cuda-11.8/lib64", "INCONCLUSIVE"),
        ("/var/lib/gpufleet/receipts", "INCONCLUSIVE"),
        ("/proc/1/environ", "PASS"),
        ("/usr/local/cuda-9.0", "PASS"),
        ("/boot/grub/grub.cfg", "PASS"),
        ("holders", "PASS"),
    ],
)
def test_what_was_not_seen_matters_where_the_plan_speaks_about_it(
    plan: Document, snapshot: Document, what: str, verdict: str
) -> None:
    snapshot["unseen"] = [{"section": "toolkits", "what": what, "because": "no right"}]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    probed = found.pop("host.probe")
    assert probed["verdict"] == verdict
    assert f"{what} (no right)" in probed["evidence"]
    assert {check["verdict"] for check in found.values()} == {"PASS", "NOT-DECLARED"}


def test_the_catalogue_says_what_each_check_does_to_a_host() -> None:
    """A check that runs on other people's GPUs must not be called a reading."""
    effects = {check.id: check.effect for check in (*CHECKS.values(), *PAIR_CHECKS.values())}
    assert effects["driver.cuda"] == "reads"
    assert effects["toolkit.cublas"] == "computes on each GPU"
    assert effects["gpu.sustained"] == "loads each GPU for minutes"
    assert effects["containers.gpus"].startswith("starts a container")
    assert effects["pair.nccl"] == "computes on the GPUs of both hosts"
    reading = {name for name, effect in effects.items() if effect == "reads"}
    assert not reading & {check.id for check in CHECKS.values() if "compute" in check.reads}
    text = table.markdown()
    assert all(f"| {effect} |" in text for effect in effects.values())
