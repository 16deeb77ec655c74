"""Which rows are sampled and with which importance weight."""
