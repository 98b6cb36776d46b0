# Apache-2.0, see LICENSE
"""The usual use of testinfra: each assertion connects to the host. ``fleet.py`` runs it."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.mark.parametrize("question", range(int(os.environ["QUESTIONS"])))
def test_one_thing(host: Any, question: int) -> None:
    assert host.file("/etc/hostname").exists, question
