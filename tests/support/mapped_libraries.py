"""The CUDA and cuDNN libraries that a stack of a lab host maps when it computes."""

from __future__ import annotations

from .lab_fleet import Fleet

STACKS = "/opt/gpufleet/stacks"
# Import, multiply on the CPU, say which files of CUDA and cuDNN are mapped: in 1.x and 2.x.
PROGRAM = """
import numpy, tensorflow as tf
a = numpy.arange(64 * 64, dtype="float32").reshape(64, 64) % 5
if tf.__version__.startswith("1."):
    x = tf.placeholder(tf.float32, a.shape)
    product = tf.Session().run(tf.matmul(x, x), {x: a})
else:
    product = tf.linalg.matmul(a, a).numpy()
assert (product == a.dot(a)).all()
print("version", tf.__version__)
for path in sorted({line.split()[-1] for line in open("/proc/self/maps")}):
    if "/libcu" in path and "/libcuda." not in path or "/libnv" in path and "nvidia-" not in path:
        print(path)
"""


def mapped(fleet: Fleet, stack: str) -> list[str]:
    """The files that a stack maps when it computes, started with an empty environment."""
    python = f"env -i {STACKS}/{stack}/bin/python"
    output = fleet.on("lab1", f"{python} -W ignore - <<'E' 2>/dev/null\n{PROGRAM}E\n").splitlines()
    assert output[0] == f"version {stack.partition('-')[2]}"
    return output[1:]
