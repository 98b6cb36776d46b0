"""Changes: what a host lacks of its plan, told from documents alone."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.repairs import steps_of
from gpufleet.components.resolver import resolve, with_locks
from tests.support.host_documents import (
    converged,
    declaration,
    default_link,
    mangled,
    receipt,
    section,
    snapshot,
)

Row = dict[str, Any]

STACK = "tensorflow-2.13.1"
CONF = "/etc/ld.so.conf.d/gpufleet-cuda.conf"
LIB = "/usr/local/cuda-11.8/lib64"


@pytest.fixture
def plan() -> Row:
    return resolve(declaration("2.13.1"), snapshot())


@pytest.fixture
def host(plan: Row) -> Row:
    return converged(plan)


def found(plan: Row, host: Row | None) -> list[tuple[str, str, str]]:
    return [(row["what"], row["id"], row["action"]) for row in changes(plan, host)]


def only(plan: Row, host: Row) -> Row:
    rows = changes(plan, host)
    assert len(rows) == 1, rows
    return rows[0]


EVERYTHING = [
    ("toolkit", "11.8", "install"),
    ("cudnn", "11.8-8", "install"),
    ("stack", STACK, "install"),
    ("environment", "files", "install"),
    ("default_link", "/usr/local/cuda", "install"),
    ("linker", CONF, "install"),
]


def test_a_bare_host_lacks_everything(plan: Row) -> None:
    assert found(plan, snapshot()) == EVERYTHING


def test_a_host_that_was_not_reached_is_not_converged(plan: Row) -> None:
    assert found(plan, None) == [(what, name, "unread") for what, name, _ in EVERYTHING]
    assert all("could not be read" in row["because"] for row in changes(plan, None))


@pytest.mark.parametrize(
    "declared",
    [
        declaration("2.13.1"),
        declaration("1.2.1", "1.4.0", "2.13.1", gpu_toolkits=["12.4.1"]),
        declaration("2.15.1", "2.18.0", gpu_cuda_default="12.2"),
        declaration({"tensorflow": "2.21.0", "cuda": "pip"}),
        declaration(
            {"pytorch": "2.6.0"},
            {"pytorch": "1.11.0"},
            {"jax": "0.5.3"},
            {"jax": "0.5.3", "cuda": "local", "name": "local"},
        ),
        declaration("1.0.0", "1.4.0", gpu_expect={"count": 0}),
        declaration(gpu_toolkits=["11.8"]),
        {},
    ],
)
def test_a_converged_host_lacks_nothing(declared: Row) -> None:
    plan = resolve(declared)
    assert changes(plan, converged(plan)) == []


def test_a_driver_s_library_that_a_stack_is_linked_against_is_a_change() -> None:
    plan = resolve(declaration("1.4.0", gpu_expect={"count": 0}))
    host = converged(plan)
    section(host, "driver")["library"] = None
    row = only(plan, host)
    assert (row["what"], row["id"], row["action"]) == ("driver_library", "libcuda.so.1", "install")
    assert "tensorflow-1.4.0 cannot be imported without it" in row["because"]
    host["sections"]["driver"] = {"state": "hung", "data": None, "error": "deadline"}
    assert only(plan, host)["action"] == "unread"


@pytest.mark.parametrize(
    ("applied", "reported"),
    [
        ([], "no patch is applied, cuda_8.0.61.2_linux-run is planned"),
        ([{"file": "cuda_8.0.61.2_linux-run", "checksum": "sha256:00"}], "another file"),
    ],
)
def test_a_patch_that_is_not_applied_is_a_repair(applied: list[Row], reported: str) -> None:
    plan = resolve(declaration(gpu_toolkits=["8.0"]))
    host = converged(plan)
    receipt(host, "toolkit", "8.0")["patches"] = applied
    row = only(plan, host)
    assert (row["what"], row["action"]) == ("toolkit", "repair")
    assert reported in row["because"]


SECTIONS = {
    "receipts": {"toolkit", "cudnn", "stack", "environment"},
    "toolkits": {"toolkit", "default_link"},
    "cudnn": {"cudnn"},
    "linker": {"linker"},
    "stacks": {"stack"},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_hung_never_counts_as_converged(name: str, plan: Row, host: Row) -> None:
    host["sections"][name] = {"state": "hung", "data": None, "error": "deadline"}
    rows = changes(plan, host)
    assert {row["what"] for row in rows} == SECTIONS[name]
    for row in rows:
        # Nobody knows that there is something to do.
        assert row["action"] == "unread"
        assert row["because"] == (
            f"the host's {name} could not be read (deadline; --deadline S waits longer)"
        )


def test_a_judged_section_that_is_not_of_its_type_was_not_read(plan: Row, host: Row) -> None:
    section(host, "cudnn")["trees"][0]["libraries"] = "libcudnn.so.8"
    row = only(plan, host)
    assert (row["what"], row["action"]) == ("cudnn", "unread")
    assert "data.trees[0].libraries is 'libcudnn.so.8', and should be a list" in row["because"]


@pytest.mark.parametrize(
    ("kind", "identity"), [("toolkit", "11.8"), ("cudnn", "11.8-8"), ("stack", STACK)]
)
def test_an_unfinished_installation_is_finished(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    entry = {"kind": kind, "id": identity, "state": "installing", "started": "2026-11-20"}
    section(host, "receipts")["journal"] = [entry]
    row = only(plan, host)
    assert (row["what"], row["id"], row["action"]) == (kind, identity, "finish")
    assert "installing since 2026-11-20" in row["because"]


@pytest.mark.parametrize(
    ("kind", "identity"), [("toolkit", "11.8"), ("cudnn", "11.8-8"), ("stack", STACK)]
)
def test_changed_files_and_other_versions_are_repaired(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    receipt(host, kind, identity)["changed"] = [{"path": "a.so", "what": "missing"}] * 3
    row = only(plan, host)
    assert (row["what"], row["id"], row["action"]) == (kind, identity, "repair")
    assert row["because"].endswith("a.so (missing) and 2 more")
    receipt(host, kind, identity).update(changed=[], version="1.2.3")
    row = only(plan, host)
    assert row["action"] == "repair"
    assert row["because"].startswith("1.2.3 is installed")


@pytest.mark.parametrize(("kind", "identity"), [("toolkit", "11.8"), ("cudnn", "11.8-8")])
def test_another_source_file_is_a_repair(kind: str, identity: str, plan: Row, host: Row) -> None:
    receipt(host, kind, identity)["source"]["sha256"] = "f" * 64
    assert only(plan, host)["action"] == "repair"


@pytest.mark.parametrize(("kind", "identity"), [("toolkit", "11.8"), ("stack", STACK)])
def test_what_we_did_not_install_is_refused(kind: str, identity: str, plan: Row, host: Row) -> None:
    rows = section(host, "receipts")["receipts"]
    rows.remove(receipt(host, kind, identity))
    # gpufleet's own file for the linker would show that it is a lost receipt.
    section(host, "linker")["files"] = []
    row = changes(plan, host)[0]
    assert (row["what"], row["id"], row["action"]) == (kind, identity, "refuse")
    assert "was not installed by gpufleet" in row["because"]


LOST = [("toolkit", "11.8"), ("stack", STACK)]


@pytest.mark.parametrize(("kind", "identity"), LOST)
def test_a_lost_receipt_does_not_make_our_own_tree_a_foreign_one(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    """Every receipt was gone, the checks said provision, and it refused what it had installed."""
    section(host, "receipts")["receipts"] = []
    for row in section(host, "stacks")["stacks"]:
        row["bound_to"] = "/usr/local/cuda-11.8/lib64"
    rows = {(row["what"], row["id"]): row for row in changes(plan, host)}
    assert rows[kind, identity]["action"] == "repair"
    assert rows[kind, identity]["step"] == "reinstall"
    assert "lost" in rows[kind, identity]["because"]
    assert "refuse" not in {row["action"] for row in rows.values()}


@pytest.mark.parametrize(("kind", "identity"), [*LOST, ("cudnn", "11.8-8")])
def test_a_damaged_receipt_is_repaired_and_blocks_no_other(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    """A receipt that was no JSON made its tree foreign."""
    section(host, "receipts")["receipts"].remove(receipt(host, kind, identity))
    path = f"/var/lib/gpufleet/receipts/{kind}-{identity}.json"
    section(host, "receipts")["unreadable"] = [{"path": path, "error": "Expecting value"}]
    row = only(plan, host)
    assert (row["what"], row["id"], row["action"]) == (kind, identity, "repair")
    assert "its receipt cannot be used: Expecting value" in row["because"]


@pytest.mark.parametrize(("kind", "identity"), [*LOST, ("cudnn", "11.8-8")])
def test_a_damaged_journal_entry_is_an_installation_to_finish(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    path = f"/var/lib/gpufleet/journal/{kind}-{identity}.json"
    section(host, "receipts")["unreadable"] = [{"path": path, "error": "Expecting value"}]
    assert only(plan, host)["action"] == "finish"


def test_a_failing_check_adds_a_step_to_what_looks_right(plan: Row, host: Row) -> None:
    repair = {"toolkit 11.8": "contents", f"stack {STACK}": "recreate", "toolkit 9.9": "contents"}
    rows = {row["what"]: row for row in changes(plan, host, repair)}
    assert {what: row["step"] for what, row in rows.items()} == {
        "toolkit": "contents", "stack": "recreate"}  # fmt: skip
    assert {row["action"] for row in rows.values()} == {"repair"}


def test_a_step_for_all_components_or_for_those_of_one_host(plan: Row) -> None:
    whole = steps_of("contents", "lab1", plan)
    assert {"toolkit 11.8", "cudnn 11.8-8", f"stack {STACK}"} <= set(whole)
    assert steps_of({"lab1": "contents"}, "lab1", plan) == whole
    own = {"toolkit 11.8": "recreate"}
    assert steps_of({"lab1": own}, "lab1", plan) == own
    for other in ({"lab2": own}, None, "everything", ["contents"]):
        assert steps_of(other, "lab1", plan) == {}


def test_cudnn_of_somebody_else_in_our_toolkit_is_refused(plan: Row, host: Row) -> None:
    section(host, "receipts")["receipts"].remove(receipt(host, "cudnn", "11.8-8"))
    assert only(plan, host)["action"] == "refuse"


def test_a_tree_that_is_gone_is_repaired(plan: Row, host: Row) -> None:
    section(host, "toolkits")["trees"] = []
    assert found(plan, host) == [("toolkit", "11.8", "repair")]
    section(host, "stacks")["stacks"] = []
    assert ("stack", STACK, "repair") in found(plan, host)


STACK_DRIFT: list[tuple[str, Any, str]] = [
    ("packages", {"tensorflow": "2.13.1"}, "package numpy is missing, not 1.24.3"),
    ("packages", {"tensorflow": "2.13.1", "numpy": "2.0.0"}, "package numpy is 2.0.0, not 1.24.3"),
]


@pytest.mark.parametrize(("key", "value", "because"), STACK_DRIFT)
def test_an_environment_that_drifted(
    key: str, value: Any, because: str, plan: Row, host: Row
) -> None:
    section(host, "stacks")["stacks"][0][key] = value
    row = only(plan, host)
    assert (row["what"], row["action"], row["because"]) == ("stack", "repair", because)


def test_a_lock_that_was_resolved_again(plan: Row, host: Row) -> None:
    name = "tensorflow-2.13.1-py3.11.lock"
    assert plan["stacks"][0]["lock_sha256"] is None
    locked = with_locks(plan, {name: "a" * 64})
    assert plan["stacks"][0]["lock_sha256"] is None  # a plan of its own
    assert only(locked, host)["because"] == f"its lock {name} has changed"
    receipt(host, "stack", STACK)["lock_sha256"] = "a" * 64
    assert changes(locked, host) == []
    gone = only(with_locks(plan, {}), host)["because"]
    assert gone.startswith(f"its lock {name} is missing: its packages are resolved again (gpu_st")


def test_a_stack_on_a_toolkit_has_what_no_toolkit_has_in_its_packages(plan: Row, host: Row) -> None:
    packages = f"{plan['stacks'][0]['venv']}/lib/python3.11/site-packages/nvidia"
    plan["stacks"][0]["sonames"].append("libnccl.so.2")
    bound = receipt(host, "stack", STACK)["binding"]
    bound.append(f"{packages}/nccl/lib/libnccl.so.2")
    assert changes(plan, host) == []
    bound.append(f"{packages}/cublas/lib/libcublas.so.12")
    assert "bound to other libraries" in only(plan, host)["because"]


def test_a_framework_with_its_cuda_inside_is_bound_to_nothing(plan: Row, host: Row) -> None:
    receipt(host, "stack", STACK)["binding"] = []
    assert "bound to other libraries" in only(plan, host)["because"]
    plan["stacks"][0].update(sonames=[], toolkit_path=None, cuda_source="bundled")
    assert changes(plan, host) == []


def test_an_environment_of_another_python_or_binding(plan: Row, host: Row) -> None:
    receipt(host, "stack", STACK)["python"] = "3.10.4"
    assert only(plan, host)["because"] == "it was created with Python 3.10, not 3.11"
    receipt(host, "stack", STACK).update(
        python="3.11.2", binding=["/usr/local/cuda-12.2/lib64/libcudart.so.12"]
    )
    assert "bound to other libraries" in only(plan, host)["because"]


VARIANT = {"pytorch": "2.6.0", "cuda": "11.8", "index": "https://download.pytorch.org/whl/cu118"}


@pytest.mark.parametrize(
    ("entry", "binding", "bound"),
    [
        ({"jax": "0.5.3", "cuda": "local"}, ["{toolkit}/lib64/libcudart.so.12"], True),
        (
            {"jax": "0.5.3", "cuda": "local"},
            ["{toolkit}/lib64/libcudart.so.12", "{venv}/nvidia/nccl/lib/libnccl.so.2"],
            True,
        ),
        ({"jax": "0.5.3", "cuda": "local"}, ["{venv}/nvidia/nccl/lib/libnccl.so.2"], False),
        (
            {"tensorflow": "2.18.1"},
            ["{toolkit}/lib64/libcudart.so.12", "{venv}/nvidia/nccl/lib/libnccl.so.2"],
            False,
        ),
        ({"pytorch": "2.6.0"}, ["{venv}/nvidia/cublas/lib/libcublas.so.12"], True),
        ({"pytorch": "2.6.0"}, ["/usr/local/cuda-12.4/lib64/libcublas.so.12"], False),
        ({"pytorch": "2.6.0"}, [], False),
        ({"pytorch": "1.11.0"}, [], True),
        ({"pytorch": "1.11.0"}, ["/usr/local/cuda-10.2/lib64/libcublas.so.10"], False),
        (VARIANT, ["{venv}/nvidia/cublas/lib/libcublas.so.11"], True),
        (VARIANT, ["/usr/local/cuda-11.8/lib64/libcublas.so.11"], False),
        (VARIANT, [], True),
    ],
)
def test_which_libraries_are_a_stacks_own(entry: Row, binding: list[str], bound: bool) -> None:
    plan = resolve(declaration(entry))
    (stack,) = plan["stacks"]
    host = converged(plan)
    receipt(host, "stack", stack["name"])["binding"] = [
        each.format(toolkit=stack["toolkit_path"], venv=stack["venv"]) for each in binding
    ]
    assert [row["because"].startswith("it is bound to other") for row in changes(plan, host)] == (
        [] if bound else [True]
    )


@pytest.mark.parametrize(
    ("link", "action"),
    [
        ({"state": "missing", "target": None}, "install"),
        ({"state": "link", "target": "cuda-12.2"}, "install"),
        ({"state": "directory", "target": None}, "refuse"),
        ({"state": "file", "target": None}, "refuse"),
        ({"state": "link", "target": "cuda-11.8"}, None),
        ({"state": "link", "target": "/usr/local/cuda-11.8"}, None),
    ],
)
def test_the_default_link(link: Row, action: str | None, plan: Row, host: Row) -> None:
    section(host, "toolkits")["default"] = default_link(**link)
    wanted = [("default_link", "/usr/local/cuda", action)] if action else []
    assert found(plan, host) == wanted


def test_the_linker_file(plan: Row, host: Row) -> None:
    section(host, "linker")["files"][0]["directories"] = ["/usr/local/cuda-12.2/lib64"]
    toolkits = "(gpu_toolkits, gpu_stacks)"
    assert only(plan, host)["because"] == (f"{CONF} does not list {LIB} {toolkits}")
    section(host, "linker")["files"][0]["directories"] = [LIB, "/usr/local/cuda-12.2/lib64"]
    more = f"/usr/local/cuda-12.2/lib64, which no declared toolkit has {toolkits}"
    assert only(plan, host)["because"] == f"{CONF} lists {more}"
    section(host, "linker")["files"] = []
    assert only(plan, host)["because"] == f"{CONF} is missing"


def test_the_linker_cache(plan: Row, host: Row) -> None:
    cache = section(host, "linker")["cache"]
    cache[1]["exists"] = False
    assert "still has /usr/local/cuda-11.8/lib64/libcudnn.so.8" in only(plan, host)["because"]
    del cache[1]
    assert "lacks /usr/local/cuda-11.8/lib64/libcudnn.so.8" in only(plan, host)["because"]
    cache.clear()
    assert "lacks /usr/local/cuda-11.8/lib64" in only(plan, host)["because"]


def test_the_cache_may_know_the_directory_by_another_name(plan: Row, host: Row) -> None:
    for row in section(host, "linker")["cache"]:
        row["path"] = f"/usr/local/cuda/lib64/{row['soname']}"
        row["realpath"] = f"/usr/local/cuda-11.8/targets/x86_64-linux/lib/{row['soname']}"
    assert changes(plan, host) == []


def test_a_mangled_snapshot_never_raises(plan: Row, host: Row) -> None:
    for each in mangled(host):
        assert isinstance(changes(plan, each), list)
        assert isinstance(Host(each).pythons, dict | None)


def test_a_toolkit_that_is_declared_no_longer_leaves_the_linker() -> None:
    plan = resolve({})
    old = [{"path": CONF, "directories": ["/usr/local/cuda-11.8/lib64"]}]
    assert found(plan, snapshot(linker={"files": old})) == [("linker", CONF, "install")]
    assert found(plan, snapshot()) == []


LINK = {"path": "lib64/libcudnn.so.8", "what": "missing", "link": True}


@pytest.mark.parametrize(("kind", "identity"), [("toolkit", "11.8"), ("cudnn", "11.8-8")])
def test_links_alone_take_the_smallest_step(kind: str, identity: str, plan: Row, host: Row) -> None:
    receipt(host, kind, identity)["changed"] = [LINK]
    row = only(plan, host)
    assert (row["action"], row["step"]) == ("repair", "links")
    assert row["because"] == (
        "only links changed since it was installed: lib64/libcudnn.so.8 (missing)"
    )
    # A failing check can demand more.
    (more,) = changes(plan, host, {f"{kind} {identity}": "contents"})
    assert more["step"] == "contents"


@pytest.mark.parametrize(("kind", "identity"), [("toolkit", "11.8"), ("cudnn", "11.8-8")])
def test_a_changed_file_or_another_source_is_more_than_links(
    kind: str, identity: str, plan: Row, host: Row
) -> None:
    receipt(host, kind, identity)["changed"] = [LINK, {"path": "a.h", "what": "size"}]
    assert "step" not in only(plan, host)
    receipt(host, kind, identity)["changed"] = [LINK]
    receipt(host, kind, identity)["source"]["sha256"] = "f" * 64
    row = only(plan, host)
    assert "step" not in row
    assert row["because"].startswith("installed from a file with sha256")


def test_links_of_a_stack_are_repaired_with_the_stack(plan: Row, host: Row) -> None:
    receipt(host, "stack", STACK)["changed"] = [LINK]
    assert "step" not in only(plan, host)
