"""Probe this host by hand: ``python3 -m gpufleet.on_host [KEY=VALUE ...]``, started in `src/`."""

import json

from .payload import workload
from .runner import main

main(json.dumps({"matmul": workload()}))
