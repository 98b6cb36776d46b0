"""Minutes of load on all GPUs at once, then until they are cool again. Each product is checked.

In a burn-in a disk and all links are loaded at the same time.
"""

import concurrent.futures
import time

from .comparison import SERIES, Comparison
from .cublas import Blas
from .disk import DiskLoad
from .entries import RUNNING, for_each_gpu, new_entries
from .exactness import ExactProduct
from .fabric_load import FabricLoad, sleep_while_waiting
from .library import Refused
from .runtime import Runtime
from .sensors import sensors
from .timing import SIZE_DEEP, now

# After a stress a GPU has settled when it is at most this much warmer than before it.
SETTLED_C = 10
# The most samples of a GPU: hours of load have them further apart than a second.
MOST_SAMPLES = 240
# A GPU that takes longer for half a second of products gives no answer any more.
ANSWER_S = 60
SILENT = "no answer within %d s under load" % ANSWER_S
# How long before its deadline the stage reports the GPUs that are not cool yet.
REPORT_S = 5


class Load:
    """One GPU that multiplies without a pause."""

    def __init__(self, runtime, blas, exact, found, pci_address):
        self.found, self.runtime, self.blas, self.n = found, runtime, blas, exact.n
        runtime.enter(found["gpu"])
        self.a, self.b = [runtime.upload(operand) for operand in exact.operands]
        self.c, self.handle = runtime.poisoned(4 * self.n**2), blas.handle()
        self.products, self.sense = 1, sensors(pci_address)
        self.cool_c = self.sense()["temperature_c"]
        self.wrong, self.checked, self.comparison, self.compare_s = 0, 0, None, 0
        if exact.right is None:
            # This processor checks the first of all; the others, of each GPU, are to be the same.
            blas.multiply(self.handle, self.n, self.a, self.b, self.c)
            runtime.wait()
            self.wrong = exact.confirm(runtime.download(self.c, self.n**2))
            self.checked = 1
        if exact.right is not None:
            self.comparison = Comparison(runtime, blas, self.handle, exact.right)
            self.comparison.prove(self.c)
            self.compare_s = self.comparison.seconds(self.c)

    def begin(self, products):
        self.runtime("cudaSetDevice", self.found["gpu"])
        if self.comparison:
            self.comparison.begin()
        for at in range(products):
            self.blas.multiply(self.handle, self.n, self.a, self.b, self.c)
            if self.comparison:
                self.comparison.compare(self.c, at)

    def end(self):
        self.runtime("cudaSetDevice", self.found["gpu"])
        self.runtime.wait_for_queue()

    def round(self, due):
        """One helping, in a thread of its own: why it was refused, None if it was not.

        Its time is its own, and its sensors are read under load: the queue is still full.
        """
        try:
            started = now()
            self.begin(self.products)
            self.reading = self.sense() if due else None
            self.end()
            self.took = max(now() - started, 1e-6)
            if self.comparison:
                self.wrong += self.comparison.wrong(self.products)
                self.checked += self.products
        except Refused as error:
            return str(error)
        return None

    def tflops(self):
        """The speed of the last helping, without the time in which its products were compared."""
        multiplied_s = max(self.took - self.products * self.compare_s, self.took / 2)
        return round(2.0 * self.n**3 * self.products / multiplied_s / 1e12, 6)

    def settled(self):
        """True if it is about as cool as before; None where its temperature cannot be read."""
        is_c = self.sense()["temperature_c"]
        known = is_c is not None and self.cool_c is not None
        return is_c <= self.cool_c + SETTLED_C if known else None


def sustain(options, report):
    """All GPUs at once, as a real load has them, for a while; then until they are cool again."""
    n, ends = options.size or SIZE_DEEP, now() + options.deadline - REPORT_S
    asked = {"n": n, "requested_s": options.sustained}
    entries = new_entries(options, seconds=None, samples=[], settled_s=None, checked=0, **asked)
    runtime, blas, exact = Runtime(options.toolkit), Blas(options.toolkit), ExactProduct(n)
    addresses, loads = options.places.split(","), []
    if options.fabric:
        sleep_while_waiting(runtime, range(options.gpus))
    for_each_gpu(
        "sustained",
        entries,
        report,
        runtime,
        lambda found: loads.append(Load(runtime, blas, exact, found, addresses[found["gpu"]])),
    )
    for load in loads:
        load.found.update(samples=[], error=RUNNING)
    beside = {}
    if options.disk and loads:
        beside["disk"] = DiskLoad(options.disk)
    if options.fabric and loads:
        loaded = [load.found["gpu"] for load in loads]
        beside["fabric"] = FabricLoad(runtime, blas, loaded, options)
    more = {name: load.found for name, load in beside.items()}
    for load in beside.values():
        load.start()
    begin = sampled = now()
    pause_s = max(1, options.sustained / MOST_SAMPLES)
    pool = concurrent.futures.ThreadPoolExecutor(max(1, len(loads)))
    while loads and now() - begin < options.sustained:
        due = now() - sampled >= pause_s
        sampled = now() if due else sampled
        for load, error in helpings(pool, loads, due):
            if error:
                load.found.update(error=error, hung=error == SILENT)
                loads.remove(load)
                continue
            if due:
                load.found["samples"].append(
                    dict(
                        load.reading,
                        at_s=round(now() - begin, 1),
                        tflops=load.tflops(),
                        wrong=load.wrong,
                    )
                )
            # About half a second at a time.
            load.products = max(1, min(SERIES, int(load.products * 0.5 / load.took)))
        if due:
            report(sustained=entries, **more)
    # The thread of a GPU that gives no answer does not end.
    pool.shutdown(wait=False)
    took = round(now() - begin, 1)
    for load in beside.values():
        load.end()
    for load in loads:
        load.found.update(seconds=took, wrong=load.wrong, checked=load.checked, error=None)
    report(sustained=entries, **more)
    # A reset would wait for the links that give no answer, or take their memory away.
    kept = beside["fabric"].under_way() if "fabric" in beside else set()
    kept |= {found["gpu"] for found in entries if found.get("hung")}
    release(runtime, [found for found in entries if found["gpu"] not in kept])
    begin = now()
    while loads and now() < min(begin + options.settle, ends):
        for load in list(loads):
            settled = load.settled()
            if settled:
                load.found["settled_s"] = round(now() - begin, 1)
            if settled is not False:
                loads.remove(load)
        if loads:
            time.sleep(1)
    report(sustained=entries)


def helpings(pool, loads, due):
    """Each GPU's load, and why its helping failed, None if it did not.

    A GPU that gives no answer fails alone: the others do not wait for it again.
    """
    started = [(load, pool.submit(load.round, due)) for load in loads]
    ends = now() + ANSWER_S
    for load, helping in started:
        try:
            yield load, helping.result(max(0, ends - now()))
        except concurrent.futures.TimeoutError:
            yield load, SILENT


def release(runtime, entries):
    """End all that was started on each GPU: one that is still open does not cool down to idle."""
    for found in entries:
        try:
            runtime("cudaSetDevice", found["gpu"])
            runtime("cudaDeviceReset")
        except Refused:  # a GPU that has failed, and reports it itself
            continue
