"""Probe one host and print what is there as one JSON document, the snapshot.

Standard library only, Python 3.6 and later. `payload` packs the package as one text that is fed to
``python3 -I -S -`` on standard input; by hand: ``python3 -m gpufleet.on_host mode=full``, started
in `src/`. The collection's modules have it by the link in `plugins/module_utils`. It
changes nothing on the host and judges nothing.
"""
