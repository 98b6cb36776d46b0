"""Read the XML that nvidia-smi prints, also where it is broken: per GPU its elements as texts.

An XML parser gives up on a whole document for one control character in a process's name, and a card
that fails ends the document in the middle. This scanner keeps what is there, by card: its place in
the document and its address never depend on whether the rest of it can be read.
"""

import re

from .text import first_match

# The names of processes are theirs to choose: whatever is in them is text.
PROCESS_NAME = re.compile(
    r"(<process_name>)(.*?)(</process_name>)(?=\s*<(?:used_memory>|/process))", re.DOTALL
)
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]|&#x?[0-9a-fA-F]{1,6};")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TOKEN = re.compile(r"<(/?)([A-Za-z_][\w.-]*)([^<>]*)>|([^<]+)|<")
ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&"))
# Texts that nvidia-smi and NVML print in the place of a value when a function failed.
NO_ANSWER = re.compile(
    r"unknown error|^\[?err!?\]?$|\bis lost\b|requires reset|insufficient (permission|external"
    r"|memory|size)|no permission|time-?out|not found|no gpus were found|not loaded"
    r"|^\[?(uninitialized|invalid argument|already initialized|no data|failure|unknown|error)\]?$"
    r"|interrupt request|infoROM|blocked by|version mismatch|provided version|in use by"
    r"|ran out of|not ready|not in ready|correct state|not supported for|operation is not",
    re.IGNORECASE,
)
CARD = re.compile(r'<gpu id="([^"<>]*)"\s*>')
# Long or a matter of identity, and of no GPU's health: only an error in them is kept.
LEFT_OUT = frozenset(
    (
        "processes",
        "accounted_processes",
        "supported_clocks",
        "encoder_stats",
        "fbc_stats",
        "ibmnpu",
        "bar1_memory_usage",
        "cc_protected_memory_usage",
        "platformInfo",
        "clocks",
        "max_clocks",
        "applications_clocks",
        "default_applications_clocks",
        "deferred_clocks",
        "max_customer_boost_clocks",
        "clock_policy",
        "voltage",
        "utilization",
        "accounting_mode",
        "accounting_mode_buffer_size",
        "driver_model",
        "gpu_operation_mode",
        "inforom_version",
        "inforom_bbx_flush",
        "capabilities",
        "power_smoothing",
        "power_profiles",
        "workload_power_profiles",
    )
)
PROCESSES = ("processes", "accounted_processes")
LARGEST, LONGEST = 600, 160


class Element:
    """One element of a card: its text, and the elements in it."""

    def __init__(self, name):
        self.name, self.text, self.parts = name, "", []

    def find(self, path):
        """The first element at a path; None if there is none."""
        here = self
        for name in path.split("/"):
            here = next((part for part in here.parts if part.name == name), None)
            if here is None:
                return None
        return here

    def stands_for(self, path):
        """The element at a path, or the one around it that has a text in its place.

        A block whose function failed is a bare text: `<remapped_rows>Unknown Error</...>`.
        """
        here = self
        for name in path.split("/"):
            found = next((part for part in here.parts if part.name == name), None)
            if found is None:
                return here if here is not self and not here.parts and here.text else None
            here = found
        return here

    def texts(self, path=""):
        """Pairs of path and text of each element without others in it; a second one is `name[1]`.

        Of an element that is left out, only texts with errors appear: its own, or those in it.
        Lists of processes are not entered: their texts belong to the processes.
        """
        seen = {}
        for part in self.parts:
            number = seen[part.name] = seen.get(part.name, -1) + 1
            left_out = not path and part.name in LEFT_OUT
            name = path + part.name + ("[%d]" % number if number else "")
            if (part.text or not part.parts) and not (left_out and not NO_ANSWER.search(part.text)):
                yield name, part.text[:LONGEST]
            for found in () if part.name in PROCESSES else part.texts(name + "/"):
                if not left_out or NO_ANSWER.search(found[1]):
                    yield found


def readable(text):
    """The document without what is not allowed in XML, its process names escaped."""

    def escaped(match):
        name = match.group(2)
        for entity, character in ENTITIES:
            name = name.replace(entity, character)
        for entity, character in reversed(ENTITIES):
            name = name.replace(character, entity)
        return match.group(1) + name + match.group(3)

    return COMMENT.sub("", PROCESS_NAME.sub(escaped, NOT_XML.sub("\ufffd", text)))


def cards(text):
    """The `id`, the Element, and its fault (or None) of each card, in the document's order."""
    starts = list(CARD.finditer(text))
    for number, start in enumerate(starts):
        last = number + 1 == len(starts)
        body = text[start.end() : None if last else starts[number + 1].start()]
        element, fault = scan(body)
        yield start.group(1), element, fault


def scan(text):
    """The card's Element, and its fault, by the text after `<gpu id=...>`."""
    card = Element("gpu")
    stack, fault = [card], None
    for match in TOKEN.finditer(text):
        close, name, rest, words = match.groups()
        if words is not None:
            stack[-1].text += plain(words)
        elif name is None:
            fault = fault or "a stray < in %s" % stack[-1].name
        elif not close:
            part = Element(name)
            stack[-1].parts.append(part)
            if not rest.endswith("/"):
                stack.append(part)
        else:
            names = [part.name for part in stack]
            if name not in names:
                fault = fault or "%s ends without a beginning" % name
                continue
            if names[-1] != name:
                fault = fault or "%s does not end" % names[-1]
            while stack[-1].name != name:
                stack.pop()
            stack.pop()
            if not stack:
                return card, fault
    return card, "it breaks off in %s" % "/".join([part.name for part in stack[1:]] or ["gpu"])


def plain(text):
    text = text.strip()
    for entity, character in ENTITIES:
        text = text.replace(entity, character)
    return text


def head(text):
    """The values before the first card, and whether the document came to its end."""
    before = text.partition("<gpu id=")[0]
    dtd = first_match(r"nvsmi_device_v(\d+)\.dtd", before)
    attached = first_match(r"<attached_gpus>\s*(\d+)\s*<", before)
    error = first_match(r"<error_string>([^<]*)<", text)
    # Branch 610 says in the element itself that another will take its place.
    return {
        "driver_version": first_match(r"<(?:driver|kmd)_version>\s*(\d[\d.]+)\s*[<[]", before),
        "cuda_version": first_match(r"<cuda_(?:umd_)?version>\s*(\d[\d.]+)\s*[<[]", before),
        "dtd": int(dtd) if dtd else None,
        "attached": int(attached) if attached else None,
        "error_string": plain(error)[:LONGEST] if error else None,
        "remarks": remarks(text)[-300:] or None,
        "complete": "</nvidia_smi_log>" in text,
    }


def remarks(text):
    """The text beside the elements: nvidia-smi prints its complaints in between."""
    text = re.sub(r"<gpu id=.*?</gpu\s*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"<(\w+)>[^<]*</\1>", " ", text)
    return " ".join(re.sub(r"<[^>]*>|\ufeff", " ", text).split())
