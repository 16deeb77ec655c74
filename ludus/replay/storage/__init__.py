"""Where replayed rows lie: the ring, and the memory it takes."""
