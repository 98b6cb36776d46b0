"""The environment: modulefiles, profile, a login's variables."""

from __future__ import annotations

from gpufleet.on_host.constants import MOST_VALUE, REFUSED
from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, receipt

fault, harmless = faults_on(no_gpus)


@fault("environment.login", cause="PYTHONPATH=/opt/site", remedy="remove it")
def python_path_set(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["PYTHONPATH"] = "/opt/site"


@fault(
    "environment.login",
    cause="/etc/ssh/sshd_config sets PYTHONPATH=/opt/site",
    remedy="remove PYTHONPATH from /etc/ssh/sshd_config; then systemctl reload ssh",
)
def python_path_set_by_sshd(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["others"].append(
        {"where": "/etc/ssh/sshd_config", "variables": {"PYTHONPATH": "/opt/site"}, "job": False}
    )


@fault(
    "environment.files",
    cause="1 of its 2 files changed under /: opt/gpufleet/modulefiles/cuda/11.8",
    remedy=PROVISION,
)
def modulefile_edited(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "environment")["changed"] = [
        {"path": "opt/gpufleet/modulefiles/cuda/11.8", "what": "size"}
    ]


@fault(
    "environment.files",
    cause="by an earlier plan: /opt/gpufleet/modulefiles/cuda/11.8",
    remedy=PROVISION,
)
def modulefile_of_an_earlier_plan(plan: Document, snapshot: Document) -> None:
    plan["environment"][0]["text"] += "prepend-path PATH /usr/local/cuda-11.8/bin\n"


@fault(
    "environment.files",
    cause="by an earlier plan: /etc/profile.d/gpufleet-cuda.sh",
    remedy=PROVISION,
)
def profile_no_longer_declared(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "environment")["texts"]["/etc/profile.d/gpufleet-cuda.sh"] = {
        "sha256": "ab",
        "for": "toolkit 11.8",
    }


@fault("environment.files", cause="the environment has no receipt", remedy=PROVISION)
def environment_never_written(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")["receipts"]
    receipts.remove(receipt(snapshot, "environment"))


@fault(
    "environment.login",
    verdict="INCONCLUSIVE",
    cause="The login of root was not run: /etc/profile.d/x.sh belongs to alice (1000)",
    remedy="chown -h root:root",
)
def profile_that_a_user_owns(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["refused"] = (
        f"/etc/profile.d/x.sh belongs to alice (1000): {REFUSED}"
    )


@fault(
    "environment.login",
    verdict="INCONCLUSIVE",
    cause="The login of root was not run: /etc/profile.d/x.sh belongs to alice (1000)",
    remedy="chown -h root:root",
)
def profile_that_a_user_owns_in_a_snapshot_of_release_1_0(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "environment").pop("refused", None)
    data(snapshot, "environment")["unread"] = [
        f"/etc/profile.d/x.sh belongs to alice (1000): {REFUSED}"
    ]


@fault("environment.login", cause="the stub libraries", remedy="remove LD_LIBRARY_PATH from")
def stubs_beside_a_crontab_with_a_digit_that_is_no_number(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "environment")["others"] += [
        {"where": "/etc/cron.d/train", "variables": {"LD_LIBRARY_PATH": "/x/stubs"}, "job": True},
        {"where": "/var/spool/cron/bob", "variables": {"CUDA_VISIBLE_DEVICES": "²"}, "job": True},
    ]


@fault(
    "environment.login",
    verdict="INCONCLUSIVE",
    cause="characters are judged",
    remedy="remove LD_LIBRARY_PATH from /etc/environment.d/site.conf",
)
def library_path_that_the_probe_cut(plan: Document, snapshot: Document) -> None:
    variables = {"LD_LIBRARY_PATH": "/a" * MOST_VALUE}
    data(snapshot, "environment")["others"].append(
        {"where": "/etc/environment.d/site.conf", "variables": variables, "job": False}
    )
