# Apache-2.0, see LICENSE
"""How artifacts reach the hosts, and how many bytes leave the control machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.mirror.delivery import delivery, sentences

GB = 10**9


def planned(
    *lacks: str,
    size: int | None = 2 * GB,
    probed: bool = True,
    action: str = "install",
    problems: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The plan of a host with a toolkit with a patch and a cuDNN, of which it lacks some."""
    ids = {"toolkit": "11.8", "cudnn": "11.8-8"}
    return {
        "toolkits": [
            {
                "short": "11.8",
                "artifact": {"file": "cuda.run", "size_bytes": size},
                "patches": [{"file": "patch.run", "size_bytes": 10**8}],
            }
        ],
        "cudnn": [{"id": "11.8-8", "artifact": {"file": "cudnn.tar.xz", "size_bytes": None}}],
        "problems": list(problems),
        "changes": [{"what": what, "id": ids[what], "action": action} for what in lacks]
        if probed
        else None,
    }


def output(plans: dict[str, dict[str, Any]], source: str = "") -> tuple[Any, str]:
    found = delivery(plans, dict.fromkeys(plans, source))
    return found, "\n".join(sentences(found))


def fleet(count: int, **more: Any) -> dict[str, dict[str, Any]]:
    return {f"gpu{number:02}": planned("toolkit", **more) for number in range(count)}


def test_fifty_hosts_without_a_mirror_are_reported_what_leaves_the_control_machine() -> None:
    found, text = output(fleet(50))
    assert found["control_bytes"] == 50 * 2_100_000_000
    assert text.startswith(
        "Artifacts: 2.1 GB to each of 50 hosts, copied from this machine: 105.0 GB leave it."
    )
    assert "docs/how-to/many-hosts.md" in text


@pytest.mark.parametrize(("count", "advised"), [(1, False), (10, False), (11, True)])
def test_another_way_is_advised_for_more_than_ten_hosts(count: int, advised: bool) -> None:
    found, text = output(fleet(count))
    assert (found["advice"] is not None, "many-hosts" in text) == (advised, advised)


def test_hosts_with_a_mirror_take_nothing_from_the_control_machine() -> None:
    found, text = output(fleet(50), "http://10.0.0.5:8090")
    assert (found["control_bytes"], found["advice"]) == (0, None)
    assert "fetched from http://10.0.0.5:8090: none leaves this machine" in text


def test_a_mirror_s_password_is_not_shown() -> None:
    found, text = output(fleet(1), "https://me:secret@mirror/nvidia")
    assert "secret" not in json.dumps(found) + text and "https://***@mirror/nvidia" in text


def test_a_size_that_the_catalog_does_not_have_is_printed_to_be_unknown() -> None:
    found, text = output({"a": planned("cudnn"), "b": planned("toolkit", "cudnn")})
    assert found["control_bytes"] is None
    assert "an unknown size to 1 host" in text and "at least 2.1 GB to 1 host" in text
    assert "The catalog has no size of cudnn.tar.xz." in text
    assert "Artifacts, all hosts: at least 2.1 GB leave this machine." in text
    # A mirror's host costs nothing, known or not.
    assert output({"a": planned("cudnn")}, "https://mirror")[0]["control_bytes"] == 0


@pytest.mark.parametrize(
    "plan",
    [
        planned(),
        planned("toolkit", action="adopt"),
        planned("toolkit", action="remove"),
        planned("toolkit", action="refuse"),
        planned("toolkit", problems=("refused",)),
    ],
)
def test_a_host_that_gets_no_file_is_not_counted(plan: dict[str, Any]) -> None:
    assert output({"a": plan}) == ({"groups": [], "control_bytes": 0, "advice": None}, "")


def test_a_host_that_was_not_probed_counts_in_full_and_it_is_printed() -> None:
    found, text = output({"a": planned(size=None, probed=False)})
    (group,) = found["groups"]
    assert group["unknown"] == ["cuda.run", "cudnn.tar.xz"] and not group["probed"]
    assert "Not probed: what is installed already is not subtracted." in text


def test_hosts_that_differ_are_distinguished_and_summed() -> None:
    found, text = output({**fleet(2), "other": planned("toolkit", size=GB)})
    assert [group["hosts"] for group in found["groups"]] == [["gpu00", "gpu01"], ["other"]]
    assert found["control_bytes"] == 5_300_000_000
    assert "Artifacts, all hosts: 5.3 GB leave this machine." in text


def test_plan_prints_it_and_has_it_in_its_document(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "gpu_hosts: {hosts: {a: , b: }, vars: {gpu_toolkits: ['12.4'],"
        " gpu_accept_nvidia_eula: true,"
        " gpu_artifacts_source: /srv/mirror}}\n"
    )
    call = ["plan", "-i", str(inventory), "--offline"]
    main([*call, "--json"])
    found = json.loads(capsys.readouterr().out)["artifacts"]
    assert found["groups"][0]["hosts"] == ["a", "b"] and found["groups"][0]["way"] == "copy"
    main(call)
    assert "to each of 2 hosts, copied from this machine" in capsys.readouterr().out


def test_a_host_that_only_lacks_links_gets_no_file() -> None:
    plan = planned("cudnn", action="repair")
    assert output({"lab1": plan})[0]["groups"]
    plan["changes"][0]["step"] = "links"
    assert output({"lab1": plan})[0]["groups"] == []
