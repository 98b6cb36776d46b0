"""Which code this process has loaded, by its memory maps and modules."""

import os
import re
import sys

from gpufleet.on_host.constants import is_cuda_file


def mapped_files():
    """Real paths of CUDA's and cuDNN's files in this process."""
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6:
                path = fields[5].rstrip("\n")
                if is_cuda_file(os.path.basename(path)):
                    found.add(path)
    return found


def foreign_libraries(*scratch):
    """Real paths of code in this process that is neither the environment's, nor its Python's, nor
    the system's: modules that were imported, and files that are mapped.

    CUDA's are in `mapped`; this package's own modules are no foreign ones, nor is what the
    framework made itself in its `scratch` directory.
    """
    real = os.path.realpath
    library, base = real(os.path.dirname(os.__file__)), real(sys.base_prefix)
    homes = [
        real(sys.prefix),
        library,
        "/lib",
        "/lib32",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        os.path.dirname(real(sys.argv[0])),
        real(sys.executable),
        *map(real, scratch),
    ]
    homes += [] if base in ("/usr", "/usr/local", "/") else [base]
    own = __name__.partition(".")[0]
    used = {
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != own
    }
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\n").split(None, 5) for line in maps]
    used |= {item[5] for item in fields if len(item) == 6 and "x" in item[1] and ".so" in item[5]}
    used = {path for path in used if path and path.startswith("/")}
    # Debian's Python has links into /etc in its standard library.
    used = {
        real(path) for path in used if not path.startswith(library + "/") or "-packages/" in path
    }
    # Python's own library stands beside, not in, its standard library. The driver's may stand
    # anywhere; what a whole host preloads is for the checks of the environment.
    known = re.compile(r"^libpython3|^lib(cuda|nvidia-[\w-]+)\.so")
    try:
        with open("/etc/ld.so.preload") as stream:
            homes += [real(path) for path in stream.read().replace(":", " ").split()]
    except OSError:
        pass
    homes_below = tuple(home + "/" for home in homes)
    used = {
        path
        for path in used
        if not known.match(os.path.basename(path)) and not is_cuda_file(os.path.basename(path))
    }
    return sorted(
        path
        for path in used
        if (
            not (path + "/").startswith(homes_below)
            or ("-packages/" in path and not path.startswith(homes[0] + "/"))
        )
    )
