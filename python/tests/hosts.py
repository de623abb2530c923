"""Two hosts on one kernel, joined by a wire that can be cut: namespaces of their own, and a pair of veth devices.

A host lasts as long as its first process, which ends when its standard input is closed: by `close`, or when the process
that made it ends in whatever way. The kernel then kills all that runs on the host, and takes away its devices and
mounts, so nothing stays behind.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

NEEDED = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
"""The programs that make hosts, and the packages that have them."""

WIRE = "wire0"
"""The name of the device at each end of the wire."""

NAMESPACES = ["--mount", "--net", "--uts"]
"""What each host has of its own, beside its processes."""

BEGIN = """
mount --bind "$1" /etc/hosts
mount -t tmpfs none /run
echo "$2" > /proc/sys/kernel/hostname
ip link set lo up
echo ready
cat
: the shell stays, for it is the parent of all whose parents have ended
"""


def missing():
    """What this machine lacks for hosts and how to get it, or None."""
    if os.geteuid() != 0:
        return "namespaces need root; hint: run the tests as root in a container or virtual machine of your own"
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            return f"the program {program} is missing; hint: apt-get install {package}"
    return None


class Host:
    """A machine of its own as far as network, name, mounts and processes go. Its files are those of this machine."""

    def __init__(self, name, address, known):
        self.name, self.address = name, address
        command = ["unshare", *NAMESPACES, "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._first = subprocess.Popen(
            [*command, "sh", "-e", "-c", BEGIN, "sh", known, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._entered = [f"--target={self.pid}", *NAMESPACES, f"--pid=/proc/{self.pid}/ns/pid_for_children"]
        if (said := self._first.stdout.readline()) != "ready\n":
            self.close()
            pytest.skip(f"this machine makes no host: {said.strip()}; hint: a container needs --privileged")

    @property
    def pid(self):
        """The process, of this machine, that is in the network of the host."""
        return self._first.pid

    def command(self, *words):
        """Return the command that runs one on this host, in the root folder."""
        return ["nsenter", *self._entered, *map(str, words)]

    def run(self, *words, timeout=60, **how):
        """Run a command on this host, which must succeed. Returns its output."""
        ended = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout, **how)
        assert ended.returncode == 0, ended
        return ended.stdout

    def kill(self, pid):
        """Kill a process by the number that it has on this host."""
        self.run("sh", "-c", f"kill -KILL {pid}")

    def processes(self):
        """Return the command lines of the processes that run on this host, by their numbers there."""
        found, own = {}, os.readlink(f"/proc/{self.pid}/ns/pid_for_children")
        for folder in Path("/proc").glob("[0-9]*"):
            # It may end at any moment.
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns/pid") != own:
                    continue
                numbers = next(row for row in (folder / "status").read_text().splitlines() if row.startswith("NSpid:"))
                if line := (folder / "cmdline").read_text().replace("\0", " ").strip():
                    found[int(numbers.split()[-1])] = line
        return found

    def set_wire(self, state):
        """Take the end of the wire at this host `down`, which cuts it in both directions, or `up` again."""
        self._ip("link", "set", WIRE, state)

    def join(self, other):
        """Lay the wire to another host."""
        try:
            self._ip("link", "add", WIRE, "type", "veth", "peer", "name", WIRE, "netns", other.pid)
        except AssertionError as failure:
            pytest.skip(f"this kernel makes no veth devices: {failure}; hint: modprobe veth, on the machine itself")
        for host in (self, other):
            host._ip("address", "add", f"{host.address}/24", "dev", WIRE)
            host.set_wire("up")

    def _ip(self, *words):
        # Within its network alone: the numbers of processes are those of this machine.
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr.strip()}"

    def close(self):
        """End all that runs on the host, and the host."""
        self._first.stdin.close()
        self._first.wait(timeout=30)
        self._first.stdout.close()


@contextlib.contextmanager
def two_hosts(folder, names=("near", "far")):
    """Two hosts that know each other by their names; the test is skipped where this machine cannot make them."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    addresses = ["10.9.0.1", "10.9.0.2"]
    known = folder / "known-hosts"
    rows = [("127.0.0.1", "localhost"), *zip(addresses, names, strict=True)]
    known.write_text("".join(f"{address} {name}\n" for address, name in rows))
    with contextlib.ExitStack() as stack:
        made = []
        for name, address in zip(names, addresses, strict=True):
            made.append(Host(name, address, known))
            stack.callback(made[-1].close)
        made[0].join(made[1])
        yield made
