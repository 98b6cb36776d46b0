"""A healthy host with two GPUs, of which the computing is done by stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpufleet.judge import judge
from gpufleet.on_host.constants import FRAMEWORK_MARK
from gpufleet.on_host.host import Host
from gpufleet.on_host.workload_run import run_framework
from tests.support.healthy_host import data, document
from tests.support.host_parts import as_listed, with_gpus
from tests.support.toolkit_run import run

INTERPRETER = """\
#!/bin/sh
cat {home}/chatter >&2
cat {home}/document
"""


class Computing:
    """A host whose stand-ins compute as they are configured, and the verdicts about it."""

    def __init__(self, home: Path, libraries: tuple[Path, Path]) -> None:
        self.home, self.libraries = home, libraries
        self.plan, self.snapshot = document("plan.json"), document("snapshot.json")
        with_gpus(self.plan, self.snapshot)
        # What is proven here is that of the stand-ins' own releases.
        self.plan["toolkits"][0].update(path=str(libraries[0]), short="12.2")
        self.plan["cudnn"][0].update(toolkit="12.2", short="8.9.7")
        self.reported: dict[str, str] = {}
        self.chatter = ""
        self.holders: list[dict[str, Any]] = []
        self.framework: dict[str, Any] = data(self.snapshot, "stacks")["stacks"][0]["framework"]

    def checks(self) -> dict[str, dict[str, Any]]:
        """The checks by the present work of the stand-ins."""
        data(self.snapshot, "driver")["holders"] = self.holders
        if self.holders:
            data(self.snapshot, "smi")["devices"][0]["memory_free_mib"] = 300
        result = run(self.libraries, **self.reported)
        # The CPU, which computes here, is no GPU of the listed model.
        for entry in result["cublas"]:
            entry["tflops"] = entry["tflops"] and 34.4
        for device in result["devices"]:
            # The stand-in of nvidia-smi lists other cards than the stand-in of CUDA.
            if device["name"] == "Stand-in GPU":
                device["name"] = data(self.snapshot, "smi")["devices"][0]["name"]
        data(self.snapshot, "compute").update(deep=False, runs=[result])
        as_listed(self.snapshot)
        stack = data(self.snapshot, "stacks")["stacks"][0]
        stack["framework"] = self._of_the_interpreter(stack["venv"])
        return {row["id"]: row for row in judge.judge(self.plan, self.snapshot)["checks"]}

    def _of_the_interpreter(self, venv: str) -> dict[str, Any]:
        """The framework's run as the probe sees it."""
        program = self.home / venv.lstrip("/") / "bin/python"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(INTERPRETER.format(home=self.home))
        program.chmod(0o755)
        (self.home / "chatter").write_text(f"{self.chatter}\n")
        # What TensorFlow says beside it is read by the probe.
        printed = {key: value for key, value in self.framework.items() if key != "said"}
        (self.home / "document").write_text(f"noise\n{FRAMEWORK_MARK}{json.dumps(printed)}\n")
        host = Host({"root": str(self.home), "matmul": "", "tmpdir": "/"}, 20)
        found: dict[str, Any] = run_framework(host, {"venv": venv, "runs": "tensorflow"}, 10)
        return found
