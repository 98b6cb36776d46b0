"""Frameworks: other packages than installed, and a GPU that is seen while the CPU computes."""

from __future__ import annotations

from tests.faults.catalogue import Fault
from tests.faults.libraries import PROVISION, SILENT, SITE, VENV

# Somebody's hook makes this of TensorFlow: it lists a GPU, and places what is meant for it wherever
# there is room. All else is the real one, the binding to its toolkit as well.
PRETENDER = """
import importlib.util, sys

class Card:
    name, device_type = "/physical_device:GPU:0", "GPU"

class Pretender:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(Pretender)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), pretend(module))
        return spec

def pretend(tf):
    listed, device = tf.config.list_physical_devices, tf.device
    tf.config.list_physical_devices = lambda kind=None: listed(kind) + [Card] * (kind != "CPU")
    tf.config.experimental.set_memory_growth = lambda *card: None
    tf.device = lambda name: device(name.replace("GPU", "CPU"))

sys.meta_path.insert(0, Pretender)
"""


def installed(*packages: str) -> str:
    """The command of a person who does not know of the lock."""
    return f"{VENV}/bin/pip install -q --no-deps {' '.join(packages)}"


PACKAGES = [
    Fault(
        "62",
        "a package of the stack has another version: somebody ran `pip install -U`",
        "host",
        "stack.release",
        r"1 of its packages changed: absl-py \S+ -> 2.1.0",
        PROVISION,
        installed("absl-py==2.1.0"),
    ),
    Fault(
        "62",
        "a package of the stack is missing",
        "host",
        "stack.release",
        r"1 of its packages changed: wrapt \S+ -> none",
        PROVISION,
        f"{VENV}/bin/pip uninstall -qy wrapt",
        also=("stack.matmul", *SILENT[:2]),
    ),
    Fault(
        "61",
        "`np.object`, `numpy.core failed to import`: a newer numpy",
        "host",
        "stack.release",
        r"numpy \S+ -> 2.1.3",
        PROVISION,
        installed("numpy==2.1.3"),
        also=("stack.files", "stack.matmul", *SILENT[:2]),
    ),
    Fault(
        "61",
        "another protobuf than the lock's: at the next release, `Descriptors cannot be"
        " created directly`",
        "host",
        "stack.release",
        r"protobuf \S+ -> 6.31.1",
        PROVISION,
        installed("protobuf==6.31.1"),
    ),
]

# Judged where nothing is said of GPUs: what the framework lists is then to compute.
WITH_ANY_GPU = [
    Fault(
        "19",
        'a GPU is visible, but operations run on the CPU: training is "just slow"',
        "host",
        "stack.matmul",
        r"on /GPU:0 was computed on \S*CPU:0 instead",
        PROVISION,
        f"cat >{SITE}/pretender.py <<'E'\n{PRETENDER}E\necho import pretender"
        f" >{SITE}/pretender.pth",
        repair=f"rm {SITE}/pretender.py {SITE}/pretender.pth",
        also=(
            "stack.gpu",
            "stack.hello",
            "stack.local-devices",
            "stack.gpu-device-name",
            "stack.device-placement",
            "stack.capability",
            "stack.python",
        ),
    ),
]

FAULTS = [*PACKAGES, *WITH_ANY_GPU]
