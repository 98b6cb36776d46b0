"""End with the session that started this process, and leave no process behind.

The ssh daemon lets the commands of a lost connection run on: nobody reads what they find, and they
keep cards and disks busy. So who works on a host watches its session, and ends what it has started.
"""

import os
import select
import signal
import threading
import time

from .privileges import prctl

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# The names of the process that has an ssh connection; since OpenSSH 9.8 the second one.
SSH_DAEMONS = (b"sshd", b"sshd-session")
# How often it is checked, and how long processes that start others are killed.
CHECK_S, KILLED_S = 0.5, 2.0


def processes():
    """Name, parent and start of the processes that have not ended, by process id."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            status = status_of(int(name))
            if status:
                found[int(name)] = status
    return found


def status_of(pid):
    """Name, parent and start of a process; None where it has ended or cannot be seen."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            # A name may contain blanks and brackets.
            head, _, rest = stream.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return head.partition(b"(")[2], int(fields[1]), fields[19]


class Session:
    """The session of this process: the ssh connection above it, or else its parent.

    It has ended when that process has, or when nobody can read this one's output any more: where
    connections are shared, the process of the connection outlives a session.
    """

    def __init__(self):
        self.checked = time.monotonic()
        # A command that ignores the end of a terminal, as nohup does, means it.
        self.detached = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self.above, self.is_ssh = None, False
        self.output = select.poll()
        self.output.register(1, 0)
        pid, known = os.getppid(), []
        while pid > 1 and pid not in known:
            status = status_of(pid)
            if status is None:
                break
            known.append(pid)
            self.is_ssh = status[0] in SSH_DAEMONS
            if self.above is None or self.is_ssh:
                self.above = pid, status[2]
            if self.is_ssh:
                break
            pid = status[1]

    def ended(self):
        """Return whether the session has ended; it is asked for at most twice a second."""
        if self.detached or time.monotonic() < self.checked + CHECK_S:
            return False
        self.checked = time.monotonic()
        if self.above:
            status = status_of(self.above[0])
            if status is None or status[2] != self.above[1]:
                return True
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in self.output.poll(0))


def keep_orphans():
    """Become the parent of each process below this one whose own parent ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent):
    """Have the kernel kill this process when `parent`, the process that forked it, ends.

    Lost by a change of account, and by a setuid program.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def kill_descendants():
    """Kill all that this process has started, and what these have; wait for none of it.

    One look may miss a process whose parent ends while it is read: the next one finds it as a child
    of this process.
    """
    ends, killed, looks_without = time.monotonic() + KILLED_S, set(), 0
    while looks_without < 2 and time.monotonic() < ends:
        below, known = {os.getpid()}, processes()
        while True:
            more = {pid for pid, status in known.items() if status[1] in below} - below
            if not more:
                break
            below |= more
        new = below - killed - {os.getpid()}
        for pid in new:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # ended meanwhile
                pass
        killed |= new
        looks_without = 0 if new else looks_without + 1
        time.sleep(0.01)


def end_with_session(session=None):
    """Have a thread end this process, and all that it has started, when its ssh session ends.

    Without ssh the control machine is this one, where `gpufleet` ends what it has started.
    """
    session = session or Session()
    if not session.is_ssh or session.detached:
        return
    keep_orphans()

    def watch():
        while not session.ended():
            time.sleep(CHECK_S)
        kill_descendants()
        os._exit(1)

    thread = threading.Thread(target=watch)
    thread.daemon = True
    thread.start()
