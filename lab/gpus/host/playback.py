# A stand-in for what GPUs compute: the end of the workload's script on a lab host with stand-in
# GPUs. The stages, their processes, their order, their time limits and the load of the disk are the
# workload's own; libraries of the toolkit are loaded and NVRTC compiles, but no kernel runs. What a
# GPU would answer is played back from a record of a real H100.
import argparse
import ctypes
import json
import time

from gpufleet.workload import command, library, nvrtc, sustained, toolkit_stages
from gpufleet.workload.timing import now

with open("/srv/stand-in-gpus/played.json", encoding="utf-8") as stream:
    PLAYED = json.load(stream)
CARDS, RECORD = PLAYED["cards"], PLAYED["record"]


def fault_of(gpu):
    """The fault of a GPU: the last one may be faulty."""
    return PLAYED["fault"] if gpu == len(CARDS) - 1 else {}


def speed_of(gpu):
    """The share of the recorded speed with which a GPU multiplies in float32."""
    return fault_of(gpu).get("speed", 1)


def numbers(options):
    """The GPUs of a stage: one, where each has a process, else all."""
    return range(len(CARDS)) if options.gpu is None else [options.gpu]


def play(name):
    """A stage that reports what was recorded under this name, after the time that it has."""

    def stage(options, report):
        rows = []
        for gpu in numbers(options):
            for entry in RECORD[name]:
                time.sleep(options.seconds or 0)
                rows.append(dict(entry, gpu=gpu))
        report(**{name: rows})

    return stage


def query_devices(options, report):
    """The cards, as the driver would show them."""
    record = RECORD["devices"][0]
    devices = [
        dict({key: record[key] for key in record if key not in ("link", "copies")}, **card)
        for card in CARDS
    ]
    error = None if CARDS else f"cuInit returned {PLAYED['cuinit']} CUDA_ERROR_NO_DEVICE"
    driver = {"cuinit": PLAYED["cuinit"], "version": PLAYED["cuda"], "error": error}
    report(driver=driver, devices=devices)


def compile_and_run(options, report):
    """Compile by the toolkit's NVRTC; what ran is what was recorded."""
    alone = argparse.Namespace(**dict(vars(options), gpus=0))
    ran = [dict(RECORD["nvrtc"][0], gpu=gpu) for gpu in range(len(CARDS))]
    nvrtc.compile_and_run(alone, lambda **found: report(nvrtc=dict(found["nvrtc"], ran=ran)))


def multiply(options, report):
    """Products in float32."""
    for stem in ("cudart", "cublasLt", "cublas"):
        ctypes.CDLL(library.library_file(options.toolkit, stem))
    record = RECORD["cublas"][0]
    rows = []
    for gpu in numbers(options):
        tflops, steady_s = record["tflops"] * speed_of(gpu), record["steady_s"] / speed_of(gpu)
        rows.append(dict(record, gpu=gpu, tflops=round(tflops, 6), steady_s=round(steady_s, 9)))
    report(cublas=rows)


def convolve(options, report):
    """A convolution of the toolkit's cuDNN, whose version is its own."""
    version = ctypes.CDLL(options.cudnn).cudnnGetVersion()
    factors = (10000, 100) if version >= 90000 else (1000, 100)
    text = f"{version // factors[0]}.{version % factors[0] // factors[1]}.{version % factors[1]}"
    soname = options.cudnn.rpartition("/")[2]
    done = {"soname": soname, "version": text, "wrong": 0, "busy": None, "error": None}
    report(cudnn=[dict(done, gpu=gpu) for gpu in numbers(options)])


def copy_to_and_from_host(options, report):
    """Copies with the host's memory, and the link meanwhile."""
    record = RECORD["devices"][0]
    more = {"link": record["link"], "copies": record["copies"]}
    report(
        host_copies=[dict(RECORD["host_copies"][0], gpu=gpu, **more) for gpu in numbers(options)]
    )


def copy_between(options, report):
    """Copies between cards, which cannot address each other's memory."""
    done = {"access": False, "gib_s": None, "wrong": 0, "error": None}
    ends = range(len(CARDS))
    report(peer=[{"from": a, "to": b, **done} for a in ends for b in ends if a != b])


class Silent:
    """A runtime or a library whose calls do nothing, and an exact product that is not computed."""

    right = None

    def __init__(self, given):
        self.n = given

    def __call__(self, *arguments):
        return None

    def enter(self, gpu):
        """Select a GPU."""

    def free_mib(self):
        """The free memory of a GPU."""
        return RECORD["devices"][0]["free_mib"]


class Load:
    """One GPU under load, for as long as was asked: half a second of products at a time."""

    def __init__(self, runtime, blas, exact, found, address):
        self.found, self.products, self.wrong, self.checked = found, 1, 0, 0
        self.record, self.began = RECORD["sustained"][0], now()
        self.speed = speed_of(found["gpu"])
        self.wrong_after_s = fault_of(found["gpu"]).get("wrong_after_s", float("inf"))

    def round(self, due):
        """Play half a second of the record."""
        started, samples = now(), self.record["samples"]
        time.sleep(0.5)
        self.took = now() - started
        # They were taken a second apart; a longer load ends as the recorded one.
        self.sample = samples[min(len(samples) - 1, int(now() - self.began))]
        self.reading = {
            key: self.sample[key]
            for key in ("temperature_c", "clock_sm_mhz", "power_w", "throttle")
        }
        rate = self.record["checked"] / self.record["seconds"] * self.speed
        self.checked += max(1, round(rate * self.took))
        if now() - self.began > self.wrong_after_s:
            self.wrong += 1

    def tflops(self):
        """The speed that was recorded."""
        return round(self.sample["tflops"] * self.speed, 6)

    def settled(self):
        """Cool again at once: nothing was warm."""
        return True


class FabricLoad:
    """All links of the cards with the host, for as long as they were loaded."""

    def __init__(self, runtime, blas, loaded, options):
        self.rates = RECORD["devices"][0]["copies"]
        ends = [*loaded, None]
        self.found = [self.entry(a, b) for a in ends for b in ends if a != b]

    def entry(self, a, b):
        """A direction. Cards cannot address each other's memory; None is the host's."""
        access = None if None in (a, b) else False
        done = {"gib": 0.0, "gib_s": None, "checked": 0, "wrong": 0, "error": None}
        return {"from": a, "to": b, "access": access, **done}

    def start(self):
        """Begin to copy."""
        self.began = now()

    def end(self):
        """Count what would have been copied since, a block compared every two seconds."""
        seconds = now() - self.began
        for found in self.found:
            if found["access"] is None:
                way = "to_device_gib_s" if found["from"] is None else "from_device_gib_s"
                rate = self.rates[way]
                found.update(gib=round(rate * seconds, 1), gib_s=rate)
                found["checked"] = max(1, int(seconds / 2))

    def under_way(self):
        """No copy is left behind."""
        return set()


sustained.Runtime = sustained.Blas = sustained.ExactProduct = Silent
sustained.Load, sustained.FabricLoad = Load, FabricLoad
sustained.sleep_while_waiting = sustained.release = lambda *_: None
toolkit_stages.STAGES.update(
    driver=query_devices,
    nvrtc=compile_and_run,
    cublas=multiply,
    formats=play("formats"),
    cudnn=convolve,
    consensus=play("consensus"),
    host_copies=copy_to_and_from_host,
    bandwidth=play("bandwidth"),
    peer=copy_between,
)
command.main()
