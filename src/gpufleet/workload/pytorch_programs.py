"""Other programs that PyTorch starts: worker processes that load data, a compiler."""

import os
import re
import shutil
import signal
import sysconfig
import tempfile

from .timing import now

ROWS = 64
# Floats in an item, items, and items in a batch: a batch is 1 MiB, and goes through /dev/shm.
ITEM, ITEMS, BATCH = 65536, 16, 4
WORKERS = 2
ANSWER_S = 60
# Errors of a release for a Python, and of Triton for a GPU, that it does not compile for.
UNSUPPORTED = re.compile(r"not (?:yet )?supported (?:on|for)|too old to be supported")


class Numbers:
    """A data set of small integers: item N has the value N in each place."""

    def __init__(self, torch):
        self.torch = torch

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return self.torch.full((ITEM,), float(index))


def workers(torch):
    """Load a data set by two worker processes: {"workers", "wrong" (batches), "error"}."""
    found = {"workers": WORKERS, "wrong": None, "error": None}
    try:
        from torch.utils.data import DataLoader

        # As programs have it by default; from Python 3.14 on they have to ask for it.
        more = {"multiprocessing_context": "fork"} if takes_context(DataLoader) else {}
        batches = DataLoader(
            Numbers(torch), batch_size=BATCH, num_workers=WORKERS, timeout=ANSWER_S, **more
        )
        sums = [float(batch.sum()) for batch in batches]
        right = [float(ITEM * sum(range(first, first + BATCH))) for first in range(0, ITEMS, BATCH)]
        found["wrong"] = sum(one not in sums for one in right) + abs(len(sums) - len(right))
    except Exception as error:
        found["error"] = whole(error)
    return found


def takes_context(loader):
    """Return whether this release has that parameter: from 1.2 on."""
    return "multiprocessing_context" in loader.__init__.__code__.co_varnames


# A first compilation takes a minute where the processors are busy.
LEAST_S = 60
LATE = "time (./gpufleet verify --deadline S gives more)"


def compiled(numpy, torch, device, prevented, seconds):
    """Compile one function for a GPU: {"device", "wrong" (numbers), "lacks", "error", "hung",
    "seconds"}; None of a release that has no `torch.compile`. `prevented`: why it is not tried.

    Without a GPU nothing is compiled: for the CPU that takes a minute, and is no matter of CUDA.
    """
    if not hasattr(torch, "compile"):
        return None
    late_already = LATE if seconds < LEAST_S else None
    found = {
        "device": device,
        "wrong": None,
        "error": None,
        "hung": False,
        "seconds": None,
        "lacks": lacking(device) or prevented or late_already,
    }
    if found["lacks"]:
        return found
    begin, directory = now(), tempfile.mkdtemp()
    # Nothing is left in the account's caches, and no pool of compiling processes is started.
    os.environ.update(
        TORCHINDUCTOR_CACHE_DIR=directory,
        TRITON_CACHE_DIR=directory + "/triton",
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )

    def late(_signal, _frame):
        found["hung"] = True
        raise TimeoutError("no answer within %g s" % seconds)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        numbers = numpy.random.RandomState(5).randint(-8, 9, size=(ROWS, ROWS))
        given = torch.from_numpy(numbers.astype(numpy.float32)).to(device)
        result = torch.compile(function)(given)
        expected = numpy.maximum(2 * numbers + 1, 0).sum(axis=1)
        found["wrong"] = int((result.cpu().numpy() != expected).sum())
    except Exception as error:
        text = whole(error)
        found["lacks" if UNSUPPORTED.search(text) else "error"] = text
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found["seconds"] = round(now() - begin, 2)
    return found


def function(numbers):
    return (2 * numbers + 1).clamp(min=0).sum(dim=1)


def lacking(device):
    """The need of `torch.compile` that this host lacks; None where it has all.

    Triton compiles a small C program, which includes Python's headers.
    """
    if device is None:
        return "a GPU"
    if not any(shutil.which(name) for name in ("gcc", "clang")):
        return "a C compiler (gcc or clang)"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "the headers of its Python (Python.h)"
    if os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC:
        return "a temporary directory without noexec (gpu_tmpdir)"
    return None


def whole(error):
    """A message of several lines in one: the reason is not in the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, " ".join(lines)[:700])
