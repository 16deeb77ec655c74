"""Storage of replayed rows: the ring, its layout, and the memory it takes."""
