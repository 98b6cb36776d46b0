"""Modules that the kernel refuses: Secure Boot, and the key that signs what DKMS builds."""

from __future__ import annotations

from gpufleet.components.base.host import Host

KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
# How each of them is made: {certificate: command}. DKMS makes its own as well, when it first signs.
_MADE = {
    KEYS[0]: "openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500 -subj /CN=DKMS/ -keyout"
    f" /var/lib/dkms/mok.key -outform DER -out {KEYS[0]}",
    KEYS[1]: "update-secureboot-policy --new-key",
}


def refuses_modules(host: Host) -> bool:
    """Return whether the kernel refuses modules that DKMS builds and signs."""
    state = host.secure_boot
    refuses = state.get("refuses")
    # Snapshots of earlier releases, and kernels that do not tell: Secure Boot locks most down.
    refuses = state.get("enabled") if refuses is None else refuses
    return refuses is True and state.get("enrolled") is not True


def problem(host: Host) -> tuple[str, str]:
    """Why the kernel refuses DKMS's modules, and what to do on the host about it."""
    state = host.secure_boot
    ubuntu = (host.os or {}).get("id") == "ubuntu"
    own = state.get("key") if state.get("key") in KEYS else None
    key = own or KEYS[ubuntu]
    firmware = state.get("enabled") is True
    cause = (
        "Secure Boot is on"
        if firmware
        else "The kernel takes only signed modules, by its lockdown or module.sig_enforce"
    )
    off = (
        "switch Secure Boot off in the firmware"
        if firmware
        else "remove lockdown and module.sig_enforce from the kernel command line"
    )
    if state.get("pending"):
        return (
            f"{cause}, and the key that signs the driver's modules awaits its enrolment: it was"
            " asked for, and not confirmed at the console",
            "reboot, and on the console choose Enroll MOK and type the password of the request (for"
            f" another one: mokutil --import {key}). Or {off}",
        )
    # Snapshots of earlier releases name no key, so that the host may have one.
    made = "" if own else f"unless {key} exists, {_MADE[key]}; then "
    return (
        f"{cause}, and the key that signs the driver's modules is not enrolled: the kernel refuses"
        " them",
        f"as root: {made}mokutil --import {key} (package mokutil), and choose a password; reboot,"
        " and on the console choose Enroll MOK and type that password; then provision again. Or"
        f" {off}",
    )
