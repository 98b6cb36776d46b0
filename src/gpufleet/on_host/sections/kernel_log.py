"""Section `kernel_log`: messages of the kernel since boot that concern GPUs and machine."""

import os
import re
import time

from ..kernel_messages import (
    BOOT_LINE,
    BY_TEXT,
    EVENTS,
    FAILED,
    FAILED_LOAD,
    FIRST_OF_THREE,
    FURTHER,
    JOINED,
    LATE_LOAD_LINE,
    LOAD_LINE,
    MOST_TEXTS,
    OF_A_FILE,
    OF_A_MODULE,
    OF_A_PROCESS,
    OF_THE_BUS,
    OF_THE_CARD,
    OF_THE_DRIVER,
    RECORD,
    RESET_LINE,
    SEVERE,
    TRACE_ENDS,
    TRACE_IN_DRIVER,
    UNLOAD_LINE,
    WORDS,
)
from ..processes import run_command
from ..programs import find_program
from ..text import first_match, open_regular
from .kernel import container_of

# How much of the end of a file is read.
MOST_BYTES = 16 << 20
# How long after the boot syslog may write its first line.
SYSLOG_STARTS_S = 600
# The text that kernels with CONFIG_PRINTK_CALLER print behind the time.
CALLER = r"(?:\[\s*[TC]\d+\]\s)?"
# A trace is logged at once: further lines are of another failure.
TRACE_S = 5


def section_kernel_log(host):
    """Messages of the kernel since boot about GPUs and machine. Not read in mode facts."""
    found = {"source": None, "error": None, "since_boot": False, "complete": False, "events": []}
    # A container without a card has no log of its own, and another's is not its business.
    if host["mode"] != "full" or (
        container_of(host) and not host.exists("/proc/driver/nvidia/version")
    ):
        return found
    denied, partly, written = [], [], None
    for source, reader in (("journal", journal_lines), ("dmesg", dmesg_lines), (None, file_lines)):
        try:
            result = reader(host)
        except PermissionError as error:
            denied.append(str(error))
            continue
        if result and source is None:
            written = result
        elif result and reaches_boot(result):
            return dict(found, **log_of(host, source, result))
        elif result:
            partly.append((source, result))
    # None reaches back to the boot: the longest one, and what a file has from before it.
    source, lines = max(partly, key=lambda pair: len(pair[1]), default=(None, []))
    if written:
        before = [
            line for line in written[1] if not lines or line[0] is None or line[0] < lines[0][0]
        ]
        if before or not lines:
            return dict(found, **log_of(host, written[0], lines, before))
    if lines:
        return dict(found, **log_of(host, source, lines))
    return dict(found, error="; ".join(denied) or None)


def reaches_boot(lines):
    return any(text.startswith(BOOT_LINE) for _, text in lines)


def log_of(host, source, lines, written=()):
    """The section's report of a log; `written`: lines of a file that come before its own."""
    events = kernel_events(lines, written)
    for event in events:
        if event["kind"] in ("pcie-error", "link-down"):
            event["below"] = devices_below(host, event["address"])
        elif event["kind"] in OF_A_MODULE:
            event["loaded"] = is_loaded(host, event["process"])
    return {
        "source": source,
        "since_boot": True,
        "events": events,
        "complete": reaches_boot([*written, *lines]),
    }


def parse_stamped(out):
    """Seconds since boot (or None) and text of lines as dmesg and journalctl print them."""
    lines = []
    for line in out.splitlines():
        match = re.match(
            r"\[\s*(\d+\.\d+)\]\s?" + CALLER + r"(?:\S+ kernel: )?" + CALLER + "(.*)", line
        )
        if match:
            lines.append((float(match.group(1)), match.group(2)))
        elif lines and line.strip():
            # A message of several lines has its time in the first alone.
            lines[-1] = (lines[-1][0], lines[-1][1] + "\n" + line.strip())
    return lines


def journal_lines(host):
    """The kernel's lines of this boot; none where systemd's journal is not, or is not readable."""
    program = find_program(host, "journalctl")
    if not program:
        return []
    status, out, err = run_command(
        [host.path(program), "-k", "-b", "-a", "-q", "--no-pager", "-o", "short-monotonic"],
        host.inner_s / 3,
    )
    if status != 0 and "insufficient permissions" in err.lower():
        raise PermissionError("journalctl: insufficient permissions")
    return parse_stamped(out) if status == 0 else []


def dmesg_lines(host):
    program = find_program(host, "dmesg")
    if not program:
        return []
    status, out, err = run_command([host.path(program)], host.inner_s / 3)
    if status != 0 and "not permitted" in err:
        raise PermissionError("dmesg: not permitted")
    return parse_stamped(out) if status == 0 else []


def file_lines(host):
    """The file of syslog, and its lines with seconds (or None) since boot; None without a file.

    The one before the last rotation is read too, since a boot may be as long ago.
    """
    now, times = time.time(), {}
    boot = first_match(r"^btime (\d+)", host.text_or_none("/proc/stat"))
    for name in ("/var/log/kern.log", "/var/log/messages"):
        if boot is None or not host.exists(name):
            continue
        text = (end_of(host, name + ".1") if host.exists(name + ".1") else "") + end_of(host, name)
        lines = []
        for line in text.split("\n"):
            match = " kernel: " in line and re.match(
                r"(\w{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ kernel:"
                r" (?:\[\s*(\d+\.\d+)\] ?" + CALLER + ")?(.*)",
                line,
            )
            if not match:
                continue
            if match.group(1) not in times:
                times[match.group(1)] = syslog_time(match.group(1), now)
            logged_at = times[match.group(1)]
            # The clock is often set a little after the kernel began to speak.
            if logged_at is not None and logged_at < int(boot) - 120:
                continue
            if match.group(3).startswith(BOOT_LINE):
                if logged_at is None or logged_at > int(boot) + SYSLOG_STARTS_S:
                    continue  # not the kernel's: any user can add a line
                lines = []
            lines.append((float(match.group(2)) if match.group(2) else None, match.group(3)))
        return "file:" + name, lines
    return None


def end_of(host, name):
    """The last lines of a file, which may be of any size."""
    with open_regular(host.path(name)) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST_BYTES))
        return stream.read(MOST_BYTES).decode("utf-8", "replace")


def syslog_time(text, now):
    """Seconds since the epoch of syslog's time; where it has no year, the last that is past."""
    if text[:4].isdigit():
        match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?", text)
        if not match:
            return None
        zone = (match.group(2) or "Z").replace(":", "")
        offset = (
            0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
        )
        import calendar

        return calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")) - offset
    this = time.localtime(now).tm_year
    for year in range(this, this - 5, -1):
        try:
            logged_at = time.mktime(time.strptime("%d %s" % (year, text), "%Y %b %d %H:%M:%S"))
        except ValueError:
            # The 29th of February is of a leap year.
            continue
        if logged_at <= now + 86400:
            return logged_at
    return None


def kernel_events(lines, written=()):
    """One entry per kind, code and GPU, with the number of messages and the last one.

    Of SXids one per severity, of PCIe errors fatal and other ones, of Xids in BY_TEXT one per text.
    `written` come before: lines of a file, which any user can add and which clear no card's error.
    """
    found, loading, failed = {}, False, False
    for own, seconds, text in (
        *((False, *line) for line in joined_lines(written)),
        *((True, *line) for line in joined_lines(lines)),
    ):
        unloaded = UNLOAD_LINE.search(text)
        if unloaded and failed:
            # The first line of this load cleared what came before; what came since still stands.
            loading = failed = False
            continue
        early = unloaded or LOAD_LINE.search(text)
        if early:
            failed = False
        elif FAILED_LOAD.search(text):
            failed = True
        if early or LATE_LOAD_LINE.search(text):
            if early or not loading:
                past = OF_THE_DRIVER if own else OF_A_FILE
                found = {key: event for key, event in found.items() if key[0] not in past}
            loading = bool(early)
            continue
        reset = RESET_LINE.search(text)
        if reset:
            address = full_address(next(filter(None, reset.groups())))
            if own:
                found = {
                    key: event
                    for key, event in found.items()
                    if key[0] not in OF_THE_CARD or key[2] != address
                }
            continue
        for kind, pattern in EVENTS:
            match = pattern.search(text)
            if match:
                add_event(found, kind, match, seconds, text)
                break
    return list(found.values())


def add_event(found, kind, match, seconds, text):
    """Count a message with those of its key, and keep its text if it tells more than the last."""
    named, rest = match.groupdict(), match.string[match.end() :]
    address = named.get("address") and full_address(named["address"])
    code = int(named["code"]) if named.get("code") else None
    # The second line of an SXid repeats the first, but for its words.
    again = bool(kind == "sxid" and re.match(r"Severity \d", rest))
    if kind == "xid" and code is None:
        # A message that the driver prints beside 79, or instead of it.
        code = 79
        again = (kind, code, address, None) in found
    variant = None
    if kind in OF_A_MODULE:
        # The kernel names each symbol; the first is that of the cause.
        variant = named["process"]
        again = (kind, code, address, variant) in found
    elif kind == "port-down":
        # A driver may print a cable's event and the link's for the same.
        variant = "Cable" in text
    elif kind == "sxid":
        severity = re.match(r"Severity ([01])|(Non-fatal|Fatal|Correctable)", rest)
        variant = severity and {"0": "Non-fatal", "1": "Fatal"}.get(
            severity.group(1), severity.group(2)
        )
    elif kind == "pcie-error":
        variant = bool(
            re.search(r"[( ]Fatal\)|DPC: |can't recover|recovery failed|type: fatal", text)
        )
    elif code == 45:
        # The Xid that ended the program, which may be logged nowhere else.
        before = re.search(r"caused by previous Xid (\d+)", rest)
        variant = before and before.group(1)
    elif code in BY_TEXT:
        # The deciding part: the words of 64, else whether it is fatal, and the first registers.
        registers = tuple(re.findall(r"0x\w+", rest)[: 7 if code == 74 else 2])
        variant = (
            re.sub(r"0x\w+", "", rest) if code == 64 else "onfatal" in rest,
            registers[7 * (code == 64) :],
        )
        known = sum(key[:3] == (kind, code, address) for key in found)
        if known >= MOST_TEXTS and (kind, code, address, variant) not in found:
            variant = variant[0]
    key = (kind, code, address, variant)
    last = found.pop(key, None)
    if again and last:
        found[key] = dict(last, uptime_s=seconds)
        return
    process = named.get("process")
    found[key] = {
        "kind": kind,
        "code": code,
        "address": address,
        "pid": int(named["pid"]) if named.get("pid") else None,
        "process": None if process == "<unknown>" else process,
        "uptime_s": seconds,
        "count": last["count"] + 1 if last else 1,
        "text": text[:300],
    }


def joined_lines(lines):
    """The same lines, with those of one message as one."""
    return with_traces(with_records(whole_messages(lines)))


def whole_messages(lines):
    """The same lines with the driver's message of three lines as one."""
    head, more = None, 0
    for seconds, text in lines:
        if not any(word in text for word in WORDS) or OF_A_PROCESS.match(text):
            continue
        # Only the driver's own messages go on in further lines: a file's name may contain any.
        parts = re.split(r"#012|\\n|\\x0a|\n", text)
        for part in parts if text.startswith("NVRM: ") else parts[:1]:
            if head and more and FURTHER.search(part):
                head = (head[0], head[1] + " " + FURTHER.sub("", part, 1))
                more -= 1
                continue
            if head:
                yield head
                head = None
            if FIRST_OF_THREE.search(part):
                head, more = (seconds, part), 3
            else:
                yield seconds, part
    if head:
        yield head


def with_traces(lines):
    """The same lines, with the place in NVIDIA's driver behind the message of a kernel that failed.

    The place stands in one of the lines after it, which others may interrupt.
    """
    head = None
    for seconds, text in lines:
        late = head and None not in (seconds, head[0]) and seconds > head[0] + TRACE_S
        if head and (late or TRACE_ENDS in text):
            yield head
            head = None
        if head and TRACE_IN_DRIVER.search(text):
            yield head[0], head[1] + " | " + text.strip()
            head = None
        elif FAILED.search(text):
            # Where several lines report a failure, the first is kept.
            head = head or (seconds, text)
        else:
            yield seconds, text
    if head:
        yield head


def with_records(lines):
    """The same lines, with what a severe error in a record of the firmware is about in one line.

    Other lines may come between those of a record, of which some errors may not be severe.
    """
    since = number = first = None
    parts = []
    for seconds, text in lines:
        line = RECORD.search(text)
        late = parts and None not in (seconds, since) and seconds > since + TRACE_S
        if parts and (late or (line and line.group("begins"))):
            yield since, JOINED.join(parts)
            parts = []
        if line is None:
            yield seconds, text
        elif line.group("begins"):
            since, number, first = seconds, line.group("number"), text
            parts = [text] if line.group("begins") in SEVERE else []
        elif line.group("number") != number:
            continue
        elif line.group("error"):
            if len(parts) > 1:
                yield since, JOINED.join(parts)
            parts = [first, line.group("text")] if line.group("error") in SEVERE else []
        # Which device it was stands in one of the lines behind the kind.
        elif parts and (line.group("section") or OF_THE_BUS in parts[-1]):
            parts.append(line.group("text"))
            if line.group("section") != OF_THE_BUS:
                yield since, JOINED.join(parts)
                parts = []
    if parts:
        yield since, JOINED.join(parts)


def devices_below(host, port):
    """The addresses of NVIDIA's devices that are reached through this port."""
    found = []
    for directory in host.glob("/sys/bus/pci/devices/*"):
        if (host.text_or_none(directory + "/vendor") or "").strip() == "0x10de":
            above = host.realpath(directory).split("/")[:-1]
            if port in above:
                found.append(os.path.basename(directory))
    return found


def is_loaded(host, module):
    """True for a kernel module that is loaded now; None where that cannot be read."""
    text = host.text_or_none("/proc/modules")
    name = module.replace("-", "_")
    return None if text is None else any(line.split()[0] == name for line in text.splitlines())


def full_address(text):
    """`PCI:0000:3B:00` as sysfs writes it: 0000:3b:00.0."""
    # Some lines name no domain.
    domain, _, rest = (text if text.count(":") > 1 else "0000:" + text).lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest if "." in rest else rest + ".0")
