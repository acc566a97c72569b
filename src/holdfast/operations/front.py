"""What the faces stand on: one hand that holds all that a request may need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.operations.channels import Post
from holdfast.operations.issuers import Fit, Probe, any_fit
from holdfast.operations.issuing import Keeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    keeper: Keeper
    issuer_kinds: frozenset[str]  # kinds of CAs that this process can talk to
    probe: Probe
    post: Post  # how channels are reached
    holder: str = ""  # which replica this is
    leaving: Callable[[], bool] = lambda: False  # the process is about to end: nobody begins a long wait
    fit: Fit = any_fit  # whether a CA can be made of what it is given
    default_issuers: tuple[str, ...] = ()  # where a certificate comes from if its owner does not say
