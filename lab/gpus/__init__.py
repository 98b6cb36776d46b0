"""Stand-in GPUs for lab hosts: a person sees what hosts with GPUs show before there are any.

A host is shown cards by the files and programs that are read of real ones: the PCI bus, the
driver's files in /proc, device nodes, libcuda and NVML (`tree.py`), `nvidia-smi` (`smi_text.py`)
and the kernel's log. What a card would compute is played back from a record of a real H100
(`recorded/`, `host/playback.py`): no kernel runs on any GPU. The record is that of
tests/fixtures/real_gpus/h100-deep.json; the messages of faults are those of tests/faults/gpu.py.
Each card says that it is a stand-in: by its model's name, its serial number and its BIOS's version.
"""
