"""NVML's sensors of a GPU: temperature, clock, power, throttling; and its PCI Express link."""

import ctypes

from .library import Library, Refused

HOLDS_BACK = {
    0x2: "application-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}
# Bits that other drivers know, or have no name for. A GPU that is idle is not held back.
OTHER = ~(sum(HOLDS_BACK) | 0x1)

# The present generation and width of a link, and the most that card and slot allow together.
LINK = {
    "generation": ("Curr", "Generation"),
    "width": ("Curr", "Width"),
    "generation_max": ("Max", "Generation"),
    "width_max": ("Max", "Width"),
}


class Sensors(Library):
    """NVML's view of one GPU; what cannot be read is None."""

    def __init__(self, pci_address):
        Library.__init__(self, "libnvidia-ml.so.1")
        self("nvmlInit_v2")
        self.handle = ctypes.c_void_p()
        self("nvmlDeviceGetHandleByPciBusId_v2", pci_address.encode(), ctypes.byref(self.handle))

    def read(self, function, kind, *arguments):
        value = kind()
        try:
            self(function, self.handle, *[*arguments, ctypes.byref(value)])
        except Refused:
            return None
        return value.value

    def sample(self):
        power = self.read("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        reasons = self.read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return {
            "temperature_c": self.read("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            "clock_sm_mhz": self.read("nvmlDeviceGetClockInfo", ctypes.c_uint, 1),
            "power_w": power and power // 1000,
            "throttle": None
            if reasons is None
            else [name for bit, name in sorted(HOLDS_BACK.items()) if reasons & bit]
            + ["other"] * bool(reasons & OTHER),
        }

    def link(self):
        return {
            key: self.read("nvmlDeviceGet%sPcieLink%s" % function, ctypes.c_uint)
            for key, function in LINK.items()
        }


def link_reader(pci_address):
    """A function that reads the link of the GPU at this address; without NVML it reads nothing."""
    try:
        return Sensors(pci_address).link
    except (Refused, OSError):
        return lambda: dict.fromkeys(LINK)


def sensors(pci_address):
    """A function that reads a GPU's sensors; without NVML it reads nothing."""
    try:
        return Sensors(pci_address).sample
    except (Refused, OSError):
        return lambda: {
            "temperature_c": None,
            "clock_sm_mhz": None,
            "power_w": None,
            "throttle": None,
        }
