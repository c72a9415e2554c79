"""Reads every packet of this host's interface until the end of its standard input.

eavesdropper.py WORDS: prints "listening", and at the end how many bytes it has seen and how many
packets contained WORDS.
"""

from __future__ import annotations

import select
import socket
import sys

ALL_PROTOCOLS = 3  # ETH_P_ALL
SO_RCVBUFFORCE = 33


def main() -> None:
    words = sys.argv[1].encode()
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    wire.bind(("eth0", 0))
    print("listening", flush=True)
    seen_bytes = found = 0
    while True:
        ready, _, _ = select.select([wire, sys.stdin], [], [])
        if wire in ready:
            packet = wire.recv(1 << 17)
            seen_bytes += len(packet)
            found += words in packet
        else:  # all that came before is read
            break
    print(seen_bytes, found)


if __name__ == "__main__":
    main()
