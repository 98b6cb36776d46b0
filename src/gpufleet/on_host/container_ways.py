"""The ways in which people start a container with all GPUs on a host."""

from collections import namedtuple

from .text import natural

# A command that people type, its program, and the options behind `run`.
Way = namedtuple("Way", "name program options")
ALL_GPUS = "nvidia.com/gpu=all"
# The first Docker Engine that reads CDI specifications, where its feature is on.
CDI_SINCE = "25"


def ways(host, found):
    """Each way that works on this host as it is set up, nvidia-docker first."""
    engine, name = host.path(found["engine"]["path"]), found["engine"]["name"]
    cdi = Way("%s run --device %s" % (name, ALL_GPUS), engine, ("--device", ALL_GPUS))
    if name == "podman":
        listed = [cdi]
    else:
        listed = [Way("docker run --gpus all", engine, ("--gpus", "all"))]
        if "nvidia" in found["engine"]["runtimes"]:
            options = ("--runtime=nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all")
            listed.append(Way("docker run --runtime=nvidia", engine, options))
        since = natural(found["engine"]["version"] or "") >= natural(CDI_SINCE)
        if since and found["daemon"]["cdi"] is True:
            listed.append(cdi)
    if found["wrapper"]:
        listed.insert(0, Way("nvidia-docker run", host.path(found["wrapper"]), ()))
    return listed
