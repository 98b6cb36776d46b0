"""The usual short checks of a TensorFlow installation."""

import re

from .output import captured, plain, unique

HELLO = "Hello, TensorFlow!"
# `placed: (MatMul): /job:...`, 1.0 without the second colon, `Executing op MatMul in device /job`.
PLACED = re.compile(r"(?:\(\w*MatMul\w*\):?|op \w*MatMul\w* in device) *(/job:\S+)")
CAPABILITY = re.compile(r"compute capability: (\d+\.\d+)")


def small_checks(engine, requested):
    """Run each check; one that fails is reported and does not affect the others."""
    found = {
        "hello": None,
        "local_devices": [],
        "gpu_device_name": None,
        "placement": [],
        "built_with_cuda": None,
        "errors": {},
    }

    def hello():
        value, device = engine.hello()
        text = value.decode() if isinstance(value, bytes) else str(value)
        return {"value": text, "device": device}

    def devices():
        return [
            {
                "name": device.name,
                "type": device.device_type,
                "memory_mib": device.memory_limit >> 20,
                "description": device.physical_device_desc,
            }
            for device in engine.local_devices()
        ]

    for name, ask in (
        ("hello", hello),
        ("local_devices", devices),
        ("gpu_device_name", lambda: engine.tf.test.gpu_device_name()),  # noqa: PLW0108 (may lack)
        (
            "placement",
            lambda: unique(PLACED.findall(captured(lambda: engine.log_placement(requested))[1])),
        ),
        ("built_with_cuda", lambda: bool(engine.tf.test.is_built_with_cuda())),
    ):
        try:
            found[name] = ask()
        except Exception as error:
            found["errors"][name] = plain(error)
    return found


def capabilities_of(small):
    """Return the compute capability of each GPU, from TensorFlow's description of it."""
    return [
        capability
        for device in small["local_devices"]
        if device["type"] == "GPU"
        for capability in CAPABILITY.findall(device["description"] or "")[:1]
    ]
