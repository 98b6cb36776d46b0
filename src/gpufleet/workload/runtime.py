"""The toolkit's CUDA runtime: memory of the GPU, copies to and from it."""

import array
import ctypes
import re

from .library import Library, library_file

MIB = 1 << 20
# The attribute of a device whose memory is the host's.
INTEGRATED = 18


class Runtime(Library):
    """The toolkit's libcudart."""

    TO_DEVICE, FROM_DEVICE, ON_DEVICE = 1, 2, 3

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "cudart"))

    def describe(self, status):
        return self.name_of_status("cudaGetErrorName", status)

    def enter(self, gpu):
        self("cudaSetDevice", gpu)
        self("cudaFree", None)

    def count(self):
        """How many GPUs CUDA shows this process."""
        found = ctypes.c_int()
        self("cudaGetDeviceCount", ctypes.byref(found))
        return found.value

    def pci_address(self, gpu):
        text = ctypes.create_string_buffer(64)
        self("cudaDeviceGetPCIBusId", text, 64, gpu)
        return text.value.decode().lower()

    def free_mib(self):
        return self.memory_mib()[0]

    def memory_mib(self):
        """Free and total memory of the GPU that was entered, in MiB.

        Where its memory is the host's, CUDA counts the kernel's page cache as used.
        """
        free, total, gpu = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
        self("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        self("cudaGetDevice", ctypes.byref(gpu))
        available = available_mib() if self.integrated(gpu.value) else None
        return (free.value // MIB if available is None else available), total.value // MIB

    def integrated(self, gpu):
        """Return whether the memory of this GPU is the host's."""
        value = ctypes.c_int()
        self("cudaDeviceGetAttribute", ctypes.byref(value), INTEGRATED, gpu)
        return bool(value.value)

    def allocate(self, length):
        pointer = ctypes.c_void_p()
        self("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(length))
        return pointer

    def poison(self, pointer, length):
        """Overwrite memory with ones: floats that are no numbers, no bytes of a right result."""
        self("cudaMemset", pointer, 0xFF, ctypes.c_size_t(length))

    def poisoned(self, length):
        """Memory in which nothing of an earlier result is left."""
        pointer = self.allocate(length)
        self.poison(pointer, length)
        return pointer

    def upload(self, numbers):
        """A copy of an array on the GPU."""
        length = len(numbers) * numbers.itemsize
        pointer = self.allocate(length)
        self.copy(pointer, address(numbers), length, self.TO_DEVICE)
        return pointer

    def download(self, pointer, count):
        """An array of that many floats from there, initialized with a value that no product has."""
        numbers = array.array("f", [float("nan")]) * count
        self.copy(address(numbers), pointer, 4 * count, self.FROM_DEVICE)
        return numbers

    def read(self, pointer, length):
        """The bytes there."""
        read = bytearray(b"\xa5") * length
        self.copy((ctypes.c_char * length).from_buffer(read), pointer, length, self.FROM_DEVICE)
        return read

    def copy(self, target, source, length, direction):
        self("cudaMemcpy", target, source, ctypes.c_size_t(length), direction)

    def wait(self):
        self("cudaDeviceSynchronize")

    def wait_for_queue(self):
        """Wait for what was queued without a stream; other streams go on."""
        self("cudaStreamSynchronize", None)


def available_mib(path="/proc/meminfo"):
    """How much of the host's memory programs can have; None where the kernel does not say it."""
    try:
        with open(path) as stream:
            found = re.search(r"^MemAvailable: *(\d+) kB$", stream.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) // 1024 if found else None


def address_of(data, begin=0):
    """The address of a bytearray's bytes from there on."""
    return ctypes.byref(ctypes.c_char.from_buffer(data, begin))


def address(numbers):
    return ctypes.c_void_p(numbers.buffer_info()[0])
