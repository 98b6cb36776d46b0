"""Makes rpm packages and signed repositories of stand-ins on a lab host of Red Hat's family.

Names, versions and relations are those of facts.json beside this file (the catalog's
distributions/redhat.yml); contents are files of the Debian underneath, or empty. `base` runs once,
while the image is made: the distribution's repositories, EPEL's, the containers', and the packages
that a fresh server has. `nvidia` makes NVIDIA's repository, with a key of its own, and prints the
key's fingerprint; tests call it for another one.

    python3 redhat.py base
    python3 redhat.py nvidia DIRECTORY [VERSION ...]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FACTS: dict[str, Any] = json.loads((HERE / "facts.json").read_text())
MAJOR: str = FACTS["major"]
RELEASE: dict[str, Any] = FACTS["releases"][MAJOR]
DIST: str = RELEASE["dist"]
PLUGINS = "usr/lib/python3/dist-packages/dnf-plugins"
KEYS = "etc/pki/rpm-gpg"
# A fresh server's packages whose files are Debian's: only their names are asked for.
EMPTY = (
    "bash coreutils cpio dracut findutils gcc gcc-c++ glibc grubby gzip kmod libxml2"
    " linux-firmware make openssh-server patch policycoreutils python3 python3-dnf python3-libs"
    " rpm sed selinux-policy selinux-policy-targeted sudo systemd tar xz"
)
PROVIDES = {
    "bash": ["/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/sh"],
    "python3": ["/usr/bin/python3"],
}
# In the repositories, but not installed.
ON_DEMAND = (
    "cronie ocl-icd opencl-filesystem openssh-clients python3.11 python3.12 subscription-manager"
)
SERVICE = "[Unit]\nDescription=Stand-in for {}\n[Service]\nExecStart={}\n"
WANTED = "[Install]\nWantedBy=multi-user.target\n"
AUTOMATIC = """\
#!/usr/libexec/platform-python
import sys
from dnf.automatic.main import main
sys.exit(main(sys.argv[1:]))
"""
PODMAN = "#!/bin/sh\necho podman version 5.4.0\n"
# Docker without containers: the daemon reads its file at its start and when it is asked
# to, the client shows what was read.
DOCKERD = """\
#!/bin/sh
# STAND-IN for dockerd: it starts no container.
[ "$1" != --version ] || exec echo Docker version 28.0.1, build stand-in
read_file() {
  [ -e /etc/docker/daemon.json ] || echo "{}" >/run/docker-daemon.json
  [ ! -e /etc/docker/daemon.json ] || cp /etc/docker/daemon.json /run/docker-daemon.json
}
trap read_file HUP
read_file
while :; do sleep 3600 & wait $!; done
"""
DOCKER = """\
#!/usr/libexec/platform-python
# STAND-IN for docker: it knows `info`, and lists no containers.
import json, sys
if sys.argv[1:2] == ["info"]:
    with open("/run/docker-daemon.json") as stream:
        read = json.load(stream)
    found = {"ServerVersion": "28.0.1", "CgroupDriver": "systemd", "Driver": "overlay2"}
    found["Runtimes"] = {name: {} for name in ["runc", *read.get("runtimes", {})]}
    found["LiveRestoreEnabled"] = read.get("live-restore", False)
    print(json.dumps(found["LiveRestoreEnabled"] if "LiveRestore" in sys.argv[-1] else found))
elif sys.argv[1:2] != ["ps"]:
    sys.exit("STAND-IN for docker: it does not know this: " + " ".join(sys.argv[1:]))
"""
LIBCUDA = """\
int cuInit(unsigned flags) {{ return 100; }}
int cuDriverGetVersion(int *version) {{ *version = {}; return 0; }}
"""


@dataclass
class Rpm:
    """One package: its relations, its files by path (a text, a path to copy, or a link's target
    after `->`), its scripts by name."""

    name: str
    version: str
    epoch: int = 0
    noarch: bool = False
    relations: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str | Path] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)

    def spec(self) -> str:
        version, release = self.version.split("-", 1)
        lines = [
            *("%global debug_package %{nil}", "%global __os_install_post %{nil}"),
            *("%global _build_id_links none", "%global _binary_payload w1.gzdio"),
            *(f"Name: {self.name}", f"Version: {version}", f"Release: {release}"),
            *([f"Epoch: {self.epoch}"] if self.epoch else []),
            *(["BuildArch: noarch"] if self.noarch else []),
            *("License: none", f"Summary: stand-in for {self.name}", "AutoReqProv: no"),
            *(f"{kind.title()}: {each}" for kind, many in self.relations.items() for each in many),
            *("%description", "A stand-in, with nothing of the original inside."),
            *(f"%{script}\n{text}" for script, text in self.scripts.items()),
            *("%files", *(f'"/{name}"' for name in self.files)),
        ]
        return "\n".join(lines) + "\n"


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(packages: Iterable[Rpm], folder: Path, work: Path) -> None:
    """Build packages into a folder, two at once."""
    folder.mkdir(parents=True, exist_ok=True)
    running: list[tuple[str, subprocess.Popen[str]]] = []
    for package in packages:
        place = work / f"{package.name}-{package.version}"
        root = place / "root"
        root.mkdir(parents=True)
        for name, content in package.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy2(content, path)
            elif content.startswith("->"):
                path.symlink_to(content[2:])
            else:
                path.write_text(content)
                path.chmod(0o755 if content.startswith("#!") else 0o644)
        (place / "spec").write_text(package.spec())
        words = ["rpmbuild", "-bb", "--quiet", "--target", "noarch" if package.noarch else "x86_64"]
        words += ["--buildroot", str(root), "--noclean", "--define", f"_topdir {place}"]
        words += ["--define", f"_rpmdir {folder}", "--define", "_rpmfilename %{NVRA}.rpm"]
        # %install empties the build root: these have none, and rpmbuild leaves the root alone.
        made = subprocess.Popen(
            [*words, str(place / "spec")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append((package.name, made))
        if len(running) == 2:
            finish(*running.pop(0))
    for name, made in running:
        finish(name, made)


def finish(name: str, made: subprocess.Popen[str]) -> None:
    output = made.communicate()[0]
    if made.returncode:
        raise SystemExit(f"rpmbuild of {name} failed:\n{output}")


def publish(folder: Path, label: str, work: Path, modules: str = "") -> str:
    """Sign a folder's packages and their list with a new key, put beside them with its fingerprint;
    returns that."""
    home = work / "gpg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
    user = f"{label}, for tests"
    run(*gpg, "--passphrase", "", "--quick-generate-key", user, "rsa3072", "sign", "never")
    (folder / "key.asc").write_text(run(*gpg, "--armor", "--export"))
    listing = run(*gpg, "--with-colons", "--fingerprint").splitlines()
    fingerprint = next(line.split(":")[9] for line in listing if line.startswith("fpr"))
    (folder / "fingerprint").write_text(fingerprint + "\n")
    words = ["--define", f"_gpg_name {fingerprint}", "--define", f"_gpg_path {home}"]
    words += ["--define", "__gpg /usr/bin/gpg"]
    run("rpmsign", *words, "--addsign", *sorted(str(path) for path in folder.glob("*.rpm")))
    run("createrepo_c", "--quiet", folder)
    if modules:
        (folder / "modules.yaml").write_text(modules)
        run("modifyrepo_c", "--mdtype=modules", folder / "modules.yaml", folder / "repodata")
    run(*gpg, "--armor", "--detach-sign", folder / "repodata/repomd.xml")
    return fingerprint


def related(row: dict[str, Any], version: str, kernel: str = "") -> dict[str, list[str]]:
    """A row's relations, with its version in the place of their signs."""
    found: dict[str, list[str]] = {}
    upstream = version.partition("-")[0]
    for kind in ("requires", "recommends", "provides", "conflicts", "obsoletes"):
        texts = [*row.get(kind, []), *row.get(f"{kind}_{DIST}", [])]
        found[kind] = [
            text.replace("@", version).replace("%", upstream).replace("KERNEL", kernel)
            for text in texts
        ]
    return found


def applies(row: dict[str, Any], number: str) -> bool:
    """Return whether a row is there in a release, or in a branch."""
    return int(row.get("since", 0)) <= int(number) < int(row.get("before", 10**6))


def kernel_packages(version: str) -> list[Rpm]:
    """The packages of one kernel; its headers are those of the Debian underneath."""
    release = f"{version}.x86_64"
    modules, sources = f"lib/modules/{release}", f"usr/src/kernels/{release}"
    headers = next(Path("/usr/src").glob("linux-headers-*-amd64"))
    files: dict[str, dict[str, str | Path]] = {
        "kernel-core": {
            f"boot/vmlinuz-{release}": "stand-in\n",
            f"{modules}/modules.order": "",
            f"{modules}/modules.builtin": "",
            f"{modules}/build": f"->/{sources}",
        },
        "kernel-devel": {sources: f"->{headers}"},
    }
    # As kernel-install does: whoever has a hook for a new kernel runs.
    hooks = "/usr/lib/kernel/install.d/*dkms.install"
    hook = f"for hook in {hooks}; do [ ! -x $hook ] || $hook add {release}; done"
    rows = [row for row in FACTS["kernel"] if applies(row, MAJOR)]
    return [
        Rpm(
            row["name"],
            version,
            relations=related(row, version),
            files=files.get(row["name"], {}),
            scripts={"posttrans": hook} if row["name"] == "kernel-core" else {},
        )
        for row in rows
    ]


def source(flavour: str, version: str) -> tuple[str, dict[str, str | Path]]:
    """DKMS's name of a driver, and the files of its modules' source, as in NVIDIA's packages."""
    name = "nvidia-open" if flavour == "open" else "nvidia"
    files: dict[str, str | Path] = {}
    for path, text in FACTS["driver_source"][version][flavour].items():
        moved = path.lstrip("/").replace(f"nvidia-{version}", f"{name}-{version}")
        files[moved] = text.replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{name}"').replace(
            "/updates/dkms", "/extra"
        )
    return name, files


def driver_packages(version: str, work: Path) -> list[Rpm]:
    """The packages of one version of the driver."""
    branch, kernel = version.partition(".")[0], RELEASE["kernels"][0]
    library = work / f"libcuda.so.{version}"
    (work / "libcuda.c").write_text(LIBCUDA.format(FACTS["driver"]["versions"][version]))
    run("gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", library, work / "libcuda.c")
    unit = SERVICE + WANTED
    files: dict[str, dict[str, str | Path]] = {
        "nvidia-driver-cuda-libs": {
            f"usr/lib64/{library.name}": library,
            "usr/lib64/libcuda.so.1": f"->{library.name}",
        },
        "nvidia-persistenced": {
            "usr/lib/systemd/system/nvidia-persistenced.service": unit.format(
                "the persistence daemon", "/usr/bin/test -e /dev/nvidia0"
            )
        },
        "nvidia-kmod-common": {
            "usr/lib/modprobe.d/nvidia.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
            "usr/lib/dracut/dracut.conf.d/99-nvidia.conf": 'omit_drivers+=" nvidia nvidia-uvm "\n',
        },
    }
    scripts = {"nvidia-driver-cuda-libs": {"post": "/sbin/ldconfig", "postun": "/sbin/ldconfig"}}
    made = []
    for row in FACTS["driver"]["packages"]:
        name = str(row["name"])
        if not applies(row, branch):
            continue
        own, doing = files.get(name, {}), scripts.get(name, {})
        if name.endswith("-dkms"):
            tree, own = source("open" if "open" in name else "proprietary", version)
            at = f"-m {tree} -v {version} -q"
            doing = {
                "post": f"dkms add {at} || :\ndkms build {at} || :\ndkms install {at} --force || :",
                "preun": f"dkms remove {at} --all || :",
            }
        made.append(
            Rpm(
                name.replace("%", version).replace("KERNEL", kernel.rpartition(".")[0]),
                f"{version}-1.{DIST}",
                epoch=int(row.get("epoch", 3)),
                relations=related(row, f"{version}-1.{DIST}", kernel),
                files=own,
                scripts=doing,
            )
        )
    return made


def streams(versions: list[str], packages: dict[str, list[Rpm]]) -> str:
    """The module `nvidia-driver`: which packages are in which stream."""
    documents = []
    for pattern, kind in FACTS["driver"]["streams"].items():
        for version in versions if "BRANCH" in pattern else versions[-1:]:
            names = [
                f"{each.name}-{each.epoch}:{each.version}.x86_64"
                for each in packages[version]
                if not each.name.startswith("kmod-") or kind_of(each.name) == kind
            ]
            documents.append(
                {
                    "document": "modulemd",
                    "version": 2,
                    "data": {
                        "name": "nvidia-driver",
                        "stream": pattern.replace("BRANCH", version.partition(".")[0]),
                        "version": 20260101000000,
                        "context": "standin",
                        "arch": "x86_64",
                        "summary": "Nvidia driver",
                        "description": "Stand-in",
                        "license": {"module": ["MIT"]},
                        "profiles": {"default": {"rpms": ["nvidia-driver"]}},
                        "artifacts": {"rpms": names},
                    },
                }
            )
    defaults = {"module": "nvidia-driver", "stream": FACTS["driver"]["default_stream"]}
    documents.append({"document": "modulemd-defaults", "version": 1, "data": defaults})
    return "".join(f"---\n{json.dumps(each, indent=1)}\n...\n" for each in documents)


def kind_of(name: str) -> str:
    """Which modules a kmod package has."""
    kinds = {"kmod-nvidia-latest-dkms": "proprietary", "kmod-nvidia-open-dkms": "open"}
    return kinds.get(name, "precompiled")


def nvidia(folder: Path, versions: list[str]) -> str:
    """Make NVIDIA's repository; returns the fingerprint of its key."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        packages = {version: driver_packages(version, work) for version in versions}
        build([each for many in packages.values() for each in many], folder, work)
        modules = streams(versions, packages) if RELEASE["modules"] else ""
        return publish(folder, "NVIDIA's repository", work, modules)


def repositories(names: Iterable[str], root: str) -> str:
    """The text of a .repo file."""
    key = f"file:///{KEYS}/RPM-GPG-KEY-{root}"
    texts = [
        f"[{name}]\nname={name}, stand-in\nbaseurl=file:///srv/{root}/{name}\n"
        f"gpgcheck=1\nenabled=1\ngpgkey={key}\n"
        for name in names
    ]
    return "\n".join(texts)


def taken(*paths: str) -> dict[str, str | Path]:
    """Files of the Debian underneath, which are taken away from there by `base`."""
    return {path: Path("/") / path for path in paths}


def dkms() -> Rpm:
    """EPEL's dkms, with Debian's program, and the hook for new kernels."""
    facts = FACTS["dkms"]
    files = taken("usr/sbin/dkms", "etc/dkms/framework.conf", "etc/modprobe.d/dkms.conf")
    hook = '#!/bin/sh\n[ "$1" != add ] || exec /usr/sbin/dkms autoinstall -k "$2"\n'
    if MAJOR != "8":
        facts = {**facts, "requires_" + DIST: facts["requires_el9"]}
    return Rpm(
        "dkms",
        RELEASE["dkms"],
        noarch=True,
        relations=related(facts, RELEASE["dkms"]),
        files={**files, "usr/lib/kernel/install.d/40-dkms.install": hook},
    )


def containers(kind: str) -> list[Rpm]:
    """The container toolkit's packages, or those of Docker's own engine."""
    tools = {f"usr/bin/{path.name}": path for path in (HERE / "toolkit").glob("nvidia-*")}
    reload = "ExecReload=/bin/kill -s HUP $MAINPID\n"
    unit = SERVICE.format("Docker", "/usr/bin/dockerd") + reload + WANTED
    files: dict[str, dict[str, str | Path]] = {
        "nvidia-container-toolkit-base": dict(tools),
        "docker-ce": {"usr/bin/dockerd": DOCKERD, "usr/lib/systemd/system/docker.service": unit},
        "docker-ce-cli": {"usr/bin/docker": DOCKER},
    }
    return [
        Rpm(
            row["name"],
            f"{row['version']}.{DIST}" if kind == "docker" else row["version"],
            epoch=row.get("epoch", 0),
            relations=related(row, row["version"]),
            files=files.get(row["name"], {}),
        )
        for row in FACTS["containers"][kind]
    ]


def base() -> None:
    """Everything of the distribution, and the packages of a fresh server."""
    older, newer = RELEASE["kernels"]
    version = f"{RELEASE['release']}-1.{DIST}"
    settings = [f"etc/dnf/plugins/versionlock.{end}" for end in ("conf", "list")]
    locks = [f"{PLUGINS}/versionlock.py", *settings]
    release = Rpm(
        "rocky-release",
        version,
        noarch=True,
        relations={
            "provides": [
                f"system-release = {version}",
                f"system-release(releasever) = {MAJOR}",
                f"rocky-release = {version}",
                f"base-module(platform:{DIST})",
            ],
        },
    )
    core = [
        Rpm(name, f"1.0-1.{DIST}", relations={"provides": PROVIDES.get(name, [])})
        for name in EMPTY.split()
    ]
    demanded = [Rpm(name, f"1.0-1.{DIST}") for name in ON_DEMAND.split()]
    demanded += [
        Rpm("podman", f"5.4.0-1.{DIST}", files={"usr/bin/podman": PODMAN}),
        Rpm("python3-dnf-plugin-versionlock", f"4.3.0-1.{DIST}", noarch=True, files=taken(*locks)),
        Rpm(
            "dnf-automatic",
            f"4.14.0-1.{DIST}",
            noarch=True,
            files={"usr/bin/dnf-automatic": AUTOMATIC, **taken("etc/dnf/automatic.conf")},
        ),
        Rpm(
            "epel-release",
            f"{MAJOR}-9.{DIST}",
            noarch=True,
            files={
                "etc/yum.repos.d/epel.repo": repositories(["everything"], "epel"),
                f"{KEYS}/RPM-GPG-KEY-epel": Path("/srv/epel/everything/key.asc"),
            },
        ),
    ]
    made = {
        "/srv/epel/everything": [dkms()],
        "/srv/containers/x86_64": containers("toolkit"),
        f"/srv/docker/{MAJOR}/x86_64/stable": containers("docker"),
        "/srv/rocky/appstream": demanded,
        "/srv/rocky/baseos": [release, *core, *kernel_packages(older)],
        # Packages that come later: a test enables them.
        "/srv/rocky/later": kernel_packages(newer),
    }
    Path("/" + KEYS).mkdir(parents=True, exist_ok=True)
    for place, packages in made.items():
        folder = Path(place)
        with tempfile.TemporaryDirectory() as work:
            build(packages, folder, Path(work))
            publish(folder, f"Repository {folder.name}", Path(work))
    packed = ["usr/sbin/dkms", "etc/dkms", "etc/modprobe.d/dkms.conf", "etc/dnf/automatic.conf"]
    for taken_away in [*packed, *locks]:
        path = Path("/") / taken_away
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    # One key file may hold several keys.
    places = [Path("/srv/rocky") / name for name in ("baseos", "appstream", "later")]
    keys = "".join((place / "key.asc").read_text() for place in places)
    Path(f"/{KEYS}/RPM-GPG-KEY-rocky").write_text(keys)
    Path("/etc/yum.repos.d").mkdir(exist_ok=True)
    Path("/etc/yum.repos.d/rocky.repo").write_text(repositories(["baseos", "appstream"], "rocky"))
    names = [each.name for each in made["/srv/rocky/baseos"] if each.name != "kernel-devel-matched"]
    names = [name for name in names if name not in ("kernel-devel", "kernel-headers")]
    run("dnf", "--assumeyes", "--nogpgcheck", "install", *names)
    nvidia(Path("/srv/nvidia/first"), list(FACTS["driver"]["versions"]))
    run("dnf", "clean", "all")


if __name__ == "__main__":
    os.environ["HOME"] = "/root"
    if sys.argv[1] == "base":
        base()
    else:
        chosen = sys.argv[3:] or list(FACTS["driver"]["versions"])
        print(nvidia(Path(sys.argv[2]), chosen))
