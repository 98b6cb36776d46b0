"""Copies and minutes of load, made seconds, on stand-ins that compute."""

from __future__ import annotations

import array
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gpufleet.on_host import deep_time
from gpufleet.on_host.deep_time import SETTLE_S, toolkits_seconds
from gpufleet.workload import copies, memory, sustained, timing, toolkit_run
from gpufleet.workload.copies import enable_access
from gpufleet.workload.library import Refused
from gpufleet.workload.programs import Use
from gpufleet.workload.runtime import available_mib
from gpufleet.workload.sensors import sensors
from gpufleet.workload.sustained import sustain
from gpufleet.workload.timing import best_rate
from tests.support.toolkit_run import FILL_MIB, Document, run, run_stage


def test_the_host_s_memory_that_programs_can_have_is_read(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_mib(str(meminfo)) is None
    meminfo.write_text("MemTotal: 4194304 kB\nMemFree: 307200 kB\n", encoding="ascii")
    assert available_mib(str(meminfo)) is None
    meminfo.write_text("MemFree: 307200 kB\nMemAvailable:  3145728 kB\n", encoding="ascii")
    assert available_mib(str(meminfo)) == 3072


class TestCopies:
    """Between the host and each GPU, while the link is read."""

    LINK: ClassVar[Document] = {"generation": 4, "width": 16, "generation_max": 4, "width_max": 16}

    def rows(self, libraries: tuple[Path, Path], **reported: str | int) -> list[Document]:
        return run_stage(libraries, "host_copies", **{"gpus": 1, **reported})

    def test_they_arrive_and_the_link_is_read(self, libraries: tuple[Path, Path]) -> None:
        found = run(libraries, "--once")
        for row, device in zip(found["host_copies"], found["devices"], strict=True):
            assert (row["wrong"], row["error"], device["link"]) == (0, None, self.LINK)
            assert min(device["copies"].values()) > 0

    @pytest.mark.parametrize("way", [1, 2])
    def test_a_copy_that_moves_no_byte_is_seen(
        self, libraries: tuple[Path, Path], way: int
    ) -> None:
        (row,) = self.rows(libraries, dead_way=way)
        assert row["wrong"] > 1_000_000

    def test_a_link_stuck_at_generation_1_is_reported(self, libraries: tuple[Path, Path]) -> None:
        (row,) = self.rows(libraries, link_generation=1)
        assert row["link"] == {**self.LINK, "generation": 1}

    def test_a_link_that_nvml_does_not_report_is_none(self, libraries: tuple[Path, Path]) -> None:
        (row,) = self.rows(libraries, link=3)
        assert row["link"] == dict.fromkeys(self.LINK)
        assert row["copies"]["to_device_gib_s"] > 0


class Cuda:
    """A runtime that keeps which GPU addresses which, and counts what was called."""

    def __init__(self, can: int = 1) -> None:
        self.can, self.current = can, 0
        self.enabled: set[tuple[int, int]] = set()
        self.calls: Counter[str] = Counter()
        self.library = SimpleNamespace(
            cudaDeviceEnablePeerAccess=self.enable, cudaGetLastError=lambda: 0
        )

    def __call__(self, name: str, *arguments: Any) -> None:
        self.calls[name] += 1
        if name == "cudaDeviceCanAccessPeer":
            arguments[0]._obj.value = self.can
        if name == "cudaSetDevice":
            self.current = arguments[0]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def enter(self, gpu: int) -> None:
        self.current = gpu

    def enable(self, peer: int, _: int) -> int:
        status = 704 if (self.current, peer) in self.enabled else 0
        self.enabled.add((self.current, peer))
        return status


@pytest.mark.costly
class TestDeep:
    """Minutes of load, made seconds."""

    WORDS = ("--deep", "--sustained", "8")

    def test_bandwidth_copies_and_load(self, libraries: tuple[Path, Path], tmp_path: Path) -> None:
        found = run(libraries, *self.WORDS, "--disk", str(tmp_path))
        # Links are loaded in a burn-in alone.
        assert found["fabric"] is None
        disk = found["disk"]
        assert (disk["directory"], disk["wrong"], disk["error"]) == (str(tmp_path), 0, None)
        assert disk["mib"] >= 4
        assert list(tmp_path.iterdir()) == []
        assert [(row["wrong"], row["error"], row["filled_mib"]) for row in found["bandwidth"]] == [
            (0, None, FILL_MIB)
        ] * 2
        assert all(row["gib_s"] > 0 for row in found["bandwidth"] + found["peer"])
        assert [
            (row["from"], row["to"], row["access"], row["wrong"], row["error"])
            for row in found["peer"]
        ] == [(0, 1, True, 0, None), (1, 0, True, 0, None)]
        for row in found["sustained"]:
            assert (row["wrong"], row["error"], row["settled_s"]) == (0, None, 0.0)
            assert row["seconds"] >= 8
            sample = row["samples"][0]
            assert sample["tflops"] > 0
            assert (
                sample["temperature_c"],
                sample["clock_sm_mhz"],
                sample["power_w"],
                sample["throttle"],
            ) == (40, 1400, 70, [])

    def test_what_goes_wrong_in_it(self, libraries: tuple[Path, Path]) -> None:
        alone = ("--fill", "0")
        bandwidth = run_stage(libraries, "bandwidth", *alone, memory="wrong")
        assert [row["wrong"] for row in bandwidth] == [1, 1]
        nothing = run_stage(libraries, "bandwidth", *alone, dead_way=3, gpus=1)
        assert [row["wrong"] for row in nothing] == [16]
        # The comparison covered only the first and the last of 256 MiB.
        middle = run_stage(libraries, "bandwidth", *alone, memory="middle", gpus=1)
        assert [row["wrong"] for row in middle] == [1]
        assert all(row["wrong"] > 1000 for row in run_stage(libraries, "peer", peer="wrong"))
        (row,) = run_stage(libraries, "sustained", *self.WORDS, gpus=1, throttle=0x48)
        assert row["samples"][0]["throttle"] == ["hw-slowdown", "hw-thermal"]

    @pytest.mark.parametrize(
        ("reported", "wrong", "filled"),
        [
            ({}, 0, FILL_MIB),
            # One of three blocks did not keep one of two patterns.
            ({"memory": "cell"}, 1, FILL_MIB),
            ({"dead_way": 3}, 16 + 6, FILL_MIB),
            ({"fill": 0}, 0, 0),
        ],
    )
    def test_all_free_memory_keeps_what_is_written(
        self, libraries: tuple[Path, Path], reported: dict[str, Any], wrong: int, filled: int
    ) -> None:
        """Nothing compared more than the copies of 256 MiB."""
        more = ("--fill", str(reported.pop("fill", FILL_MIB)))
        (row,) = run_stage(libraries, "bandwidth", *more, gpus=1, **reported)
        assert (row["error"], row["wrong"], row["filled_mib"]) == (None, wrong, filled)
        assert row["unfilled"] is None

    @pytest.mark.parametrize(
        ("reported", "reason"),
        [
            # A job that has just started, and another one with more programs than are read.
            ({"others": 1}, "programs"),
            ({"others": 400}, "programs"),
            # Programs that NVML does not list in a container, and the page cache of a GH200: 592
            # MiB, of which 192 are this process's.
            ({"free_mib": 7600}, "in-use"),
            ({"free_mib": 7800}, None),
            # Where NVML lists nothing, not even this process.
            ({"free_mib": 7200, "programs": 3}, "in-use"),
            ({"free_mib": 7600, "programs": 3}, None),
            ({"integrated": 1}, "integrated"),
            # Its page cache is not free for CUDA, and free for programs.
            ({"integrated": 1, "free_mib": 300}, "integrated"),
            # A desktop, a game, too little room beside a desktop, a desktop and a hidden program.
            ({"free_mib": 7000, "drawn": 700}, None),
            ({"free_mib": 5000, "drawn": 2900}, "display"),
            ({"free_mib": 2300, "drawn": 700}, "display"),
            ({"free_mib": 6000, "drawn": 700}, "in-use"),
            # The driver of a virtual GPU holds a part of it, and may list no program.
            ({"free_mib": 6000, "virtual": 1}, None),
            ({"free_mib": 6000, "virtual": 1, "programs": 3}, "virtual"),
            ({"free_mib": 6000, "virtual": 1, "others": 1}, "programs"),
        ],
    )
    def test_memory_that_others_need_is_not_filled(
        self, libraries: tuple[Path, Path], reported: dict[str, Any], reason: str | None
    ) -> None:
        """The next allocation of a job with 1.5 GiB failed."""
        (row,) = run_stage(libraries, "bandwidth", gpus=1, **reported)
        filled = FILL_MIB if reason is None else None
        assert (row["error"], row["busy"], row["wrong"]) == (None, None, 0)
        assert (row["unfilled"], row["filled_mib"]) == (
            reason,
            filled,
        )

    def test_more_memory_stays_free_beside_a_desktop(self) -> None:
        """An allocation of its compositor must not fail."""
        use = Use(False, 192, 100, True, False)
        assert (memory.left_mib(use), memory.left_mib(use._replace(drawn_mib=None))) == (2304, 1024)
        assert memory.reason_not_to(use, 2304 + 64, 192 + 100 + 512) is None
        assert memory.reason_not_to(use, 2304 + 63, 192 + 100 + 512) == "display"

    def test_a_sum_that_sees_no_wrong_block_is_refused(self, libraries: tuple[Path, Path]) -> None:
        (row,) = run_stage(libraries, "bandwidth", gpus=1, cublas="sums")
        assert row["error"] == "cublasSasum_v2 does not tell a wrong block from a right one"

    def test_of_thousands_of_products_each_is_checked(self, libraries: tuple[Path, Path]) -> None:
        """Only the last product was: one wrong in a thousand passed, and so did 4130 of 6964."""
        for stage in ("cublas", "sustained"):
            (row,) = run_stage(libraries, stage, *self.WORDS, gpus=1, wrong_every=100)
            assert (row["error"], row["wrong"]) == (None, row["checked"] // 100)
            assert row["wrong"] >= 1

    def test_a_comparison_that_sees_nothing_is_refused(self, libraries: tuple[Path, Path]) -> None:
        for stage in ("cublas", "sustained"):
            (row,) = run_stage(libraries, stage, *self.WORDS, gpus=1, cublas="sums")
            assert row["error"] == ("cublasSasum_v2 does not tell a wrong product from a right one")

    def test_a_peer_copy_that_moves_no_byte_is_seen(self, libraries: tuple[Path, Path]) -> None:
        """The target kept what another pair had copied there: the same numbers."""
        rows = run_stage(libraries, "peer", peer="nothing")
        assert [row["wrong"] for row in rows] == [2 * (2 << 20) // 4] * 2

    @pytest.mark.parametrize(
        ("status", "access", "error"),
        [
            (0, True, None),
            (711, False, None),
            (101, True, "cudaDeviceEnablePeerAccess returned 101 cudaErrorOfStandIn"),
        ],
    )
    def test_access_to_a_peer_that_is_refused_is_not_on(
        self, status: int, access: bool, error: str | None
    ) -> None:
        class Library:
            def __getattr__(self, name: str) -> Any:
                return lambda *_: status

        runtime = SimpleNamespace(library=Library(), describe=lambda _: "cudaErrorOfStandIn")
        if error is None:
            assert enable_access(runtime, 1) is access
        else:
            with pytest.raises(Refused, match=error):
                enable_access(runtime, 1)

    def test_both_gpus_of_a_pair_address_each_other(self) -> None:
        """Access is enabled in one direction only, and either GPU may make the copy."""
        cuda = Cuda()
        assert copies.connect(cuda, 3, 5) is True
        assert cuda.enabled == {(3, 5), (5, 3)}
        assert cuda.current == 5
        # Both were enabled for the copies in the other direction.
        assert copies.connect(cuda, 5, 3) is True
        apart = Cuda(can=0)
        assert (copies.connect(apart, 3, 5), apart.enabled) == (False, set())

    def test_a_rate_between_gpus_is_that_of_a_series(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One copy for each wait: NVLink's copy takes as long as the processor to start it."""
        cuda, rates = Cuda(), []

        def best_rate(runtime: Cuda, move: Any, length: int, least_s: float) -> float:
            before = cuda.calls["cudaMemcpyPeerAsync"]
            move()
            rates.append((cuda.calls["cudaMemcpyPeerAsync"] - before, length))
            return 1.0

        monkeypatch.setattr(copies, "best_rate", best_rate)
        monkeypatch.setattr(copies, "wrong_words", lambda *_: 0)
        found: Document = {"from": 0, "to": 1}
        copies.copy_pair(cuda, found, 1 << 20)
        assert rates == [(copies.SERIES, copies.SERIES << 20)]
        assert copies.SERIES >= 8
        assert (found["access"], found["wrong"], found["gib_s"]) == (True, 0, 1.0)

    def test_a_copy_between_gpus_begins_when_the_upload_has_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other GPU's queue does not wait for an upload that is still on its way."""
        calls: list[tuple[str, int]] = []

        class Ordered(Cuda):
            """A runtime that keeps in which order GPUs were used."""

            def __call__(self, name: str, *arguments: Any) -> None:
                super().__call__(name, *arguments)
                calls.append((name, self.current))

            def upload(self, _: Any) -> None:
                calls.append(("upload", self.current))

            def wait(self) -> None:
                calls.append(("wait", self.current))

        monkeypatch.setattr(copies, "best_rate", lambda *_: 1.0)
        monkeypatch.setattr(copies, "wrong_words", lambda *_: 0)
        copies.copy_pair(Ordered(), {"from": 3, "to": 5}, 1 << 20)
        uploaded = calls.index(("upload", 3))
        assert uploaded < calls.index(("wait", 3)) < calls.index(("cudaMemcpyPeerAsync", 5))

    def test_reasons_that_nvml_does_not_tell_are_none(self, libraries: tuple[Path, Path]) -> None:
        (row,) = run_stage(libraries, "sustained", *self.WORDS, reasons=3, gpus=1)
        assert row["samples"]
        assert all(sample["throttle"] is None for sample in row["samples"])
        assert sensors("no NVML here")()["throttle"] is None

    def test_clocks_that_somebody_has_set_are_a_reason(self, libraries: tuple[Path, Path]) -> None:
        (row,) = run_stage(libraries, "sustained", *self.WORDS, gpus=1, throttle=0x13)
        assert row["samples"][0]["throttle"] == ["application-clocks", "sync-boost"]

    def test_a_slow_gpu_does_not_make_the_next_look_slow(
        self, libraries: tuple[Path, Path]
    ) -> None:
        slow, fast = run_stage(libraries, "sustained", *self.WORDS, slow_ms=30)
        assert (slow["wrong"], fast["wrong"]) == (0, 0)
        assert fast["samples"][-1]["tflops"] > 2 * slow["samples"][-1]["tflops"]

    def test_a_gpu_that_fails_under_load_fails_alone(self, libraries: tuple[Path, Path]) -> None:
        failed, good = run_stage(libraries, "sustained", *self.WORDS, wait=719)
        assert (failed["wrong"], failed["error"]) == (
            None,
            "cudaDeviceSynchronize returned 719 cudaErrorOfStandIn",
        )
        assert (good["wrong"], good["error"], bool(good["samples"])) == (0, None, True)

    def test_sensors_are_read_under_load_and_cooling_is_awaited_without_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reported: list[str] = []

        class Told:
            """A library that tells what was asked of it."""

            def __init__(self, *_: Any) -> None:
                pass

            def __getattr__(self, name: str) -> Any:
                return lambda *_: reported.append(name)

            def __call__(self, name: str, *_: Any) -> None:
                reported.append(name)

            def free_mib(self) -> int:
                return 8000

            def download(self, pointer: object, count: int) -> Any:
                return array.array("f", [0.0]) * count

        def sense() -> Document:
            reported.append("sense")
            return {"temperature_c": 40}

        monkeypatch.setattr(sustained, "Runtime", Told)
        monkeypatch.setattr(sustained, "Blas", Told)
        monkeypatch.setattr(sustained, "sensors", lambda _: sense)
        found: Document = {}
        sustain(
            SimpleNamespace(
                **{"toolkit": "", "size": 8, "gpus": 1, "gpu": None, "budget": 1, "places": "0"},
                **{"sustained": 1.1, "settle": 5, "deadline": 60, "disk": None, "fabric": False},
            ),
            found.update,
        )
        assert found["sustained"][0]["samples"][0]["temperature_c"] == 40
        asked = [at for at, name in enumerate(reported) if name == "sense"]
        assert len(asked) == 3
        assert (reported[asked[1] - 1], reported[asked[1] + 1 : asked[1] + 3]) == (
            "multiply",
            ["cudaSetDevice", "wait_for_queue"],
        )
        assert reported[asked[2] - 2 : asked[2]] == ["cudaSetDevice", "cudaDeviceReset"]

    def test_a_long_load_has_a_bounded_number_of_samples_with_what_was_wrong(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hours of load: a sample a second of each GPU would be more than a snapshot holds."""
        clock = [0.0]
        monkeypatch.setattr(sustained, "now", lambda: clock[0])
        monkeypatch.setattr(sustained, "time", SimpleNamespace(sleep=lambda _: None))

        class Slow:
            """A GPU of which each helping takes 30 s, and a product is wrong after an hour."""

            def __init__(self, *given: Any) -> None:
                self.found, self.products, self.took = given[3], 1, 30.0
                self.wrong, self.checked = 0, 0
                self.reading = {"temperature_c": 70}

            def round(self, due: bool) -> None:
                clock[0] += 30
                self.checked += 1
                self.wrong = int(clock[0] > 3600)

            def tflops(self) -> float:
                return 40.0

            def settled(self) -> bool:
                return True

        class Told:
            """A runtime that does as it is asked."""

            def __init__(self, *_: object) -> None:
                self.right = None

            def __call__(self, *_: object) -> None:
                """A call of CUDA's."""

        def each(name: str, entries: list[Document], report: Any, runtime: Any, work: Any) -> None:
            for entry in entries:
                work(entry)

        for name in ("Runtime", "Blas", "ExactProduct"):
            monkeypatch.setattr(sustained, name, Told)
        monkeypatch.setattr(sustained, "for_each_gpu", each)
        monkeypatch.setattr(sustained, "Load", Slow)
        found: Document = {}
        options = {"toolkit": "", "size": 8, "gpus": 1, "gpu": None, "budget": 1, "places": "0"}
        options |= {"sustained": 4 * 3600, "settle": 5, "disk": None, "fabric": False}
        options |= {"deadline": 5 * 3600}
        sustain(SimpleNamespace(**options), found.update)
        [row] = found["sustained"]
        assert sustained.MOST_SAMPLES * 0.9 < len(row["samples"]) <= sustained.MOST_SAMPLES
        assert (row["seconds"], row["wrong"]) == (4 * 3600, 1)
        first = next(sample["at_s"] for sample in row["samples"] if sample["wrong"])
        assert 3600 < first <= 3600 + 60

    @pytest.mark.parametrize("under_way", [set(), {0, 2}])
    def test_a_gpu_that_hangs_under_load_hangs_alone(
        self, monkeypatch: pytest.MonkeyPatch, under_way: set[int]
    ) -> None:
        """All GPUs waited for it, and none had a result when the stage was ended."""
        released: list[int] = []
        never = threading.Event()

        class Steady:
            """A GPU that computes; the first one hangs after its second helping."""

            def __init__(self, *given: Any) -> None:
                self.found, self.products, self.took = given[3], 1, 0.1
                self.wrong, self.checked, self.reading = 0, 0, {"temperature_c": 40}

            def round(self, due: bool) -> None:
                self.checked += 1
                if self.found["gpu"] == 0 and self.checked > 2:
                    never.wait()
                time.sleep(0.02)

            def tflops(self) -> float:
                return 40.0

            def settled(self) -> bool:
                return True

        class Stand:
            """A runtime that keeps which GPU is entered at the end."""

            def __init__(self, *_: object) -> None:
                self.right = None

            def __call__(self, name: str, *arguments: Any) -> None:
                if name == "cudaSetDevice":
                    released.append(arguments[0])

        def each(name: str, entries: list[Document], report: Any, runtime: Any, work: Any) -> None:
            for entry in entries:
                work(entry)

        for name in ("Runtime", "Blas", "ExactProduct"):
            monkeypatch.setattr(sustained, name, Stand)
        monkeypatch.setattr(sustained, "for_each_gpu", each)
        monkeypatch.setattr(sustained, "Load", Steady)
        monkeypatch.setattr(sustained, "ANSWER_S", 0.3)
        monkeypatch.setattr(sustained, "sleep_while_waiting", lambda *_: None)
        links = SimpleNamespace(found=[], start=list, end=list, under_way=lambda: set(under_way))
        monkeypatch.setattr(sustained, "FabricLoad", lambda *_: links)
        found: Document = {}
        options = {"toolkit": "", "size": 8, "gpus": 3, "gpu": None, "budget": 1, "places": "0,1,2"}
        options |= {"sustained": 1.4, "settle": 5, "deadline": 60, "disk": None}
        options |= {"fabric": bool(under_way)}
        try:
            sustain(SimpleNamespace(**options), found.update)
        finally:
            never.set()
        hung, *others = found["sustained"]
        assert (hung["error"], hung["hung"]) == ("no answer within 60 s under load", True)
        assert [(row["error"], row["wrong"]) for row in others] == [(None, 0)] * 2
        assert all(row["samples"] and row["checked"] > 10 for row in others)
        # A reset of the one that hangs would hang as well, and take memory from links under way.
        assert released == ([1] if under_way else [1, 2])

    def test_a_gpu_that_stays_hot_is_not_settled(self, libraries: tuple[Path, Path]) -> None:
        (row,) = run_stage(libraries, "sustained", *self.WORDS, "--settle", "1", heat=30, gpus=1)
        assert (row["wrong"], row["settled_s"], row["error"]) == (0, None, None)
        assert row["samples"][-1]["temperature_c"] == 70

    def test_a_gpu_that_is_still_hot_at_the_deadline_is_reported(
        self, libraries: tuple[Path, Path]
    ) -> None:
        """The stage waited on, and was hung: all of its results were lost."""
        words = (*self.WORDS, "--settle", "9000", "--deadline", "25")
        (row,) = run_stage(libraries, "sustained", *words, heat=30, gpus=1)
        assert (row["wrong"], row["settled_s"], row["error"]) == (0, None, None)


@pytest.mark.parametrize("gpus", [1, 8, 16])
@pytest.mark.parametrize("load_s", [120, 300, 900, 3600, 14400])
def test_each_stage_of_a_deep_run_has_its_time(
    monkeypatch: pytest.MonkeyPatch, gpus: int, load_s: float
) -> None:
    """The copies of eight GPUs had a fifth of what was left, which they need; sixteen need more."""
    now, given = [0.0], {}
    # Beside their seconds they start CUDA, compile, and prepare operands and products.
    took = {"formats": 7 / 24 * load_s + 5, "consensus": 8 / 24 * load_s + 10}
    pairs = gpus * (gpus - 1)
    took |= {"bandwidth": 4.0 * gpus, "peer": 0.3 * pairs}

    def in_process(options: Any, stage: str, deadline_s: float, more: list[str]) -> Any:
        if more[-2:-1] != ["--gpu"] or more[-1] == "0":
            given[stage] = deadline_s
            now[0] += took.get(stage, 2)
        return {"devices": [{"address": ""}] * gpus} if stage == "driver" else {}, None, False

    monkeypatch.setattr(toolkit_run, "now", lambda: now[0])
    monkeypatch.setattr(toolkit_run, "in_process", in_process)
    monkeypatch.setattr(toolkit_run, "emit", lambda *_: None)
    monkeypatch.setattr(toolkit_run, "NODES", "/nowhere/*")
    deadline_s = 0.9 * toolkits_seconds(0, gpus) / 3 + deep_time.load_seconds(load_s, gpus)
    toolkit_run.through_toolkit(
        SimpleNamespace(
            **{"toolkit": "/nowhere", "expect_gpus": str(gpus), "deadline": deadline_s},
            **{"once": True, "deep": True, "disk": None, "size": None},
            **{"sustained": load_s, "settle": SETTLE_S},
        )
    )
    for stage, seconds in took.items():
        if stage in given:
            assert given[stage] > 1.05 * seconds, stage
    assert given["sustained"] >= load_s + SETTLE_S + 20 + 5 * gpus


@pytest.mark.parametrize(
    ("gpus", "memory_mib", "batches"), [(10, 12 * 1024, 1), (16, None, 2), (10, 4 * 1024, 2)]
)
def test_the_formats_of_all_gpus_have_the_time_of_one(
    monkeypatch: pytest.MonkeyPatch, gpus: int, memory_mib: int | None, batches: int
) -> None:
    """The second eight of sixteen GPUs had too little time for their sums, and were hung."""
    together = threading.Barrier(gpus // batches)
    seconds: dict[str, set[float]] = {}

    def in_process(options: Any, stage: str, deadline_s: float, more: list[str]) -> Any:
        if stage in ("formats", "consensus"):
            together.wait(10)
            seconds.setdefault(stage, set()).add(float(more[more.index("--seconds") + 1]))
        return {"devices": [{"address": ""}] * gpus} if stage == "driver" else {}, None, False

    monkeypatch.setattr(toolkit_run, "available_mib", lambda: memory_mib)
    monkeypatch.setattr(toolkit_run, "in_process", in_process)
    monkeypatch.setattr(toolkit_run, "emit", lambda *_: None)
    monkeypatch.setattr(toolkit_run, "NODES", "/nowhere/*")
    toolkit_run.through_toolkit(
        SimpleNamespace(
            **{"toolkit": "/nowhere", "expect_gpus": str(gpus), "deadline": 9000, "once": True},
            **{"deep": True, "disk": None, "size": None, "sustained": 3600, "settle": SETTLE_S},
        )
    )
    assert seconds == {"formats": {3600 / 24 / batches}, "consensus": {3600 / 24 / batches}}


def test_a_stage_that_hangs_leaves_the_load_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [0.0], {}

    def in_process(options: Any, stage: str, deadline_s: float, more: list[str]) -> Any:
        given[stage] = deadline_s
        now[0] += 2 if stage == "driver" else deadline_s
        return {"devices": [{"address": ""}]} if stage == "driver" else {}, None, stage != "driver"

    monkeypatch.setattr(toolkit_run, "now", lambda: now[0])
    monkeypatch.setattr(toolkit_run, "in_process", in_process)
    monkeypatch.setattr(toolkit_run, "emit", lambda *_: None)
    toolkit_run.through_toolkit(
        SimpleNamespace(
            **{"toolkit": "/nowhere", "expect_gpus": "1", "deadline": 600, "once": True},
            **{"deep": True, "disk": None, "size": None, "sustained": 120, "settle": 120},
        )
    )
    assert given["sustained"] >= 120 + 120 + 25 - 1


def test_the_patterns_are_made_once_for_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight GPUs took two seconds each for them."""
    asked: list[int] = []

    def made(length: int) -> Any:
        asked.append(length)
        return iter([bytearray(length), bytearray(length)])

    monkeypatch.setattr(memory, "patterns", made)
    patterns = memory.Patterns()
    assert [len(patterns.of(length)[1]) for length in (64, 64, 48, 96, 64)] == [64, 64, 64, 96, 96]
    assert asked == [64, 96]


def test_a_rate_is_that_of_risen_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing, "now", lambda: now[0])

    def move() -> None:
        now[0] += 0.01 if now[0] < 0.3 else 0.001

    still = SimpleNamespace(wait=lambda: None)
    assert best_rate(still, move, 2**30, 0.5) == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    ("cool", "now", "settled"),
    [(40, 50, True), (40, 51, False), (None, 50, None), (40, None, None)],
)
def test_a_gpu_whose_temperature_is_not_read_is_not_cool(
    cool: int | None, now: int | None, settled: bool | None
) -> None:
    load = sustained.Load.__new__(sustained.Load)
    load.cool_c, load.sense = cool, lambda: {"temperature_c": now}
    assert load.settled() is settled
