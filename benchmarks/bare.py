# Apache-2.0, see LICENSE
"""The minimum to probe many hosts: ClusterShell feeds the probe to ssh and collects the output.

No part of gpufleet but the probe's own text; ``fleet.py`` says how the hosts are reached.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from ClusterShell.Task import task_self
from ClusterShell.Worker.Popen import WorkerPopen

from gpufleet.on_host import payload

settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
program = f"CONFIG = {json.dumps(settings['config'])!r}\n{payload.probe()}".encode()
task = task_self()
task.set_info("fanout", settings["at_once"])
workers = []
for name, args in settings["hosts"].items():
    worker = WorkerPopen(shlex.join(args), key=name)
    task.schedule(worker)
    worker.write(program)
    worker.set_write_eof()
    workers.append(worker)
task.resume()
answers = [json.loads(worker.read().splitlines()[-1]) for worker in workers]
print(f"{len(answers)} snapshots")
