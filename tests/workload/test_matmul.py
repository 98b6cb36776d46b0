"""The smoke test's own parts: no TensorFlow is needed to see that it cannot be fooled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gpufleet.on_host import payload
from gpufleet.on_host.constants import FRAMEWORK_MARK
from gpufleet.workload.exactness import operand, wrong_rows
from gpufleet.workload.framework_run import missing_gpu, wanted_devices
from gpufleet.workload.loaded import foreign_libraries
from gpufleet.workload.tensorflow_1 import Graph
from gpufleet.workload.tensorflow_2 import Eager
from gpufleet.workload.tensorflow_loader import NOT_OPENED, OPENED
from gpufleet.workload.timing import entry
from tests.support.machine import deadline
from tests.support.stand_ins.tensorflow import TensorFlow

OUTPUT = """\
2026-11-20 12:05:08.783822: I tensorflow/tsl/platform/default/dso_loader.cc:58] Successfully \
opened dynamic library libcudart.so.11.0
2026-11-20 12:05:08.783822: I tensorflow/tsl/platform/default/dso_loader.cc:67] Could not load \
dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open shared object file: No such \
file or directory; LD_LIBRARY_PATH: /opt/x
2019-06-20 I tensorflow/stream_executor/platform/default/dso_loader.cc:53] Could not dlopen \
library 'libcudart.so.10.0'; dlerror: libcudart.so.10.0: cannot open shared object file
"""


def test_the_loaders_words_of_old_and_new_releases() -> None:
    assert OPENED.findall(OUTPUT) == ["libcudart.so.11.0"]
    assert NOT_OPENED.findall(OUTPUT) == [
        (
            "libcudnn.so.8",
            "libcudnn.so.8: cannot open shared object file: No such file or directory",
        ),
        ("libcudart.so.10.0", "libcudart.so.10.0: cannot open shared object file"),
    ]


@pytest.mark.parametrize(
    ("visible", "expect", "devices"),
    [
        (0, "0", ["/CPU:0"]),
        (0, "any", ["/CPU:0"]),
        (2, "any", ["/GPU:0", "/GPU:1"]),
        (2, "0", ["/CPU:0"]),
        (1, "2", ["/GPU:0", "/GPU:1"]),
        (0, "1", ["/GPU:0"]),
    ],
)
def test_declared_gpus_are_asked_for_even_where_none_is_seen(
    visible: int, expect: str, devices: list[str]
) -> None:
    assert wanted_devices(range(visible), expect) == devices


def test_a_gpu_that_is_not_seen_is_a_failing_entry() -> None:
    engine = SimpleNamespace(title="TensorFlow", gpus=range(1), refused={}, no_gpu=None)
    assert missing_gpu(entry("/GPU:1", 8), engine) == "TensorFlow reports 1 GPU"
    assert missing_gpu(entry("/GPU:0", 8), engine) is None
    assert missing_gpu(entry("/CPU:0", 8), engine) is None


def test_without_tensorflow_it_says_so_in_one_document(tmp_path: Path) -> None:
    import json  # noqa: PLC0415

    script = tmp_path / "matmul.py"
    script.write_text(payload.workload(), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "--expect-gpus", "0"],
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=True,
    )
    last = ended.stdout.splitlines()[-1]
    assert last.startswith(FRAMEWORK_MARK)
    found = json.loads(last.removeprefix(FRAMEWORK_MARK))
    assert found["state"] == "failed"
    assert found["error"] == "ModuleNotFoundError: No module named 'tensorflow'"
    assert list(found) == [
        "framework",
        "state",
        "error",
        "version",
        "build",
        "loader",
        "devices",
        "small",
        "capabilities",
        "matmul",
        "tower_sum",
        "mapped",
        "strangers",
        "seconds",
    ]
    assert found["framework"] == "tensorflow"


class TestNumbers:
    """The host-side check demands equality, entry by entry."""

    @pytest.fixture
    def numpy(self) -> Any:
        return pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")

    @pytest.fixture
    def product(self, numpy: Any) -> tuple[Any, Any, Any]:
        a, b = operand(numpy, 64, 1), operand(numpy, 64, 0)
        return a, b, a @ b

    def test_a_right_product_is_accepted(self, numpy: Any, product: tuple[Any, Any, Any]) -> None:
        assert wrong_rows(numpy, *product) == 0

    def test_tf32_and_float32_are_both_exact(
        self, numpy: Any, product: tuple[Any, Any, Any]
    ) -> None:
        def rounded(numbers: Any) -> Any:
            """The part of a float32 that TF32 keeps: ten bits behind the first."""
            raw = (numbers.view(numpy.uint32) + 0x1000) & 0xFFFFE000
            return raw.astype(numpy.uint32).view(numpy.float32)

        a, b, c = product
        assert (rounded(a) == a).all()
        assert wrong_rows(numpy, a, b, rounded(a) @ rounded(b)) == 0
        assert wrong_rows(numpy, a, b, (a.astype(numpy.float64) @ b).astype("f")) == 0
        assert wrong_rows(numpy, a, b, c[:, ::-1]) > 60
        assert wrong_rows(numpy, a, b, a.T @ b) > 60

    @pytest.mark.parametrize("value", [1, -1, 0.5, float("nan"), float("inf")])
    def test_one_wrong_element_is_seen(
        self, numpy: Any, product: tuple[Any, Any, Any], value: float
    ) -> None:
        a, b, c = product
        c[17, 3] += value
        assert wrong_rows(numpy, a, b, c) == 1

    @pytest.mark.parametrize("value", [2.0**41, 2.0**63, -(2.0**64), 3e38])
    def test_a_huge_wrong_element_is_seen_each_time(
        self, numpy: Any, product: tuple[Any, Any, Any], value: float
    ) -> None:
        # Where the product has a zero, what overflows could pass with one chance in four.
        a, b = product[0].copy(), product[1]
        a[17] = 0
        c = a @ b
        c[17, 3] = value
        assert [wrong_rows(numpy, a, b, c) for _ in range(30)] == [1] * 30

    def test_zeros_transposed_and_misshapen_results_are_rejected(
        self, numpy: Any, product: tuple[Any, Any, Any]
    ) -> None:
        a, b, c = product
        assert wrong_rows(numpy, a, b, c * 0) > 60
        assert wrong_rows(numpy, a, b, (b @ a)) > 60
        assert wrong_rows(numpy, a, b, c.T) > 60
        assert wrong_rows(numpy, a, b, c[:10]) == 64


def test_no_tower_of_the_sum_is_folded_away() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")
    engine = Eager.__new__(Eager)
    engine.tf = TensorFlow()
    a, b = [operand(numpy, 8, seed) for seed in (1, 2)], operand(numpy, 8, 0)
    result = engine.tower_sum(["/GPU:0", "/GPU:1"], a, b)
    assert wrong_rows(numpy, sum(a), b, result) == 0
    assert engine.tf.ran == ["/GPU:0", "/GPU:1"]


def test_tensorflow_1_places_the_product_alone() -> None:
    known, tf = TensorFlow(), MagicMock()
    places: dict[str, list[str]] = {"placeholder": [], "matmul": []}
    tf.device = known.device
    for name, found in places.items():
        getattr(tf, name).side_effect = lambda *_, found=found, **__: (
            found.append(known.where[-1]) or object()
        )
    engine = Graph.__new__(Graph)
    engine.tf, engine.config = tf, None
    a = SimpleNamespace(shape=(8, 8))
    engine.log_placement("/GPU:0")
    engine.multiply(entry("/GPU:1", 8), a, a)
    engine.tower_sum(["/GPU:2", "/GPU:3"], [a, a], a)
    assert places["matmul"] == ["/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3"]
    assert places["placeholder"] == [""] * 8


def test_code_of_nobody_s_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "shadow.py").write_text("")
    monkeypatch.setitem(sys.modules, "shadow", SimpleNamespace(__file__=str(place / "shadow.py")))
    found = foreign_libraries()
    assert str(place / "shadow.py") in found
    assert not [path for path in found if path.startswith((sys.prefix, "/usr/lib/", "/lib/"))]
    assert subprocess.__file__ not in found
