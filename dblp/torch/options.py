"""How gradients are exchanged under PyTorch: one frozen object, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ..config import TransportConfig
from ..errors import ConfigError
from ..faults import Impairment
from ..phase import FixedTolerance, GradientNormPolicy, TolerancePolicy
from ..tolerance import Tolerance

__all__ = ["SERVER_DECIDES", "ExchangeOptions", "choose_policy", "options_from"]

TOPOLOGIES = ("sharded", "server")
DOWNLINKS = ("exact", "common", "lossy")
RULES = ("zero", "contributors")
ON_ERROR = ("raise", "skip", "gloo")

DEFAULT_LOW = "0.8%"
DEFAULT_HIGH = "40.8%"
"""The paper's tolerances (Section V-A): in critical regimes and elsewhere."""

SERVER_DECIDES = "50%"
"""Stands for the tolerance that a server elsewhere decides on: not exact, for all we know."""

RESYNC_EVERY = 100
"""Steps between drift measurements with a lossy downlink, unless told otherwise."""


STRAGGLER_TIMEOUT_S = 1800.0
"""As long as torch.distributed waits by default: rank 0 may evaluate or save while others wait."""


def default_config() -> TransportConfig:
    """How bytes travel where nothing is said."""
    return TransportConfig(straggler_timeout_s=STRAGGLER_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    """Everything about the exchange that is not the policy.  Equal on all ranks.

    Raises ConfigError when a value cannot be used.
    """

    topology: str = "sharded"
    """"sharded": every rank serves a part of each bucket; "server": rank 0 serves all of it."""

    servers: int | None = None
    """Number of serving ranks (0 … servers-1); None: all for "sharded", one for "server"."""

    address: str | None = None
    """"host:port" of a `dblp.ParameterServer` that runs elsewhere; then no rank serves."""

    port: int = 0
    """TCP and UDP port of this host's first rank, the next one for its second, and so on; 0 takes
    free ports."""

    downlink: str = "exact"
    """"exact": all of the mean arrives; "common": all ranks lack the same chunks; "lossy": each
    rank lacks chunks of its own (paper), and replicas drift."""

    rule: str = "zero"
    """What a missing chunk counts as: "zero" (paper) or "contributors"."""

    exact: tuple[str, ...] = ()
    """Patterns of parameter names, such as "*.bias", whose gradients always arrive."""

    exact_below_bytes: int = 16 * 1024
    """Buckets up to this size in bytes always arrive: a few chunks are no burden."""

    residual: bool | None = None
    """Error feedback: what was not delivered is added to the next gradient.  None: wherever it can
    be, which takes the names of the parameters and ranks that serve themselves."""

    wire_dtype: str | None = None
    """"bf16" sends float32 and float64 gradients as bfloat16."""

    on_error: str = "raise"
    """"raise" the error from backward(), "skip" the step on all ranks, or go on over "gloo"."""

    check_every: int | None = None
    """Steps between comparisons of the replicas; 0 never; None: 100 with a lossy downlink, else
    never."""

    per_bucket: bool = False
    """Ask the policy for every bucket with the bucket's norm, not once with that of the model."""

    config: TransportConfig = field(default_factory=default_config)
    """How bytes travel."""

    impairment: Impairment | None = None
    """Faults to inject into what arrives, for tests."""

    def __post_init__(self) -> None:
        self._check_choice("topology", TOPOLOGIES)
        self._check_choice("downlink", DOWNLINKS)
        self._check_choice("rule", RULES)
        self._check_choice("on_error", ON_ERROR)
        self._check_choice("wire_dtype", (None, "bf16"))
        for name, lowest in (("port", 0), ("exact_below_bytes", 0), ("check_every", 0),
                             ("servers", 1)):  # fmt: skip
            value = getattr(self, name)
            if value is None and name in ("check_every", "servers"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise ConfigError(f"{name} is {value!r}: choose an integer, {lowest} or more")
        for name in ("residual", "per_bucket"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "residual" and value is None):
                raise ConfigError(f"{name} is {value!r}: choose True or False")
        patterns: object = self.exact
        if not isinstance(patterns, tuple) or not all(isinstance(item, str) for item in patterns):
            raise ConfigError(
                f'exact is {self.exact!r}: pass a list of patterns, such as ["*.bias"]'
            )
        if not isinstance(self.config, TransportConfig):
            raise ConfigError(f"config is {self.config!r}: pass a dblp.TransportConfig")
        if self.address is not None:
            self._check_server_elsewhere()

    def _check_server_elsewhere(self) -> None:
        """The server decides on tolerances and keeps to itself what it did not get."""
        for name in ("servers", "port", "exact", "residual", "per_bucket"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name}= cannot be used with address=, where a server that runs elsewhere "
                    "decides: leave one of them out"
                )

    def _check_choice(self, name: str, choices: tuple[str | None, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")

    @property
    def feeds_back(self) -> bool:
        """`residual` with its default filled in."""
        return self.address is None if self.residual is None else self.residual

    @property
    def replicas_may_drift(self) -> bool:
        """Whether ranks may apply different means."""
        return self.downlink == "lossy"

    @property
    def checked_every(self) -> int:
        """`check_every` with its default filled in."""
        if self.check_every is not None:
            return self.check_every
        return RESYNC_EVERY if self.replicas_may_drift else 0

    def serving(self, world: int) -> int:
        """How many of `world` ranks serve; ConfigError when there are not so many."""
        count = self.servers or (world if self.topology == "sharded" else 1)
        if count > world:
            raise ConfigError(f"servers is {count}, but there are {world} ranks: choose fewer")
        return count

    def check_devices(self, devices: Iterable[object]) -> None:
        """ConfigError when gradients on these devices cannot be exchanged as is wanted."""
        found = sorted({str(device) for device in devices})
        if self.on_error == "gloo" and len(found) > 1:
            # Each device hands its buckets over by itself, and gloo knows a call by its turn only.
            raise ConfigError(
                f"on_error='gloo' takes parameters on one device, these are on {', '.join(found)}: "
                "choose 'skip' or 'raise'"
            )

    def terms(self) -> dict[str, str]:
        """What must be equal on all ranks, by name."""
        left_out = {"config", "impairment", "port"}
        return {
            item.name: repr(getattr(self, item.name))
            for item in fields(self)
            if item.name not in left_out
        }


def options_from(settings: Mapping[str, Any]) -> ExchangeOptions:
    """The options that keyword arguments stand for; ConfigError for a name that there is not."""
    known = {item.name for item in fields(ExchangeOptions)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(
            f"there is no option {unknown[0]!r}: choose from {', '.join(sorted(known))}"
        )
    values = dict(settings)
    if isinstance(values.get("exact"), list | set):
        values["exact"] = tuple(values["exact"])
    if values.get("config") is None:
        values.pop("config", None)
    return ExchangeOptions(**values)


def choose_policy(
    policy: TolerancePolicy | None, tolerance: Tolerance | Fraction | int | str | None
) -> TolerancePolicy:
    """The policy that two arguments of which one at most is given stand for."""
    if policy is not None and tolerance is not None:
        raise ConfigError(
            "both policy= and tolerance= are given: a tolerance is the policy "
            "FixedTolerance(tolerance), so leave one out"
        )
    if tolerance is not None:
        return FixedTolerance(tolerance)
    if policy is None:
        return GradientNormPolicy(DEFAULT_LOW, DEFAULT_HIGH)
    if not isinstance(policy, TolerancePolicy):
        raise ConfigError(f"policy is {policy!r}: pass a dblp.TolerancePolicy")
    return policy
