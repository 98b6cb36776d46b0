"""Small helpers for the text that commands and files give."""

import codecs
import errno
import os
import re
import stat


def last_lines(text, limit):
    """The last lines of a command's output: whole lines, at most `limit` characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    _, _, rest = text[-limit:].partition("\n")
    return rest or text[-limit:]


def first_match(pattern, text):
    match = re.search(pattern, text or "", re.MULTILINE)
    return match.group(1) if match else None


def is_number(text):
    """Return whether `int` reads a text: not ², a digit by `isdigit`, nor thousands of digits."""
    return bool(re.match(r"[0-9]{1,18}\Z", text))


def natural(text):
    """A sort key by which 10 follows 9."""
    return [int(part) if is_number(part) else part for part in re.split(r"([0-9]{1,18})", text)]


# More than any text that the probe reads. What is longer is no such file.
MOST_BYTES = 64 << 20


def open_regular(path):
    """A regular file, opened to read bytes; a pipe or device that anybody may have put there is
    neither waited for nor touched, nor one that takes a file's place meanwhile."""
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(seen).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return os.fdopen(os.open("/proc/self/fd/%d" % seen, os.O_RDONLY | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(seen)


def read_bytes(path):
    """The content of a regular file of a bounded size."""
    blocks = []
    with open_regular(path) as stream:
        # In blocks: for one of that size the kernel has no memory where it makes the text itself.
        for block in iter(lambda: stream.read(1 << 16), b""):
            blocks.append(block)
            if len(blocks) > MOST_BYTES >> 16 or os.fstat(stream.fileno()).st_size > MOST_BYTES:
                raise OSError(errno.EFBIG, "it has more than %d bytes" % MOST_BYTES, path)
    return b"".join(blocks)


def read_bounded(path):
    """The text of a regular file: UTF-8, or UTF-16 where a byte order mark says so."""
    data = read_bytes(path)
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if marked else "utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
