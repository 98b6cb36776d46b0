"""The section about floors of bandwidths: what healthy machines reach at least, by sources."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.catalog import facts

Table = Callable[[list[str], list[list[str]]], str]
MIB = 1 << 20
HEAD = """\
`gpufleet fabric test` compares a bandwidth with these figures only where nothing is declared, fewer
than four tests are alike, and the same hosts have fewer than {tests} earlier tests
([Test the fabric](../how-to/fabric.md#what-is-slow)). Bus bandwidth of `{operation}` in GB/s, with
NCCL's own choice within a host and the algorithm Ring between hosts, from {mib} MiB on, and from
{part} MiB for each GPU.

The limits of public tools differ widely for one machine, and some fail healthy ones. A floor is
below what any healthy machine of the sources reached, and not above the lowest limit: a machine
below it is broken. One that is a little slow is seen by comparison alone.

- **Within a host**: all its GPUs, connected by NVLink. An H100 NVL pair is judged where
  `gpu_expect.nvlinks` is declared. Machines whose GPUs are connected by PCIe alone have no floor.
- **Between hosts**: {share:.0%} of what the compute ports carry, a port no more than the PCIe of
  its card, and no more than the floor within a host. A single rail: the same of its port. EFA has
  none.
- **Own past**: from {tests} earlier tests of the same hosts, collective, size and algorithm on,
  what is below {past:.0%} of their median is slow.

"""


def section(table: Table) -> str:
    """The section of the page of checks."""
    data = facts.document("bandwidth.yml")
    head = HEAD.format(
        operation=data["applies"]["operation"],
        mib=data["applies"]["bytes"] // MIB,
        part=data["applies"]["bytes_per_rank"] // MIB,
        share=data["adapters"]["share"],
        tests=data["past"]["tests"],
        past=data["past"]["share"],
    )
    rows = [
        [
            ", ".join(row["names"]),
            str(row["gpus"]),
            _number(row.get("gb_s")),
            _number(row.get("port")),
            _number(row.get("hosts")) or "by the ports",
            ", ".join(map(_number, row["healthy"])),
            ", ".join(map(_number, row["asked"])),
            ", ".join(row["source"]),
        ]
        for row in data["models"]
    ]
    heading = ["GPU", "GPUs", "within a host", "most of a port", "between hosts"]
    heading += ["healthy ones reached", "public tools ask", "sources"]
    sources = "".join(f"- `{key}`: {text}\n" for key, text in data["sources"].items())
    rules = "".join(
        f"- {what}: {', '.join(data[key]['source'])}\n"
        for key, what in (
            ("applies", "sizes and algorithms"),
            ("adapters", "share of the ports"),
            ("past", "own past"),
        )
    )
    return (
        f"## Floors of bandwidths\n\n{head}{table(heading, rows)}\n"
        f"### Sources of the floors\n\n{sources}\nOf the rules:\n\n{rules}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
