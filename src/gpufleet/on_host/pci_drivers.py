"""The kernel's drivers to which GPUs on the PCI bus are bound."""

OWN_DRIVER = "nvidia"
# The drivers of a GPU that is passed to a virtual machine, beside those of VFIO (vfio-pci and
# nvgrace_gpu_vfio_pci): Linux' drivers/pci/pci-stub.c and drivers/xen/xen-pciback.
_GIVING = ("pci-stub", "pciback", "xen-pciback")


def given_away(driver: object) -> bool:
    """True for a driver that passes its GPU to a virtual machine."""
    return driver in _GIVING or "vfio" in str(driver or "")


def other_holder(driver: object) -> "str | None":
    """The driver, where it keeps its GPU from NVIDIA's and is one of this host; else None."""
    held = driver and driver != OWN_DRIVER and not given_away(driver)
    return str(driver) if held else None
