"""The environment of logins, services and cron jobs: what hides GPUs or leads elsewhere."""

from __future__ import annotations

from tests.faults.catalogue import Fault

PROFILE = "/etc/profile.d/zz-site.sh"
DEFAULTS = "/etc/systemd/system.conf.d/site.conf"
UNIT = "/etc/systemd/system/train.service"
OTHER = "/opt/cuda-10.1/lib64"
SHOWN = "it shows 1 of 2 declared GPUs"


def written(path: str, *lines: str) -> dict[str, str]:
    """`inject` and `repair` of a fault that is one more file."""
    text = " ".join(f"'{line}'" for line in lines)
    return {"inject": f"mkdir -p $(dirname {path}); printf '%s\\n' {text} >{path}",
            "repair": f"rm {path}"}  # fmt: skip


def appended(path: str, line: str) -> dict[str, str]:
    """The steps that append a line to a file, and restore the file."""
    return {"inject": f"cp -p {path} /srv/; echo '{line}' >>{path}",
            "repair": f"cp -p /srv/{path.rpartition('/')[2]} {path}"}  # fmt: skip


def out_of(path: str) -> str:
    """The remedy where the probe knows the file."""
    return rf"remove \w+ from {path}"


LOGIN = "environment.login"

# On a host of any kind.
ANYWHERE = [
    Fault(
        "20",
        "a profile puts another CUDA's libraries first for everybody",
        "host",
        LOGIN,
        rf"A login sets LD_LIBRARY_PATH={OTHER}: .* override a stack's own toolkit",
        rf"from {PROFILE}",
        **written(PROFILE, f"export LD_LIBRARY_PATH={OTHER}"),
    ),
    Fault(
        "20",
        "a profile names the toolkit's stub libraries",
        "host",
        LOGIN,
        "the stub libraries there are no working driver",
        rf"from {PROFILE}",
        **written(PROFILE, "export LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"),
    ),
    Fault(
        "20",
        "`PYTHONPATH` of a profile puts other modules before every stack's",
        "host",
        LOGIN,
        "PYTHONPATH=/opt/site: modules from there override",
        rf"from {PROFILE}",
        **written(PROFILE, "export PYTHONPATH=/opt/site"),
    ),
    Fault(
        "20",
        "systemd gives another CUDA's libraries to every service",
        "host",
        LOGIN,
        rf"{DEFAULTS} sets LD_LIBRARY_PATH={OTHER}",
        out_of(DEFAULTS),
        **written(DEFAULTS, "[Manager]", f'DefaultEnvironment="LD_LIBRARY_PATH={OTHER}"'),
    ),
    Fault(
        "20",
        "a drop-in of all services does the same",
        "host",
        LOGIN,
        "site.conf sets LD_LIBRARY_PATH",
        "daemon-reload",
        **written(
            "/etc/systemd/system/service.d/site.conf",
            "[Service]",
            f"Environment=LD_LIBRARY_PATH={OTHER}",
        ),
    ),
    Fault(
        "20",
        "the crontab of the host puts another CUDA's libraries first",
        "host",
        LOGIN,
        "/etc/crontab sets LD_LIBRARY_PATH",
        out_of("/etc/crontab"),
        **appended("/etc/crontab", f"LD_LIBRARY_PATH={OTHER}"),
    ),
]

# Judged against two declared GPUs.
WITH_TWO_GPUS = [
    Fault(
        "20",
        "`CUDA_VISIBLE_DEVICES` of a profile shows one GPU of two",
        "host",
        LOGIN,
        SHOWN,
        rf"from {PROFILE}",
        **written(PROFILE, "export CUDA_VISIBLE_DEVICES=1"),
    ),
    Fault(
        "20",
        "an empty `CUDA_VISIBLE_DEVICES` hides every GPU",
        "host",
        LOGIN,
        "it shows 0 of 2 declared GPUs",
        rf"from {PROFILE}",
        **written(PROFILE, "export CUDA_VISIBLE_DEVICES="),
    ),
    Fault(
        "20",
        "`CUDA_VISIBLE_DEVICES=0,5`: CUDA stops at the first index without a GPU",
        "host",
        LOGIN,
        SHOWN,
        "from /etc/environment",
        **appended("/etc/environment", "CUDA_VISIBLE_DEVICES=0,5"),
    ),
    Fault(
        "20",
        "systemd shows every service one GPU of two",
        "host",
        LOGIN,
        SHOWN,
        out_of(DEFAULTS),
        **written(DEFAULTS, "[Manager]", "DefaultEnvironment=A=1 CUDA_VISIBLE_DEVICES=0"),
    ),
    Fault(
        "20",
        "PAM shows every session one GPU of two",
        "host",
        LOGIN,
        SHOWN,
        out_of("/etc/security/pam_env.conf"),
        **appended("/etc/security/pam_env.conf", "CUDA_VISIBLE_DEVICES DEFAULT=0"),
    ),
    Fault(
        "20",
        "the crontab of the host shows its jobs one GPU of two",
        "host",
        LOGIN,
        SHOWN,
        out_of("/etc/crontab"),
        **appended("/etc/crontab", "CUDA_VISIBLE_DEVICES=0"),
    ),
    Fault(
        "20",
        "a unit names a GPU that the host does not have",
        "host",
        LOGIN,
        rf"{UNIT} sets CUDA_VISIBLE_DEVICES=4: there is no GPU 4 among the 2",
        out_of(UNIT),
        **written(UNIT, "[Service]", "Environment=CUDA_VISIBLE_DEVICES=4", "ExecStart=/bin/true"),
    ),
    Fault(
        "20",
        "a unit's file of variables names a GPU that the host does not have",
        "host",
        LOGIN,
        rf"{UNIT} sets CUDA_VISIBLE_DEVICES=0,2: there is no GPU 2",
        out_of(UNIT),
        "printf '%s\\n' CUDA_VISIBLE_DEVICES=0,2 >/etc/default/train;"
        f" printf '%s\\n' '[Service]' EnvironmentFile=-/etc/default/train >{UNIT}",
        repair=f"rm {UNIT} /etc/default/train",
    ),
    Fault(
        "20",
        "a cron job names a GPU that the host does not have",
        "host",
        LOGIN,
        "/etc/cron.d/train sets CUDA_VISIBLE_DEVICES=2",
        out_of("/etc/cron.d/train"),
        **written("/etc/cron.d/train", "CUDA_VISIBLE_DEVICES=2", "0 3 * * * root true"),
    ),
]

FAULTS = [*ANYWHERE, *WITH_TWO_GPUS]

# What is no fault: a job that keeps to one of the host's GPUs.
OWN_CHOICE = [
    written(UNIT, "[Service]", "Environment=CUDA_VISIBLE_DEVICES=1", "ExecStart=/bin/true"),
    written("/etc/cron.d/train", "CUDA_VISIBLE_DEVICES=0", "0 3 * * * root true"),
]
