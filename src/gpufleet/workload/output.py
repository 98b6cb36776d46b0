"""The workload's own lines among the libraries' output, and what libraries print."""

import json
import os
import sys
import tempfile

from gpufleet.on_host.constants import FRAMEWORK_MARK

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


def emit(document, mark=FRAMEWORK_MARK):
    sys.stdout.write("\n" + mark + json.dumps(document) + "\n")
    sys.stdout.flush()


def plain(error):
    text = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, text[0][:500] if text else "")


def captured(function):
    """The result of a call and its text, with the output of C++, descriptors and all."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as written:
        for number in (1, 2):
            os.dup2(written.fileno(), number)
        try:
            result = function()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in zip((1, 2), saved):
                os.dup2(copy, number)
                os.close(copy)
            written.seek(0)
            text = written.read().decode("utf-8", "replace")
            # The probe reads it too.
            sys.stderr.write(text)
            sys.stderr.flush()
    return result, text


def unique(items):
    return list(dict.fromkeys(items))
