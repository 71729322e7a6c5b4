"""Transport benches: one flow, loss, bursts, incast, latency, and a busy interpreter."""
