"""The processes that have connected to the coordinator, which names none before all have: their addresses, in Linux."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import re
from collections import Counter

NET = pathlib.Path("/proc/self/net")
OWN = pathlib.Path("/proc/self/fd")
ESTABLISHED = "01"

Address = tuple[str, int]


def awaited(process_id: int, num_processes: int, coordinator: str) -> str:
    """Returns words for the processes that have not connected to the coordinator; process 0 knows their number.

    It names the addresses of those that have, because the host that is not among them hangs, or has not started.
    """
    if process_id:
        return f"process 0 at {coordinator}, or another,"
    here, others = connected(int(coordinator.rpartition(":")[2])), num_processes - 1
    if here is None or len(here) >= others:  # perhaps one froze after it had connected
        return "some of the others"
    came = ", ".join(f"{number} from {address}" for address, number in sorted(Counter(here).items()))
    return f"{others - len(here)} of the {others} others" + f" (all but {came})" * bool(came)


def connected(port: int) -> list[str] | None:
    """Returns the addresses of the connections to a port of this process, except its own; None outside of Linux."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(NET / name)]
    if not OWN.is_dir():
        return None
    sockets = set()
    for path in OWN.iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.update(re.findall(r"socket:\[(\d+)\]", os.readlink(path)))
    ours = {local for local, remote, inode in rows if remote[1] == port and inode in sockets}
    return [remote[0] for local, remote, _ in rows if local[1] == port and remote not in ours]


def _rows(path: pathlib.Path) -> list[tuple[Address, Address, str]]:
    """Returns the local address, remote address and inode of each established connection in a table of Linux."""
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()[1:]]
    return [(_address(row[1]), _address(row[2]), row[9]) for row in rows if row[3] == ESTABLISHED]


def _address(text: str) -> Address:
    """Returns an address such as ``0100007F:1F90``, whose words have their bytes in reverse.

    >>> _address("0100007F:1F90")
    ('127.0.0.1', 8080)
    """
    host, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)
