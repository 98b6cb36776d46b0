"""Section `smi`: what nvidia-smi and NVML report of each GPU."""

import ctypes
import os
import re

from ..driver_files import ask_nvidia_smi, driver_library, judge_library, nvidia_smi
from ..nvlink import query_nvlink
from ..processes import NoAnswer, NoAnswerError, in_child, open_library
from ..smi_document import on_bus, parse_smi, pci_address


def section_smi(host):
    """The reports of nvidia-smi on each GPU, and the start of NVML. Not run in mode facts."""
    found = {
        "asked": host["mode"] == "full",
        "program": None,
        "status": None,
        "error": None,
        "remarks": None,
        "driver_version": None,
        "cuda_version": None,
        "nvml": {"status": None, "version": None, "count": None},
        "nvlink": None,
        "devices": [],
    }
    if not found["asked"]:
        return found
    # Without a loaded driver both fail at once, with the reason.
    found["program"] = nvidia_smi(host)
    known = []
    library = driver_library(host, "libnvidia-ml.so.1")
    if host.real or os.path.exists(library):
        judge_library(library)
        state, answer, error = in_child(query_nvml, (library,), host.inner_s / 2)
        if state == "hung":
            raise NoAnswerError("libnvidia-ml.so.1 gave no answer: %s" % error)
        if state == "ok":
            found["nvml"], known, found["nvlink"] = answer
            known = [(on_bus(host, address), capability) for address, capability in known]
    if found["program"]:
        status, out, err = ask_nvidia_smi(host, ["-q", "-x"], host.inner_s / 2)
        if isinstance(err, NoAnswer):
            raise NoAnswerError("nvidia-smi gave %s" % err)
        found["status"] = status
        found.update(parse_smi(out))
        for device in found["devices"]:
            device["address"] = on_bus(host, device["address"])
        number_cards(found["devices"], known)
        # Its complaints stand on standard output, beside the document or without it.
        if status != 0:
            message = " ".join(((found["remarks"] or "") + " " + err).split())
            found.update(error=message[-300:] or "ended with status %s" % status, remarks=None)
        elif not re.search(r"<nvidia_smi_log\b", out):
            found.update(
                error="it printed no document: " + " ".join((out + err).split())[:200], remarks=None
            )
    return found


def number_cards(devices, known):
    """Give each card the number and the compute capability that NVML has for its address.

    nvidia-smi leaves out a card that it cannot open; `nvidia-smi -i` still counts it.
    """
    places = {address: at for at, (address, _) in enumerate(known) if address}
    for device in devices:
        at = places.get(device["address"], None if places else device["index"])
        if at is not None and at < len(known):
            device.update(index=at, compute_capability=known[at][1])


def query_nvml(name):
    """The "status", "version" and "count" of NVML, (address, capability) of cards, and NVLinks.

    Status 18: driver and library differ. The first has `confidential_computing` as well.
    """
    nvml = open_library(name)
    found = {"status": nvml.nvmlInit_v2(), "version": None, "count": None}
    if found["status"] != 0:
        return found, [], None
    text, count, known = ctypes.create_string_buffer(96), ctypes.c_uint(), []
    if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
        found["version"] = text.value.decode("ascii", "replace")
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        found["count"] = count.value
    found.update(confidential_computing(nvml))
    if found.get("confidential"):
        found["ready"] = is_ready(nvml)
    for index in range(count.value):
        card, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        address = capability = None
        try:
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)) == 0:
                if (
                    nvml.nvmlDeviceGetCudaComputeCapability(
                        card, ctypes.byref(major), ctypes.byref(minor)
                    )
                    == 0
                ):
                    capability = "%d.%d" % (major.value, minor.value)
                # nvmlPciInfo_t: a short address, five numbers, the address.
                place = ctypes.create_string_buffer(128)
                if nvml.nvmlDeviceGetPciInfo_v3(card, place) == 0:
                    address = pci_address(
                        place.raw[36:68].split(b"\0")[0].decode("ascii", "replace")
                    )
        except AttributeError:
            # A library without the function.
            pass
        known.append((address, capability))
    return found, known, query_nvlink(nvml, count.value)


def is_ready(nvml):
    """Return whether the GPUs accept confidential work, which is set after attestation; None
    where NVML does not say it."""
    accepts = ctypes.c_uint()
    try:
        if nvml.nvmlSystemGetConfComputeGpusReadyState(ctypes.byref(accepts)) == 0:
            return bool(accepts.value)
    except AttributeError:
        pass
    return None


def confidential_computing(nvml):
    """The "confidential" and "multi_gpu_mode" of NVML, as far as it says them (not before 535).

    In the mode Protected PCIe the feature may be off, though copies with the host are encrypted.
    """
    # nvmlSystemConfComputeSettings_v1_t: its version, the environment, the feature, the mode for
    # developers, the mode of several GPUs; and room for what a later driver may add.
    settings = (ctypes.c_uint * 16)(20 | 1 << 24)
    # nvmlConfComputeSystemState_t: the environment, the feature, the mode for developers.
    state = (ctypes.c_uint * 16)()
    try:
        if nvml.nvmlSystemGetConfComputeSettings(settings) == 0:
            feature, mode = settings[2], settings[4]
            return {"confidential": bool(feature or mode), "multi_gpu_mode": mode}
    except AttributeError:
        # A driver before 550.
        pass
    try:
        if nvml.nvmlSystemGetConfComputeState(state) == 0:
            return {"confidential": bool(state[1])}
    except AttributeError:
        pass
    return {}
