"""Sums of random products in each number format, on which all GPUs of an architecture agree.

No library chooses an algorithm here: the kernel consists of fixed instructions, tensor cores'
included, on operands that follow from a seed. Each bit of each result goes into the sum, so that a
GPU that is wrong once in a billion products has another sum than its siblings. The order in which
threads end does not matter, nor do the number of multiprocessors, the release of NVRTC, or how many
rounds one launch has: that depends on how fast the GPU is.

The operands have random signs and mantissas and two exponents: no result is lost beside a larger
one. Instructions, their operands and the releases that know them: NVIDIA's PTX documentation
(`mma`, `dp4a`); each was compiled with NVRTC 11.8 to 13.
"""

import ctypes
import time
from collections import namedtuple

from .driver import Driver
from .entries import for_each_gpu, new_entries
from .library import has_wheels, library_names
from .nvrtc import Compiler
from .runtime import Runtime
from .timing import now

KERNEL_NAME = b"gpufleet_agree"
KERNEL = """
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ u32 mixed(u32 x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
extern "C" __global__ void gpufleet_agree(u32 seed, u32 first, u32 rounds, u64 *sum)
{
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    u64 total = 0;
    for (u32 round = first; round < first + rounds; round++) {
        u32 begin = mixed(mixed(mixed(seed) + round) + thread);
        u64 of_round = begin;
        OPERAND state[A + B], words[A + B], *a = words, *b = words + A;
        for (int i = 0; i < A + B; i++)
            state[i] = (OPERAND)mixed(begin + i) << (8 * sizeof(OPERAND) - 32) | mixed(~begin - i);
        for (int chain = 0; chain < 64; chain++) {
            RESULT d[D] = {0};
            u32 hash = chain;
            for (int step = 0; step < 16; step++) {
                for (int i = 0; i < A + B; i++) {
                    state[i] = state[i] * (OPERAND)6364136223846793005ull
                             + (OPERAND)1442695040888963407ull;
                    words[i] = (state[i] & KEEP) | SET;
                }
                MULTIPLY
                for (int i = 0; i < D; i++) {
                    u64 bits = BITS(d[i]);
                    hash = hash * 0x01000193u ^ (u32)bits ^ (u32)(bits >> 32) * 0x9e3779b1u;
                }
            }
            of_round = of_round * 0x100000001b3ull + hash;
        }
        total += of_round;
    }
    atomicAdd(sum, total);
}
"""
# The same on each GPU, and enough for each multiprocessor of any.
BLOCKS, THREADS = 512, 128
# A launch is not longer than that: a GPU with a display ends one that takes seconds.
LAUNCH_S = 0.25
# A sum is reported after 1, 2, 4, 8 ... rounds: at least so many, so that a slow GPU can be
# compared too, and no more than there is time for.
LEAST_SUMS, MOST_SUMS = 4, 32

# The types of one operand's word and of one result, which bits of a random word are kept and which
# are set, the words of the first operand, of the second and of the result of one thread.
Numbers = namedtuple("Numbers", "word result keep set a b d")
# `least`: the compute capability that has the instruction; `nvrtc`: the release that knows it,
# where others know the GPU too.
Format = namedtuple("Format", "name least nvrtc numbers multiply")


def tensor(name, least, nvrtc, kind, numbers):
    """A format whose products are small matrices, multiplied in a tensor core."""
    word, result = [{"u64": "d", "u32": "r"}[numbers.word], REGISTERS[numbers.result]]
    at, groups = 0, []
    for count in (numbers.d, numbers.a, numbers.b):
        groups.append("{%s}" % ",".join("%%%d" % (at + number) for number in range(count)))
        at += count
    text = "mma.sync.aligned.%s %s,%s,%s,%s;" % (kind, *groups, groups[0])
    value = "__longlong_as_double(%s[%d])" if word == "d" else "%s[%d]"
    results = ['"+%s"(d[%d])' % (result, number) for number in range(numbers.d)]
    operands = [
        '"%s"(%s)' % (word, value % (name, number))
        for name, count in (("a", numbers.a), ("b", numbers.b))
        for number in range(count)
    ]
    multiply = 'asm volatile("%s" : %s : %s);' % (text, ", ".join(results), ", ".join(operands))
    return Format(name, least, nvrtc, numbers, multiply)


def each(statement):
    """The statement for each of a thread's results, without tensor cores."""
    return "for (int i = 0; i < D; i++) { %s }" % statement


REGISTERS = {"float": "f", "double": "d", "int": "r"}
BITS = {"float": "__float_as_uint", "double": "__double_as_longlong", "int": "(u32)"}
FP32 = Numbers("u32", "float", "0x80ffffffu", "0x3f000000u", 4, 2, 4)
FP64 = Numbers("u64", "double", "0x801fffffffffffffull", "0x3fe0000000000000ull", 4, 2, 4)
FP16 = Numbers("u32", "float", "0x87ff87ffu", "0x38003800u", 4, 2, 4)
BF16 = FP32._replace(keep="0x80ff80ffu", set="0x3f003f00u")
TF32 = FP32._replace(keep="0x80ffe000u")
# All but the numbers from 2 on, and what is no number.
FP8 = FP32._replace(keep="0xbfbfbfbfu", set="0u")
INT8 = Numbers("u32", "int", "~0u", "0u", 4, 2, 4)
# The last row of a name whose capability the GPU reaches counts.
FORMATS = (
    Format(
        "fp32",
        (0, 0),
        (0, 0),
        FP32,
        each("d[i] = __fmaf_rn(__int_as_float(a[i]), __int_as_float(b[i & 1]), d[i]);"),
    ),
    Format(
        "fp64",
        (0, 0),
        (0, 0),
        FP64,
        each("d[i] = __fma_rn(__longlong_as_double(a[i]), __longlong_as_double(b[i & 1]), d[i]);"),
    ),
    tensor("fp64", (8, 0), (11, 0), "m8n8k4.row.col.f64.f64.f64.f64", FP64._replace(a=1, b=1, d=2)),
    tensor("fp16", (7, 0), (10, 1), "m8n8k4.row.col.f32.f16.f16.f32", FP16._replace(a=2, d=8)),
    tensor("fp16", (7, 5), (10, 2), "m16n8k8.row.col.f32.f16.f16.f32", FP16._replace(a=2, b=1)),
    tensor("fp16", (8, 0), (11, 0), "m16n8k16.row.col.f32.f16.f16.f32", FP16),
    Format(
        "int8",
        (6, 1),
        (8, 0),
        INT8,
        each('asm volatile("dp4a.s32.s32 %0,%1,%2,%0;" : "+r"(d[i]) : "r"(a[i]), "r"(b[i & 1]));'),
    ),
    tensor("int8", (8, 0), (11, 0), "m16n8k32.row.col.s32.s8.s8.s32", INT8),
    tensor("tf32", (8, 0), (11, 0), "m16n8k8.row.col.f32.tf32.tf32.f32", TF32),
    tensor("bf16", (8, 0), (11, 0), "m16n8k16.row.col.f32.bf16.bf16.f32", BF16),
    tensor("fp8-e4m3", (8, 9), (12, 4), "m16n8k32.row.col.f32.e4m3.e4m3.f32", FP8),
    tensor("fp8-e5m2", (8, 9), (12, 4), "m16n8k32.row.col.f32.e5m2.e5m2.f32", FP8),
)
NAMES = tuple(dict.fromkeys(row.name for row in FORMATS))


def chosen(name, capability, nvrtc):
    """The row of FORMATS for a GPU, or the reason why it or this NVRTC has no such products."""
    rows = [row for row in FORMATS if row.name == name]
    reached = [row for row in rows if capability >= row.least]
    # 6.2 has no dp4a.
    if not reached or (name == "int8" and capability == (6, 2)):
        return None, "it needs compute capability %d.%d, the GPU has %d.%d" % (
            *rows[0].least,
            *capability,
        )
    row = reached[-1]
    if nvrtc < row.nvrtc:
        return None, "it needs NVRTC %d.%d, this is %d.%d" % (*row.nvrtc, *nvrtc)
    return row, None


def source(row):
    """The kernel of a format."""
    numbers = row.numbers
    defines = (
        ("OPERAND", numbers.word),
        ("RESULT", numbers.result),
        ("KEEP", numbers.keep),
        ("SET", numbers.set),
        ("A", numbers.a),
        ("B", numbers.b),
        ("D", numbers.d),
        ("BITS", BITS[numbers.result]),
        ("MULTIPLY", row.multiply),
    )
    return "// %s\n" % row.name + "".join("#define %s %s\n" % pair for pair in defines) + KERNEL


class Sums:
    """The kernel of a format on the GPU that was entered, and its memory for a sum."""

    def __init__(self, cuda, runtime, code, seed):
        self.cuda, self.runtime, self.seed = cuda, runtime, seed
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda("cuModuleLoadData", ctypes.byref(self.module), code)
        cuda("cuModuleGetFunction", ctypes.byref(self.function), self.module, KERNEL_NAME)
        self.sum = runtime.allocate(8)
        # Rounds of a launch, until it is known how long one takes.
        self.most = 1

    def clear(self):
        self.runtime("cudaMemset", self.sum, 0, ctypes.c_size_t(8))

    def add(self, first, rounds):
        """Add those rounds; the sum so far, as hexadecimal digits."""
        while rounds:
            count = min(rounds, self.most)
            begin = now()
            self.launch(first, count)
            self.runtime.wait()
            took_s = max(now() - begin, 1e-5)
            self.most = max(1, min(2 * self.most, int(count * LAUNCH_S / took_s)))
            first, rounds = first + count, rounds - count
        read = self.runtime.read(self.sum, 8)
        return "%016x" % int.from_bytes(read, "little")

    def launch(self, first, count):
        numbers = [ctypes.c_uint(number) for number in (self.seed, first, count)]
        place = ctypes.c_uint64(self.sum.value)
        arguments = (ctypes.c_void_p * 4)(*[ctypes.addressof(item) for item in (*numbers, place)])
        self.cuda(
            "cuLaunchKernel",
            self.function,
            BLOCKS,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            None,
            arguments,
            None,
        )

    def release(self):
        self.runtime("cudaFree", self.sum)
        self.cuda("cuModuleUnload", self.module)


def sums_of(kernel, seconds):
    """The sums after 1, 2, 4 ... rounds, and whether the last one came out again.

    They take about so many seconds, the repetition included.
    """
    kernel.clear()
    begin, sums, rounds = now(), [], 0
    # The next sum takes as long as all before it, and their repetition as long as all of them.
    while len(sums) < LEAST_SUMS or (4 * (now() - begin) < seconds and len(sums) < MOST_SUMS):
        wanted = 1 << len(sums)
        sums.append(kernel.add(rounds, wanted - rounds))
        rounds = wanted
    kernel.clear()
    return sums, kernel.add(0, rounds) == sums[-1]


def agree(options, report):
    """The sums of all formats on one GPU, each reported before the next."""
    # Others on the same day have the same operands, and other days have others.
    seed = int(time.time()) // 86400
    entries = [
        entry
        for name in NAMES
        for entry in new_entries(options, format=name, seed=seed, sums=[], not_applicable=None)
    ]
    report(consensus=entries)
    if has_wheels(options.toolkit) and not library_names(options.toolkit, "nvrtc"):
        for entry in entries:
            entry.update(not_applicable="these wheels have no NVRTC", error=None)
        report(consensus=entries)
        return
    compiler, runtime, cuda = Compiler(options.toolkit), Runtime(options.toolkit), Driver()
    cuda("cuInit", 0)
    nvrtc = tuple(map(int, compiler.version().split(".")))
    text = cuda.capability(cuda.number("cuDeviceGet", options.gpu))
    capability = tuple(map(int, text.split(".")))

    target = compiler.code_for(text)[0]
    kind = "CUBIN" if target.startswith("sm_") else "PTX"

    def compute(found):
        row, found["not_applicable"] = chosen(found["format"], capability, nvrtc)
        if target == "default":
            found["not_applicable"] = "NVRTC %d.%d does not know compute capability %s" % (
                *nvrtc,
                text,
            )
        if found["not_applicable"]:
            return
        cuda.enter(options.gpu)
        code = compiler.compile(target, kind, source(row).encode())
        kernel = Sums(cuda, runtime, code, seed)
        found["sums"], again = sums_of(kernel, options.seconds)
        found["wrong"] = 0 if again else 1
        kernel.release()

    for_each_gpu("consensus", entries, report, runtime, compute)
