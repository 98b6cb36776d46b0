"""The GPUs of `nvidia-smi -q -x`: what checks read by name, and every other element as its text."""

import re

from . import smi_elements
from .smi_elements import NO_ANSWER
from .text import is_number

# Texts in the place of a value. Above SENTINEL are the largest numbers of 64 bits and their
# neighbours (9223372036854775794), which some drivers print for what a card does not count.
NO_VALUE = re.compile(
    r"^\[?(n/?a|none|not (supported|available|active)|requested"
    r" functionality.*)\]?$",
    re.IGNORECASE,
)
NUMBER = re.compile(r"^\[?(-?\d+(?:\.\d+)?) ?(?:x|%|[A-Za-z]{1,3}(?:/s)?|bank\(s\))?\]?$")
SENTINEL, SENTINEL_32 = 1 << 62, (1 << 32) - 1
REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application-clocks",
    "sw_power_cap": "sw-power-cap",
    "hw_slowdown": "hw-slowdown",
    "hw_thermal_slowdown": "hw-thermal",
    "hw_power_brake_slowdown": "hw-power-brake",
    "sync_boost": "sync-boost",
    "sw_thermal_slowdown": "sw-thermal",
    "display_clocks_setting": "display-clocks",
    "display_clock_setting": "display-clocks",
}
ADDRESS = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$")


def parse_smi(out):
    """The versions, the cards and whether the document is whole, of what nvidia-smi printed.

    Each card that the document begins is there, with its place and address, whatever else of it
    can be read: one that fails neither hides the others nor takes their numbers.
    """
    text = smi_elements.readable(out)
    return dict(
        smi_elements.head(text),
        devices=[
            SmiDevice(element, fault).document(index, name)
            for index, (name, element, fault) in enumerate(smi_elements.cards(text))
        ],
    )


def pci_address(text):
    """`0000:3b:00.0` of an address in any of nvidia-smi's forms; None of other text."""
    match = ADDRESS.match((text or "").strip().lower())
    return match and "%04x:%s" % (int(match.group(1) or "0", 16), match.group(2))


def on_bus(host, address):
    """The kernel's address of a card: Azure's has 16 bits of the domain that the driver prints in
    32 (NVIDIA/nvidia-docker issue 1316). A kernel with wider domains has the address as it is."""
    domain, _, place = (address or "").partition(":")
    known = not place or host.exists("/sys/bus/pci/devices/" + address)
    short = domain[-4:] + ":" + place
    return short if not known and host.exists("/sys/bus/pci/devices/" + short) else address


class SmiDevice:
    """One `<gpu>` of the document. What is no value is None, and named in `raw_unknown`.

    Elements were renamed from driver to driver; the first that is there is read. `unanswered` has
    what the card failed to answer: an error's text, or one where a number or a switch should be.
    """

    def __init__(self, element, fault=None):
        self.element, self.fault = element, fault
        self.raw_unknown, self.unanswered = [], []

    def text(self, field, *paths):
        """The text of the first of these elements that is there; None if it stands for no value."""
        for path in paths:
            found = self.element.stands_for(path)
            if found is None:
                continue
            value = found.text
            if NO_ANSWER.search(value):
                self.failed(field, value)
            if not value or NO_VALUE.match(value) or NO_ANSWER.search(value):
                break
            return value
        else:
            if self.fault:
                # It may stand in the part that could not be read.
                return None
        self.raw_unknown.append(field)
        return None

    def failed(self, field, text):
        self.unanswered.append("%s: %s" % (field, text[:80]))
        self.raw_unknown.append(field)

    def number(self, field, *paths, **more):
        """A number without its unit: whole, unless there is a point in it and `real` is asked."""
        text = self.text(field, *paths)
        if text is None:
            return None
        match = NUMBER.match(text)
        if not match:
            self.failed(field, text)
            return None
        value = float(match.group(1))
        if abs(value) >= SENTINEL or value == SENTINEL_32:
            self.raw_unknown.append(field)
            return None
        return value if more.get("real") else int(value)

    def boolean(self, field, *paths):
        """True for Yes, Enabled and Active, False for their contraries."""
        text = self.text(field, *paths)
        if text is None:
            return None
        if text.lower() in ("yes", "enabled", "active", "1", "pending"):
            return True
        if text.lower() in ("no", "disabled", "0"):
            return False
        self.failed(field, text)
        return None

    def total(self, field, location):
        """Errors that could not be corrected, as each generation of drivers counts them.

        One counter that was not read leaves the sum unknown, unless the others have errors.
        """
        block = self.element.stands_for(location)
        if block is None or not block.parts:
            self.text(field, location)
            return None
        if block.find("double_bit/total") is not None:
            return self.number(field, location + "/double_bit/total")
        names = [
            part.name
            for part in block.parts
            if part.name == "dram_uncorrectable"
            or re.match(r"sram_uncorrectable(_parity|_secded)?$", part.name)
        ]
        failures = len(self.unanswered)
        counts = [self.number(field, location + "/" + name) for name in names]
        if not names:
            self.raw_unknown.append(field)
        known = [count for count in counts if count is not None]
        return (
            (sum(known) or None)
            if len(self.unanswered) > failures
            else (sum(known) if known else None)
        )

    def throttle(self):
        """Why the clocks are lower than possible; None if the card does not report it."""
        for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
            block = self.element.find(name)
            if block is not None and block.parts:
                break
        else:
            self.text("throttle", "clocks_event_reasons", "clocks_throttle_reasons")
            return None
        active, known = [], False
        for part in block.parts:
            reason = re.sub(r"^clocks_(event|throttle)_reasons?_", "", part.name)
            if part.text == "Active":
                active.append(REASONS.get(reason, reason.replace("_", "-")))
            elif part.text and part.text != "Not Active" and not NO_VALUE.match(part.text):
                self.failed("throttle", part.text)
            known = known or part.text in ("Active", "Not Active")
        if not known and "throttle" not in self.raw_unknown:
            self.raw_unknown.append("throttle")
        # An active reason is known; the lack of any, only where each could be read.
        failed = [text for text in self.unanswered if text.startswith("throttle:")]
        return sorted(active) if known and (active or not failed) else None

    def remap(self):
        rows = {
            "pending": self.boolean("remap.pending", "remapped_rows/remapped_row_pending"),
            "failure": self.boolean("remap.failure", "remapped_rows/remapped_row_failure"),
            "correctable": self.number("remap.correctable", "remapped_rows/remapped_row_corr"),
            "uncorrectable": self.number("remap.uncorrectable", "remapped_rows/remapped_row_unc"),
        }
        failed = any(text.startswith("remap.") for text in self.unanswered)
        if all(value is None for value in rows.values()) and not self.fault and not failed:
            self.raw_unknown = [
                name for name in self.raw_unknown if not name.startswith("remap.")
            ] + ["remap"]
            return None
        return rows

    def processes(self):
        found, block = [], self.element.find("processes")
        for entry in block.parts if block is not None else ():
            texts = {part.name: part.text for part in entry.parts}
            memory = re.match(r"\d+", texts.get("used_memory", ""))
            if entry.name == "process_info" and is_number(texts.get("pid", "")):
                found.append(
                    {
                        "pid": int(texts["pid"]),
                        "name": texts.get("process_name") or None,
                        "memory_mib": int(memory.group()) if memory else None,
                    }
                )
        return found

    def document(self, index, name):
        """The card as the snapshot has it; `name` is the `id` of its element."""
        link = "pci/pci_gpu_link_info/"
        # From branch 610 on, the limits stand one level further down.
        power = (
            "gpu_power_readings/",
            "gpu_power_readings/gpu_ceiling_power_limit/",
            "power_readings/",
        )

        def watts(field, *names):
            return self.number(field, *[p + name for p in power for name in names], real=True)

        found = {
            "index": index,
            "address": pci_address(name)
            or pci_address(self.text("address", "pci/pci_bus_id"))
            or name
            or "unknown",
            "uuid": self.text("uuid", "uuid"),
            "name": self.text("name", "product_name"),
            "memory_total_mib": self.number("memory_total_mib", "fb_memory_usage/total"),
            "memory_used_mib": self.number("memory_used_mib", "fb_memory_usage/used"),
            "memory_free_mib": self.number("memory_free_mib", "fb_memory_usage/free"),
            "compute_capability": None,
            "persistence": self.boolean("persistence", "persistence_mode"),
            "compute_mode": (self.text("compute_mode", "compute_mode") or "").lower() or None,
            "ecc": self.boolean("ecc", "ecc_mode/current_ecc"),
            "ecc_pending": self.boolean("ecc_pending", "ecc_mode/pending_ecc"),
            "ecc_uncorrected_volatile": self.total(
                "ecc_uncorrected_volatile", "ecc_errors/volatile"
            ),
            "ecc_uncorrected_aggregate": self.total(
                "ecc_uncorrected_aggregate", "ecc_errors/aggregate"
            ),
            "retired_pending": self.boolean(
                "retired_pending",
                "retired_pages/pending_retirement",
                "retired_pages/pending_blacklist",
            ),
            "remap": self.remap(),
            "power_limit_w": watts("power_limit_w", "current_power_limit", "power_limit"),
            "power_default_w": watts("power_default_w", "default_power_limit"),
            "power_max_w": watts("power_max_w", "max_power_limit"),
            "power_w": watts("power_w", "instant_power_draw", "power_draw", "average_power_draw"),
            "temperature_c": self.number("temperature_c", "temperature/gpu_temp"),
            "temperature_slowdown_c": self.number(
                "temperature_slowdown_c", "temperature/gpu_temp_slow_threshold"
            ),
            "throttle": self.throttle(),
            "clock_sm_mhz": self.number("clock_sm_mhz", "clocks/sm_clock"),
            "clock_sm_max_mhz": self.number("clock_sm_max_mhz", "max_clocks/sm_clock"),
            "pcie": {
                "generation": self.number("pcie.generation", link + "pcie_gen/current_link_gen"),
                "generation_max": self.number(
                    "pcie.generation_max", link + "pcie_gen/max_link_gen"
                ),
                "width": self.number("pcie.width", link + "link_widths/current_link_width"),
                "width_max": self.number("pcie.width_max", link + "link_widths/max_link_width"),
            },
            "utilization_percent": self.number("utilization_percent", "utilization/gpu_util"),
            "processes": self.processes(),
        }
        return dict(
            found,
            raw_unknown=sorted(set(self.raw_unknown)),
            unanswered=list(dict.fromkeys(self.unanswered)),
            broken=self.fault,
            elements=dict(
                list(self.element.texts())[: smi_elements.LARGEST],
                **({"gpu": self.element.text} if self.element.text else {}),
            ),
        )
