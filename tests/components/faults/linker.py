"""The linker: cache, links, other providers of a library."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION

fault, harmless = faults_on(no_gpus)


@fault("linker.registered", cause="gpufleet-cuda.conf is missing", remedy=PROVISION)
def our_file_removed(plan: Document, snapshot: Document) -> None:
    linker = data(snapshot, "linker")
    linker["files"] = [f for f in linker["files"] if "gpufleet" not in f["path"]]


@fault(
    "linker.registered",
    cause="lists /opt/old instead of /usr/local/cuda-11.8/lib64",
    remedy=PROVISION,
)
def our_file_edited(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker")["files"][1]["directories"] = ["/opt/old"]


@fault("linker.cache", cause="does not list libcudart.so.11.0", remedy="ldconfig")
def ldconfig_never_ran(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker")["cache"] = []


@fault(
    "linker.cache", cause="loads libcublas.so.11 from /opt/other/libcublas.so.11", remedy="ldconfig"
)
def another_provider_first(plan: Document, snapshot: Document) -> None:
    other = "/opt/other/libcublas.so.11"
    data(snapshot, "linker")["cache"].insert(
        0, {"soname": "libcublas.so.11", "path": other, "exists": True, "realpath": other}
    )


@fault(
    "linker.cache",
    cause="lists libcublas.so.11 first as /opt/gone/libcublas.so.11",
    remedy="ldconfig",
)
def stale_provider_first(plan: Document, snapshot: Document) -> None:
    gone = "/opt/gone/libcublas.so.11"
    data(snapshot, "linker")["cache"].insert(
        0, {"soname": "libcublas.so.11", "path": gone, "exists": False, "realpath": gone}
    )


def _driver(snapshot: Document, path: str, realpath: str = "") -> None:
    row = {"soname": "libcuda.so.1", "path": path, "realpath": realpath or path}
    data(snapshot, "linker")["drivers"] = [row]


@fault(
    "linker.cache",
    cause="may load /usr/local/cuda-11.8/lib64/stubs/libcuda.so.1 as the driver: it is a stub",
    remedy="remove /usr/local/cuda-11.8/lib64/stubs from /etc/ld.so.conf.d",
)
def stub_registered(plan: Document, snapshot: Document) -> None:
    _driver(snapshot, "/usr/local/cuda-11.8/lib64/stubs/libcuda.so.1")


@fault("linker.cache", cause="may load /opt/link/libcuda.so.1", remedy="remove /opt/link from")
def link_to_stubs_registered(plan: Document, snapshot: Document) -> None:
    _driver(snapshot, "/opt/link/libcuda.so.1", "/opt/cuda/targets/x/lib/stubs/libcuda.so")


@fault("linker.cache", cause="it is a compatibility library", remedy="cuda-11.8/compat from")
def compatibility_library_registered(plan: Document, snapshot: Document) -> None:
    _driver(snapshot, "/usr/local/cuda-11.8/compat/libcuda.so.1")


@harmless
def own_driver_registered(plan: Document, snapshot: Document) -> None:
    _driver(snapshot, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/libcuda.so.580.1")


@harmless
def compat_of_something_else(plan: Document, snapshot: Document) -> None:
    _driver(snapshot, "/opt/mine/compat/libcuda.so.1")


@fault("linker.cache", cause="/etc/ld.so.cache is damaged", remedy="ldconfig")
def cache_damaged(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker").update(cache=[], cache_error="/etc/ld.so.cache is damaged")


@fault(
    "linker.cache",
    cause="the next ldconfig makes the linker load those",
    remedy="/etc/ld.so.conf.d",
)
def another_provider_next_time(plan: Document, snapshot: Document) -> None:
    other = "/opt/other/libcublas.so.11"
    data(snapshot, "linker")["offered"] = [
        {"soname": "libcublas.so.11", "path": other, "realpath": other}
    ]


@fault(
    "linker.providers",
    cause="/usr/lib/x86_64-linux-gnu also provides libcublas.so.11",
    remedy="dpkg -S",
)
def a_second_provider(plan: Document, snapshot: Document) -> None:
    there = "/usr/lib/x86_64-linux-gnu/libcublas.so.11"
    data(snapshot, "linker")["providers"].append(
        {"soname": "libcublas.so.11", "path": there, "realpath": f"{there}.4.1"}
    )
