"""The entries of a stage: one per GPU, with why it is not finished."""

from .library import Refused

# The initial values of an entry.
RUNNING, WAITING = "it was stopped", "it was not tried"


def for_each_gpu(key, entries, report, runtime, compute):
    """Have `compute` fill in each GPU's entry, where enough of its memory is free."""
    for found in entries:
        found["error"] = RUNNING
        report(**{key: entries})
        try:
            runtime.enter(found["gpu"])
            found["busy"] = busy(runtime, found.pop("budget"))
            if found["busy"] is None:
                compute(found)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    report(**{key: entries})


def new_entries(options, **more):
    gpus = range(options.gpus) if options.gpu is None else [options.gpu]
    return [
        dict(more, gpu=gpu, wrong=None, busy=None, error=WAITING, budget=options.budget)
        for gpu in gpus
    ]


def busy(runtime, budget_mib):
    """Too little free memory for a run beside others; None where there is enough."""
    free = runtime.free_mib()
    return {"free_mib": free, "wanted_mib": budget_mib} if free < budget_mib else None
