"""What belongs to one rank alone, so that no twin could give it to a replacement: random streams, loader position,
buffers."""
