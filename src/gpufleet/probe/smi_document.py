"""Parse the XML document of `nvidia-smi -q -x`."""
import re

from .text import first_match

# What stands for a value and is none. Above it are the largest numbers of 64 bits and their
# neighbours (9223372036854775794), which some drivers print for what a card does not count.
NO_VALUE = re.compile(r"^\[?(n/?a|none|not (supported|available|active|found)|requested"
                      r" functionality.*)\]?$", re.IGNORECASE)
NO_ANSWER = re.compile(r"unknown error|^\[?err!?\]?|is lost|requires reset|insufficient permission"
                       r"|no permission|timeout", re.IGNORECASE)
SENTINEL, SENTINEL_32 = 1 << 62, (1 << 32) - 1
REASONS = {"gpu_idle": "idle", "applications_clocks_setting": "application-clocks",
           "sw_power_cap": "sw-power-cap", "hw_slowdown": "hw-slowdown",
           "hw_thermal_slowdown": "hw-thermal", "hw_power_brake_slowdown": "hw-power-brake",
           "sync_boost": "sync-boost", "sw_thermal_slowdown": "sw-thermal",
           "display_clocks_setting": "display-clocks", "display_clock_setting": "display-clocks"}


def parse_smi(out):
    """{"driver_version", "cuda_version", "devices"} of what `nvidia-smi -q -x` printed.

    Card by card, so that one at which it broke off does not hide the others.
    """
    from xml.etree import ElementTree
    devices = []
    for text in re.findall(r"<gpu id=.*?</gpu>", out, re.DOTALL):
        try:
            devices.append(SmiDevice(ElementTree.fromstring(text)).document(len(devices)))
        except ElementTree.ParseError:
            continue
    head = out.partition("<gpu id=")[0]
    return {"driver_version": first_match(r"<driver_version>\s*([\d.]+)\s*<", head),
            "cuda_version": first_match(r"<cuda_version>\s*([\d.]+)\s*<", head),
            "devices": devices}


class SmiDevice:
    """One `<gpu>` of the document. What is no value is None, and named in `raw_unknown`.

    Elements were renamed from driver to driver; the first that is there is read.
    """

    def __init__(self, element):
        self.element = element
        self.raw_unknown, self.unanswered = [], []

    def text(self, field, *paths):
        """The text of the first of these elements that is there; None if it stands for no value."""
        for path in paths:
            found = self.element.find(path)
            if found is None:
                continue
            value = (found.text or "").strip()
            if NO_ANSWER.search(value):
                self.unanswered.append("%s: %s" % (field, value))
            if not value or NO_VALUE.match(value) or NO_ANSWER.search(value):
                break
            return value
        self.raw_unknown.append(field)
        return None

    def number(self, field, *paths, **more):
        """A number without its unit: whole, unless there is a point in it and `real` is asked."""
        text = self.text(field, *paths)
        if text is None:
            return None
        match = re.match(r"-?\d+(\.\d+)?", text)
        value = float(match.group()) if match else None
        if value is None or abs(value) >= SENTINEL or value == SENTINEL_32:
            self.raw_unknown.append(field)
            return None
        return value if more.get("real") else int(value)

    def boolean(self, field, *paths):
        """True for Yes, Enabled and Active, False for their contraries."""
        text = (self.text(field, *paths) or "").lower()
        if text in ("yes", "enabled", "active", "1", "pending"):
            return True
        if text in ("no", "disabled", "not active", "0"):
            return False
        if text:
            self.raw_unknown.append(field)
        return None

    def total(self, field, location):
        """Errors that could not be corrected, as each generation of drivers counts them."""
        block = self.element.find(location)
        if block is None:
            self.raw_unknown.append(field)
            return None
        if block.find("double_bit/total") is not None:
            return self.number(field, location + "/double_bit/total")
        names = [part.tag for part in block if part.tag == "dram_uncorrectable"
                 or re.match(r"sram_uncorrectable(_parity|_secded)?$", part.tag)]
        counts = [self.number(field, location + "/" + name) for name in names]
        if not names:
            self.raw_unknown.append(field)
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def throttle(self):
        """Why the clocks are lower than possible; None if the card does not report it."""
        for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
            block = self.element.find(name)
            reasons = [] if block is None else [
                (re.sub(r"^clocks_(event|throttle)_reasons?_", "", part.tag),
                 (part.text or "").strip()) for part in block]
            reasons = [(reason, text) for reason, text in reasons
                       if text in ("Active", "Not Active")]
            if reasons:
                return sorted(REASONS.get(reason, reason.replace("_", "-"))
                              for reason, text in reasons if text == "Active")
        self.raw_unknown.append("throttle")
        return None

    def remap(self):
        rows = {"pending": self.boolean("remap.pending", "remapped_rows/remapped_row_pending"),
                "failure": self.boolean("remap.failure", "remapped_rows/remapped_row_failure"),
                "correctable": self.number("remap.correctable", "remapped_rows/remapped_row_corr"),
                "uncorrectable": self.number("remap.uncorrectable",
                                             "remapped_rows/remapped_row_unc")}
        if all(value is None for value in rows.values()):
            self.raw_unknown = [name for name in self.raw_unknown
                                if not name.startswith("remap.")] + ["remap"]
            return None
        return rows

    def processes(self):
        found = []
        for entry in self.element.findall("processes/process_info"):
            pid = (entry.findtext("pid") or "").strip()
            memory = re.match(r"\d+", (entry.findtext("used_memory") or "").strip())
            if pid.isdigit():
                found.append({"pid": int(pid),
                              "name": (entry.findtext("process_name") or "").strip() or None,
                              "memory_mib": int(memory.group()) if memory else None})
        return found

    def document(self, index):
        link = "pci/pci_gpu_link_info/"
        power = ("gpu_power_readings/", "power_readings/")
        address = re.match(r"(?:([0-9a-f]+):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$",
                           (self.text("address", "pci/pci_bus_id") or self.element.get("id")
                            or "").strip().lower())
        ecc, pending = (self.text(field, path) for field, path in (
            ("ecc", "ecc_mode/current_ecc"), ("ecc_pending", "ecc_mode/pending_ecc")))
        states = {"Enabled": True, "Disabled": False}

        def watts(field, *names):
            return self.number(field, *[p + name for p in power for name in names], real=True)
        found = {
            "index": index,
            "address": address and "%04x:%s" % (int(address.group(1) or "0", 16),
                                                address.group(2)),
            "uuid": self.text("uuid", "uuid"), "name": self.text("name", "product_name"),
            "memory_total_mib": self.number("memory_total_mib", "fb_memory_usage/total"),
            "memory_used_mib": self.number("memory_used_mib", "fb_memory_usage/used"),
            "memory_free_mib": self.number("memory_free_mib", "fb_memory_usage/free"),
            "compute_capability": None,
            "persistence": self.boolean("persistence", "persistence_mode"),
            "compute_mode": (self.text("compute_mode", "compute_mode") or "").lower() or None,
            "ecc": states.get(ecc), "ecc_pending": states.get(pending),
            "ecc_uncorrected_volatile": self.total("ecc_uncorrected_volatile",
                                                   "ecc_errors/volatile"),
            "ecc_uncorrected_aggregate": self.total("ecc_uncorrected_aggregate",
                                                    "ecc_errors/aggregate"),
            "retired_pending": self.boolean("retired_pending", "retired_pages/pending_retirement",
                                        "retired_pages/pending_blacklist"),
            "remap": self.remap(),
            "power_limit_w": watts("power_limit_w", "current_power_limit", "power_limit"),
            "power_default_w": watts("power_default_w", "default_power_limit"),
            "power_max_w": watts("power_max_w", "max_power_limit"),
            "power_w": watts("power_w", "instant_power_draw", "power_draw", "average_power_draw"),
            "temperature_c": self.number("temperature_c", "temperature/gpu_temp"),
            "temperature_slowdown_c": self.number("temperature_slowdown_c",
                                                  "temperature/gpu_temp_slow_threshold"),
            "throttle": self.throttle(),
            "clock_sm_mhz": self.number("clock_sm_mhz", "clocks/sm_clock"),
            "clock_sm_max_mhz": self.number("clock_sm_max_mhz", "max_clocks/sm_clock"),
            "pcie": {
                "generation": self.number("pcie.generation", link + "pcie_gen/current_link_gen"),
                "generation_max": self.number("pcie.generation_max",
                                              link + "pcie_gen/max_link_gen"),
                "width": self.number("pcie.width", link + "link_widths/current_link_width"),
                "width_max": self.number("pcie.width_max", link + "link_widths/max_link_width")},
            "utilization_percent": self.number("utilization_percent", "utilization/gpu_util"),
            "processes": self.processes()}
        return dict(found, raw_unknown=sorted(set(self.raw_unknown)),
                    unanswered=list(dict.fromkeys(self.unanswered)))
