"""`holdfast change`: make a certificate another one, by what is given; the rest of it stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from holdfast.cli import wishing
from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, TimeoutOption, WaitOption, once
from holdfast.cli.given import label as label_of
from holdfast.cli.issue import finish
from holdfast.cli.ls import CertArgument
from holdfast.cli.terminal import FormatOption, say
from holdfast.cli.windows import windows
from holdfast.errors import Usage

app = typer.Typer()


class NothingToChange(Usage):
    code = "nothing-to-change"
    hint = "For example: --owner platform, --label team=web, --add-name api.example.com, --ca letsencrypt"


@app.command("change")
def change(
    certificate: CertArgument,
    rename: Annotated[str | None, typer.Option("--rename", metavar="NAME", help="What it is called here.")] = None,
    add_name: Annotated[
        list[str] | None, typer.Option("--add-name", metavar="NAME", help="For this name, too.")
    ] = None,
    remove_name: Annotated[
        list[str] | None, typer.Option("--remove-name", metavar="NAME", help="Not for this name any more.")
    ] = None,
    ca: wishing.CaOption = None,
    key: wishing.KeyKindOption = None,
    reuse_key: wishing.ReuseOption = None,
    profile: wishing.ProfileOption = None,
    preferred_chain: wishing.ChainOption = None,
    lifetime: wishing.LifetimeOption = None,
    renew_after: wishing.FractionOption = None,
    renew_before: wishing.BeforeOption = None,
    ari: wishing.AriOption = None,
    window: wishing.WindowOption = None,
    owner: wishing.OwnerOption = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Add it, or give it this value.")
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="NAME", help="Take this label off.")
    ] = None,
    approval: wishing.ApprovalOption = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Change a certificate. Other names, another CA, key, profile, chain or lifetime: a new one is obtained at once."""
    wish = wishing.given(
        ca=ca, key=key, reuse_key=reuse_key, profile=profile, preferred_chain=preferred_chain, lifetime=lifetime,
        owner=owner, approval=approval,
    )  # fmt: skip
    wish |= ({} if rename is None else {"name": rename}) | windows(window)
    with connected(config, server) as client:
        row = client.get(f"/certificates/{certificate}")
        wish |= wishing.rule(row["renewal"], after=renew_after, before=renew_before, ari=ari)
        wish |= _names(row, add_name or (), remove_name or ())
        wish |= _labels(row, label or (), remove_label or ())
        if not wish:
            raise NothingToChange("Nothing was said that could be changed.")
        headers = once(idempotency_key) | {"If-Match": f'"{row["version"]}"'}
        made = client.patch(f"/certificates/{row['id']}", wish, headers=headers, dry_run=dry_run)
        if made["version"] == row["version"]:
            say(f"{made['name']} is like that already.")
        finish(client, made, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


def _names(row: Mapping[str, Any], more: Sequence[str], fewer: Sequence[str]) -> dict[str, Any]:
    """In their order; what is added comes last."""
    gone = {each.strip().lower() for each in fewer}
    kept = [each for each in row["names"] if each not in gone]
    added = [each.strip().lower() for each in more]
    return {"names": list(dict.fromkeys([*kept, *added]))} if more or fewer else {}


def _labels(row: Mapping[str, Any], more: Sequence[str], fewer: Sequence[str]) -> dict[str, Any]:
    kept = {name: value for name, value in row["labels"].items() if name not in fewer}
    return {"labels": kept | dict(map(label_of, more))} if more or fewer else {}
