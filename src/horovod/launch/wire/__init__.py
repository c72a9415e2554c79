"""What a launcher and its agents send each other: frames, records, the handshake."""
