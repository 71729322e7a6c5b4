"""Sockets, the clock and the event loop: the layer that makes the sans-IO core run."""
