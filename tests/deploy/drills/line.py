"""Simulate a slow network link ("line") between this machine and a network namespace: delay, rate, losses.

It stands where the kernel has no netem. Each end is a tun device, so TCP on both sides is the kernel's own,
and sees the losses and the delay of a real line. It needs root and /dev/net/tun.
"""

import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
NETWORK = "10.218"
MOST_PACKET = 2048
# What a router at the narrow end keeps: 200 ms at 10 Mbit/s.
QUEUE_BYTES = 250_000


@dataclass(frozen=True)
class Line:
    """A slow network link: bits per second, one-way delay in seconds, and the lost fraction of packets.

    `control`: of congestion, by which both ends send.
    """

    bits: float
    delay: float
    loss: float
    control: str


@dataclass
class _Way:
    """One direction of a line: the packets that are on the way, in order, with the time each one arrives."""

    line: Line
    to: int
    free: float = 0.0
    queued: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, packet: bytes, now: float) -> None:
        late = max(0.0, self.free - now)
        if random.random() < self.line.loss or late * self.line.bits / 8 > QUEUE_BYTES:
            return
        self.free = now + late + len(packet) * 8 / self.line.bits
        self.queued.append((self.free + self.line.delay, packet))

    def hand_over(self, now: float) -> float:
        """Deliver the packets that have arrived, and return the seconds until the next one arrives."""
        while self.queued and self.queued[0][0] <= now:
            os.write(self.to, self.queued.popleft()[1])
        return self.queued[0][0] - now if self.queued else 1.0


def here_of(number: int) -> str:
    """Return the IP address of this machine's end of a line."""
    return f"{NETWORK}.{number}.1"


def lay(number: int, line: Line) -> None:
    """Make a network namespace linked to this machine, and carry its packets until the process ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    space, names = f"gdpfed-{number}", (f"gd{number}a", f"gd{number}b")
    _ip("netns", "add", space)
    try:
        ends = [_tun(name) for name in names]
        _ip("link", "set", names[1], "netns", space)
        inside = ("netns", "exec", space, "ip")
        _ip("addr", "add", f"{here_of(number)}/30", "dev", names[0])
        _ip("link", "set", names[0], "up")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{NETWORK}.{number}.2/30", "dev", names[1])
        _ip(*inside, "link", "set", names[1], "up")
        route = (f"{NETWORK}.{number}.0/30", "congctl", line.control)
        _ip("route", "replace", *route[:1], "dev", names[0], *route[1:])
        _ip(*inside, "route", "replace", *route[:1], "dev", names[1], *route[1:])
        print("laid", flush=True)
        _carry(ends, line)
    finally:
        _ip("netns", "delete", space)


def _carry(ends: Sequence[int], line: Line) -> None:
    ways = {ends[0]: _Way(line, ends[1]), ends[1]: _Way(line, ends[0])}
    while True:
        wait = min(way.hand_over(time.monotonic()) for way in ways.values())
        ready, _, _ = select.select(ends, [], [], max(0.0, wait))
        for end in ready:
            ways[end].take(os.read(end, MOST_PACKET), time.monotonic())


def _tun(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


def _ip(*words: str) -> None:
    subprocess.run(["/usr/sbin/ip", *words], check=True)


def _inside(number: int, command: list[str]) -> None:
    """Replace this process by a program that runs in a line's network namespace."""
    with open(f"/run/netns/gdpfed-{number}", "rb") as space:  # noqa: PTH123 - a descriptor is wanted
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    os.execvp(command[0], command)  # noqa: S606 - our own programs


if __name__ == "__main__":
    what, number, *words = sys.argv[1:]
    if what == "lay":
        bits, delay, loss, control = words
        lay(int(number), Line(float(bits), float(delay), float(loss), control))
    else:
        _inside(int(number), words)
