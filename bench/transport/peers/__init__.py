"""What the transport is measured beside: kernel TCP, a raw UDP ceiling, gloo; and `dblp` itself.

Each peer runs its sides as separate processes, in the hosts of a lab or on loopback (lab `None`).
"""
