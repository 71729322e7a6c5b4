"""Two peers in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dblp
from dblp.config import TransportConfig
from dblp.faults import Impairment


@contextmanager
def peers(
    config: TransportConfig,
    *,
    impairment: Impairment | None = None,
    listener_impairment: Impairment | None = None,
) -> Iterator[tuple[dblp.Peer, dblp.Peer]]:
    """(the one that connected, the one that was accepted)."""
    with (
        dblp.Listener(config=config, impairment=listener_impairment) as listener,
        dblp.Peer.connect(listener.address, config=config, impairment=impairment) as here,
        listener.accept() as there,
    ):
        yield here, there
