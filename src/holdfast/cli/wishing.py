"""The options that say what a certificate is, and what the API is told for them; for `issue` and `change` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import typer

from holdfast.cli.spans import span
from holdfast.errors import Usage

STAGING: Final = "-staging"  # how the names of CAs end that issue for tests
KeyKind = Literal["ec-p256", "ec-p384", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519"]
CaOption = Annotated[
    list[str] | None, typer.Option("--ca", help="A CA; may be repeated, the first is asked first.", show_default=False)
]
StagingOption = Annotated[
    bool, typer.Option("--staging", help="Of the CA's test endpoint: the CA that is called like it, and -staging.")
]
KeyKindOption = Annotated[KeyKind | None, typer.Option("--key", help="Kind of its key; ec-p256 if nothing is said.")]
ReuseOption = Annotated[bool | None, typer.Option("--reuse-key/--new-key", help="Renew with the same key.")]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Profile of the CA; '' for none.")]
ChainOption = Annotated[
    str | None,
    typer.Option("--preferred-chain", metavar="ISSUER", help="Of several chains, that of this root; '' for any."),
]
LifetimeOption = Annotated[
    str | None, typer.Option("--lifetime", metavar="SPAN", help="Ask for one such as 45d; '': the CA decides.")
]
FractionOption = Annotated[
    float | None,
    typer.Option("--renew-after", min=0.1, max=0.95, metavar="SHARE", help="Renew after this share of its life."),
]
BeforeOption = Annotated[
    str | None, typer.Option("--renew-before", metavar="SPAN", help="Or so long before its end, such as 30d.")
]
AriOption = Annotated[bool | None, typer.Option("--ari/--no-ari", help="Let the CA say when to renew (RFC 9773).")]
WindowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--window",
        metavar="[DAYS ]HH:MM-HH:MM",
        help="Renew only then, in UTC: 'sat,sun 02:00-05:00'; may be repeated; '': at any time. Never lets it expire.",
    ),
]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Whose it is.")]
ApprovalOption = Annotated[
    bool | None, typer.Option("--approval/--no-approval", help="A second person must approve each attempt.")
]


NO_STAGING: Final = "There is no CA for tests."  # that --staging could mean


class NoStaging(Usage):
    code = "no-staging"
    hint = "Add one, such as: holdfast ca add letsencrypt-staging letsencrypt-staging"


def staged(chosen: Sequence[str], known: Sequence[str]) -> list[str]:
    """The test endpoints of these CAs; if none is named, the only one there is."""
    wanted = [each if each.endswith(STAGING) else f"{each}{STAGING}" for each in chosen]
    found = wanted or [each for each in known if each.endswith(STAGING)]
    missing = [each for each in found if each not in known]
    if missing:
        raise NoStaging(f"There is no CA {missing[0]!r:.60}.")
    if not wanted and len(found) != 1:
        raise NoStaging(f"There are {len(found)} CAs for tests: say which by --ca." if found else NO_STAGING)
    return found


class TwoRules(Usage):
    code = "two-rules"
    hint = "Give --renew-after, such as 0.6, or --renew-before, such as 30d."


def given(
    *,
    ca: list[str] | None,
    key: str | None,
    reuse_key: bool | None,
    profile: str | None,
    preferred_chain: str | None,
    lifetime: str | None,
    owner: str | None,
    approval: bool | None,
) -> dict[str, Any]:
    """Only what was said: what is left out is as it is, or as it is by default."""
    said = {"issuers": ca or None, "key": key, "reuse_key": reuse_key, "owner": owner, "approval_required": approval}
    found: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    for name, text in (("profile", profile), ("preferred_chain", preferred_chain)):
        if text is not None:
            found[name] = text or None
    if lifetime is not None:
        found["lifetime_s"] = span(lifetime).total_seconds() if lifetime else None
    return found


def rule(
    was: Mapping[str, Any], *, after: float | None, before: str | None, ari: bool | None
) -> dict[str, Mapping[str, Any]]:
    """When it is renewed, if something was said about that: a share replaces a span, and a span a share."""
    if after is not None and before is not None:
        raise TwoRules("A certificate is renewed after a share of its life, or a span before its end: not both.")
    said: dict[str, Any] = {} if ari is None else {"ari": ari}
    if after is not None:
        said |= {"fraction": after, "before_s": None}
    if before is not None:
        said |= {"fraction": None, "before_s": span(before).total_seconds()}
    return {"renewal": {**was, **said}} if said else {}
