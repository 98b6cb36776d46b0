"""The forms of the kernel's messages that concern GPUs and machine."""

import re

# [(kind, pattern)]: the first that matches a line wins. `address`, `pid`, `process` and `code` are
# taken from its groups of these names. What the kernel says begins its message: further on stand
# names of files, programs and control groups, which any user may choose.
BUS_ID = r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
SHORT_ID = r"(?P<address>[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
# The driver and the device that speak.
DEVICE = r"^(?:[\w-]+ )?"
HARDWARE = r"^(?:mce: )?(?:\{\d+\})?(?:\[Hardware Error\]: )?"
# The kernel failed, or a processor of it was stuck; where in its code stands in a later line.
OOPS = (
    r"^(?:BUG: unable to handle |BUG: kernel NULL pointer |kernel BUG at |Unable to handle kernel "
    r"|(?:Internal error: )?[A-Za-z][\w ,.:-]* \[#\d+\])"
)
LOCKUP = r"^(?:NMI )?(?:watchdog: )?(?:CPU\d+: )?(?:BUG: soft lockup|Watchdog detected hard LOCKUP)"
FAILED = re.compile(OOPS + "|" + LOCKUP)
TRACE_ENDS = "---[ end trace"
# The instruction, or a function that called it; with a question mark the kernel only guesses it.
TRACE_IN_DRIVER = re.compile(
    r"^(?:RIP: |pc : ).*\[nvidia|^\s*(?!\? )[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+ \[nvidia"
)
# How `with_traces` joins the two lines.
IN_DRIVER = r" \| .*\[nvidia"
# Lines of a record of the firmware, with its number. Without one, it is of the boot before.
RECORD = re.compile(
    r"^(?:\{(?P<number>\d+)\})?\[Hardware Error\]: +(?P<text>event severity: (?P<begins>\w+)"
    r"|Error \d+, type: (?P<error>\w+)|section[ _]type: (?P<section>.*)|device_id: " + BUS_ID + r")"
)
SEVERE = ("fatal", "recoverable")
OF_THE_BUS = "PCIe error"
# How `with_records` joins those of one error.
JOINED = " | "
# A card that the loaded kind of the driver's kernel modules does not support.
OPEN_MODULE = "requires use of (?:the )?NVIDIA open kernel modules"
NO_OPEN_MODULE = r"is not supported by open(?: nvidia\.ko)?\b"
EVENTS = [
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "xid",
            r"^NVRM: Xid \((?:PCI:)?" + BUS_ID + r"[^)]*\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?"
            r"(?:[^,]*, name=(?P<process>[^,]+))?",
        ),
        (
            "sxid",
            r"^(?:nvidia-nvswitch\d*: )?SXid \((?:PCI:)?"
            + BUS_ID
            + r"[^)]*\): (?P<code>\d+), (?!Data \{)",
        ),
        ("xid", r"^NVRM: .*?" + BUS_ID + r"\D.*has fallen off the bus"),
        (
            "key-rejected",
            r"^(?:[\w-]+: )?Loading of (?:unsigned module|module with \S+ \S+) is rejected"
            r"|^(?:[\w-]+: )?Key was rejected by service"
            r"|^Lockdown: modprobe: unsigned module loading",
        ),
        ("api-mismatch", r"^NVRM: API mismatch"),
        # Why the driver refuses a card. Other lines may come between those of one message.
        # The driver's branch ended for a card; the first line names no address.
        ("needs-older-branch", r"^NVRM: The NVIDIA .* NVIDIA (?P<code>\d+)\.xx Legacy"),
        ("needs-open-module", r"^NVRM: The NVIDIA GPU " + BUS_ID + ".*" + OPEN_MODULE),
        ("needs-open-module", r"^NVRM: .*" + OPEN_MODULE),
        ("needs-proprietary-module", r"^NVRM: The NVIDIA GPU " + BUS_ID + ".*" + NO_OPEN_MODULE),
        ("needs-proprietary-module", r"^NVRM: .*" + NO_OPEN_MODULE),
        # The first of four lines, before the card's failed start.
        ("open-module-unready", r"^NVRM: Open nvidia\.ko is only ready for use on"),
        (
            "unsupported-card",
            r"^NVRM: The NVIDIA GPU " + BUS_ID + ".* is not supported by the NVIDIA",
        ),
        # A module that the kernel does not load: `process` is its name.
        (
            "module-refused",
            r"^(?P<process>[A-Za-z0-9_-]+): (?:disagrees about version of symbol |Unknown symbol "
            r"|module us(?:es|ing) GPL-only symbol|version magic '|exports duplicate symbol )",
        ),
        # A module that is loaded, though nothing shows that it fits NVIDIA's.
        ("module-unchecked", r"^(?P<process>[A-Za-z0-9_-]+): no symbol version for nvidia_"),
        # The whole memory of a machine is encrypted, which is not what a guest (SEV) has.
        (
            "memory-encryption",
            r"^(?:AMD )?Memory Encryption Features active: (?:AMD )?(?:SME|TSME)\b(?!.*SEV)",
        ),
        # The line before it says that the region is invalid.
        ("no-memory-region", r"^NVRM: BAR\d is \d+M @ 0x0+ \((?:PCI:)?" + BUS_ID),
        (
            "init-failed",
            r"^NVRM: (?:GPU )?" + BUS_ID + r": (?:RmInitAdapter|rm_init_adapter) failed",
        ),
        ("init-failed", r"^NVRM: (?:RmInitAdapter|rm_init_adapter) failed"),
        ("init-failed", r"^nvidia: probe of " + BUS_ID + " failed"),
        # The same line of Linux 6.8 and later.
        ("init-failed", r"^nvidia " + BUS_ID + ": probe with driver nvidia failed"),
        (
            "init-failed",
            r"^NVRM: The NVIDIA probe routine failed"
            r"|^NVRM: No NVIDIA (?:GPU|devices) (?:found|probed)"
            r"|^NVRM: .* is not supported by the NVIDIA",
        ),
        # Root ports report for the device behind them, and name it where they know it.
        (
            "pcie-error",
            DEVICE + r"[0-9a-f:.]+: AER: (?:Multiple )?Uncorrect\w+ \((?:Non-)?Fatal\) error"
            r" (?:message )?received(?::| from) " + BUS_ID,
        ),
        (
            "pcie-error",
            DEVICE + BUS_ID + r": (?:PCIe Bus Error: severity=Uncorrect"
            r"|AER: .*Uncorrect|(?:AER: )?can't recover|(?:AER: )?device recovery failed"
            r"|DPC: (?:containment event|ERR_FATAL))",
        ),
        (
            "pcie-error",
            r"^\{\d+\}\[Hardware Error\]: event severity: .* \| section[ _]type: PCIe error"
            r"(?: \| device_id: " + BUS_ID + ")?",
        ),
        ("previous-boot", r"^\[Hardware Error\]: event severity: (?:fatal|recoverable)"),
        (
            "machine-check",
            HARDWARE + r"(?:Uncorrected hardware memory error"
            # A processor's register without an exception: the bit 61 says that it is uncorrected.
            r"|(?:CPU \d+: )?Machine Check(?: Exception|: [0-9a-f]+ Bank \d+: [2367abef]\w{15}\b)"
            # The message of the decoder for AMD's processors.
            r"|System Fatal error\.|Uncorrected, software (?:restart|contain)able error\."
            r"|event severity: (?:fatal|recoverable))"
            r"|^EDAC (?:\S+ )?MC\d+: \d+ UE (?!invoked )\w|^Memory failure: 0x",
        ),
        # The kernel itself failed, in NVIDIA's driver (`with_traces`) or elsewhere.
        ("driver-oops", OOPS + r".*" + IN_DRIVER),
        ("oops", OOPS),
        (
            "driver-lockup",
            LOCKUP + r".*(?:\[(?P<process>nvidia[^\]]*|nv_\w+):(?P<pid>\d+)\]|" + IN_DRIVER + ")",
        ),
        ("lockup", LOCKUP),
        ("stall", r"^(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stalls?\b"),
        # Errors that the hardware corrected.
        (
            "corrected-error",
            HARDWARE + r"Machine check events logged|^EDAC (?:\S+ )?MC\d+: \d+ CE (?!invoked )\w",
        ),
        # An access to memory that the IOMMU refused; Intel's has no domain in its lines.
        ("iommu-fault", r"^DMAR: \[DMA [^\]]+\] Request device \[" + SHORT_ID + r"\] "),
        ("iommu-fault", DEVICE + BUS_ID + r": AMD-Vi: Event logged \[IO_PAGE_FAULT "),
        ("iommu-fault", r"^AMD-Vi: Event logged \[IO_PAGE_FAULT device=" + BUS_ID + " "),
        ("iommu-fault", r"^AMD-Vi: Event logged \[IO_PAGE_FAULT device=" + SHORT_ID + " "),
        # The link of a network adapter; drivers print it by their own words.
        (
            "port-down",
            r"^(?P<process>[a-z0-9_]+) "
            + BUS_ID
            + r"(?: [\w.@-]+)?: (?:(?:NIC |Port \d+ )?[Ll]ink (?:is )?[Dd]own"
            r"|Port module event: module \d+, Cable unplugged)",
        ),
        # What the driver logs beside an Xid, or instead of one.
        (
            "driver-error",
            r"^NVRM: .*(?:\[NV_ERR_(?:RESET_REQUIRED|GPU_IS_LOST)\]"
            r"|\(the GPU is likely in a bad state)",
        ),
        (
            "link-training",
            r"^NVRM: (?:.*postRxDetLinkMask failed|knvlinkUpdatePostRxDetectLinkMask\w*: Failed)",
        ),
        (
            "power-state",
            r"^nvidia " + BUS_ID + r": (?:Unable to|can't) change power state from \w+ to D0",
        ),
        (
            "link-down",
            DEVICE + BUS_ID + r": pciehp: Slot\([^)]*\): (?:Link Down|Card not present)",
        ),
        ("hung-task", r"^INFO: task (?P<process>.+):(?P<pid>\d+) blocked for more than"),
        (
            "out-of-memory",
            r"^(?:Out of memory|Memory cgroup out of memory): Killed process"
            r" (?P<pid>\d+) \((?P<process>[^)]+)\)",
        ),
        (
            "io-error",
            r"^(?:\w+: )?I/O error, dev (?!sr\d|fd\d|loop|ram|zram)\S+, |^EXT4-fs error \("
            r"|^\S+ \([^)]+\): Remounting filesystem read-only"
            r"|^XFS \([^)]+\): .*(?:[Cc]orruption|metadata I/O error)"
            r"|^nvme .*timeout, (?:aborting|reset)",
        ),
    )
]
# A message about a process may begin with the process's name, which has at most 15 bytes.
OF_A_PROCESS = re.compile(
    r".{1,15}(?:\[\d+\]| invoked oom-killer: |: page allocation failure: )", re.DOTALL
)
# One of them is in every line that counts: after months, a firewall's lines may be a million.
WORDS = (
    "NVRM",
    "nvidia",
    "10de:",
    "vfio-pci",
    "gpufleet",
    "SXid",
    "AER",
    "DPC",
    "PCIe Bus Error",
    "recover",
    "emory",
    "Machine Check",
    "EDAC",
    "Hardware Error",
    "INFO: task",
    "I/O error",
    "EXT4-fs",
    "Remounting",
    "XFS",
    "nvme",
    "rejected",
    "Lockdown",
    "BUG",
    "Unable to handle kernel",
    " [#",
    "LOCKUP",
    TRACE_ENDS,
    "pciehp",
    " symbol",
    "version magic",
    "Memory Encryption",
    "detected stall",
    "detected expedited stall",
    "DMAR: [",
    "AMD-Vi: Event",
    "ink down",
    "ink is down",
    "ink is Down",
    "Cable unplugged",
)
BOOT_LINE = "Linux version "
# The driver's first and last messages; the first comes before it initializes a card. A later line,
# for logs that have neither, comes after that.
LOAD_LINE = re.compile(r"^nvidia-nvlink: Nvlink Core is being initialized")
UNLOAD_LINE = re.compile(r"^nvidia-nvlink: Unregistered (?:the )?Nvlink Core")
# The driver unloads itself after these messages, so that its last message does not end the failure.
FAILED_LOAD = re.compile(
    r"^NVRM: (?:The NVIDIA probe routine failed|The NVIDIA .*\.xx Legacy"
    r"|None of the NVIDIA (?:devices|GPUs|graphics adapters) were initialized)"
)
LATE_LOAD_LINE = re.compile(r"^NVRM: loading NVIDIA UNIX")
# A device was reset or found again: by the kernel, by a virtual machine's driver, by a loaded
# NVSwitch driver; or the reset was recorded, since NVIDIA's driver logs none.
RESET_LINE = re.compile(
    "|".join(
        "^" + before + BUS_ID.replace("address", name) + after
        for before, name, after in (
            ("pci ", "found", r": \[10de:[0-9a-f]{4}\] type"),
            ("vfio-pci ", "given", ": reset done"),
            (r"nvidia-nvswitch\d*: Probing device ", "switch", ""),
            # The journal prints the host before what is no message of the kernel's own.
            (r"(?:[\w.-]+ )?gpufleet: GPU ", "recorded", r" was reset\s*$"),
        )
    )
)
# Messages about a card that the driver does not start.
REFUSED = (
    "init-failed",
    "needs-older-branch",
    "needs-open-module",
    "needs-proprietary-module",
    "no-memory-region",
    "open-module-unready",
    "unsupported-card",
)
# Kinds of messages about a kernel module, each of which is kept with its first reason.
OF_A_MODULE = ("module-refused", "module-unchecked")
# Messages about the driver and its cards: those before its last load belong to the previous one.
OF_THE_DRIVER = (
    *REFUSED,
    "xid",
    "sxid",
    "key-rejected",
    "api-mismatch",
    "driver-error",
    "link-training",
    "power-state",
)
# Kinds that a load clears in a file to which any user can add lines; the next check of such a card
# finds it again.
OF_A_FILE = (*REFUSED, "key-rejected", "api-mismatch")
# Messages about one card: those before its last reset belong to the past.
OF_THE_CARD = (*REFUSED, "xid", "sxid", "pcie-error", "power-state")
# Xids whose text decides what is to be done, and how many texts of each are kept for a card.
BY_TEXT = (64, 74, 144, 145, 146, 147, 148, 149, 150, 154)
MOST_TEXTS = 30
# A message over three lines: the address is in the first, the fault in the third. Where a branch
# ended for the card, its name is in the first and the branch in the second.
FIRST_OF_THREE = re.compile(
    r"^NVRM: The NVIDIA (?:GPU " + BUS_ID + r"|.{1,99} installed in this system is\s*$)"
)
FURTHER = re.compile(r"^NVRM: (?!Xid|GPU |The |loading)")
