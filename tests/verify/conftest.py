"""A healthy host as documents, to be broken by each test in its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verify import judge

FIXTURES = Path(__file__).parent / "fixtures"

Document = dict[str, Any]

# What the healthy host's declarations excuse.
EXCUSED = {
    "driver.loaded": "gpu_expect: {count: 0}",
    "driver.pending": "gpu_driver: not set",
    "stack.gpu": "gpu_expect: {count: 0}",
}


def document(name: str) -> Document:
    """A fresh copy of a saved document."""
    found: Document = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return found


@pytest.fixture
def plan() -> Document:
    """A host without a GPU, one stack: TensorFlow 2.13.1, CUDA 11.8, cuDNN 8.6."""
    return document("plan.json")


@pytest.fixture
def snapshot() -> Document:
    """The same host, as it should be."""
    return document("snapshot.json")


def verdicts(plan: Document, snapshot: Document) -> dict[str, str]:
    """{check: verdict}."""
    return {check["id"]: check["verdict"] for check in judge.judge(plan, snapshot)["checks"]}


def data(snapshot: Document, section: str) -> Any:
    """The data of a section, to be changed."""
    return snapshot["sections"][section]["data"]
