"""Section `smi`: what nvidia-smi and NVML report of each GPU."""
import ctypes
import os
import re

from ..processes import NoAnswerError, in_child, run_command
from ..programs import nvidia_smi
from ..smi_document import parse_smi
from .driver import driver_library


def section_smi(host):
    """What nvidia-smi reports of each GPU, and whether NVML starts. Not run in mode facts."""
    found = {"asked": host["mode"] == "full", "program": None, "status": None, "error": None,
             "driver_version": None, "cuda_version": None,
             "nvml": {"status": None, "version": None, "count": None}, "devices": []}
    if not found["asked"]:
        return found
    # Without a loaded driver both fail at once, with the reason.
    found["program"] = nvidia_smi(host)
    capabilities = []
    library = driver_library(host, "libnvidia-ml.so.1")
    if host.real or os.path.exists(library):
        state, answer, error = in_child(query_nvml, (library,), host.inner_s / 2)
        if state == "hung":
            raise NoAnswerError("libnvidia-ml.so.1 gave no answer: %s" % error)
        if state == "ok":
            found["nvml"], capabilities = answer
    if found["program"]:
        status, out, err = run_command([host.path(found["program"]), "-q", "-x"],
                                       host.inner_s / 2)
        if status is None and err.startswith("no answer"):
            raise NoAnswerError("nvidia-smi gave %s" % err)
        found["status"] = status
        found.update(parse_smi(out))
        for device in found["devices"]:
            if device["index"] < len(capabilities):
                device["compute_capability"] = capabilities[device["index"]]
        if status != 0:
            # Its complaints stand on standard output, before or after the document or without it.
            message = re.sub(r"<\?xml.*?</nvidia_smi_log>", "", out, flags=re.DOTALL) + "\n" + err
            found["error"] = " ".join(message.split())[-300:] or "ended with status %s" % status
        elif not re.search(r"<nvidia_smi_log\b", out):
            found["error"] = "it printed no document: " + " ".join((out + err).split())[:200]
    return found


def query_nvml(name):
    """({"status", "version", "count"}, the cards' compute capabilities); 18: driver and library
    differ."""
    nvml = ctypes.CDLL(name)
    found = {"status": nvml.nvmlInit_v2(), "version": None, "count": None}
    if found["status"] != 0:
        return found, []
    text, count, capabilities = ctypes.create_string_buffer(96), ctypes.c_uint(), []
    if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
        found["version"] = text.value.decode("ascii", "replace")
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        found["count"] = count.value
    try:
        for index in range(count.value):
            card, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            known = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)) == 0 and \
                nvml.nvmlDeviceGetCudaComputeCapability(
                    card, ctypes.byref(major), ctypes.byref(minor)) == 0
            capabilities.append("%d.%d" % (major.value, minor.value) if known else None)
    except AttributeError:
        capabilities = []
    return found, capabilities
