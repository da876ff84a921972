"""The address of this node that other nodes reach."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

from dlio.errors import UsageError

INTERFACE = "DLIO_INTERFACE"
_SIOCGIFADDR = 0x8915


def host_address() -> str:
    """Returns DLIO_INTERFACE, else the address of the host's own name.

    If that is the loopback's, it is the one towards MASTER_ADDR, or out of this network.

    Raises:
        UsageError: DLIO_INTERFACE names no interface with an address.
    """
    if named := os.environ.get(INTERFACE):
        return _address_of(named)
    with suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    for target in (os.environ.get("MASTER_ADDR", ""), "192.0.2.1"):
        with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target or "127.0.0.1", 9))  # sends nothing: only asks which interface leads there
            if not (found := str(probe.getsockname()[0])).startswith("127."):
                return found
    return "127.0.0.1"


def _address_of(named: str) -> str:
    """Returns the address of an interface, or the address itself."""
    with suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(named))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", named.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    except OSError as error:
        raise UsageError(f"{INTERFACE}={named}: {error.strerror}: name an interface with an IPv4 address") from error
