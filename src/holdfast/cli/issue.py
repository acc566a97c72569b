"""`holdfast issue`, `renew`, `wait`, `cancel`, `revoke`, `pause`, `resume`, `archive`: what may be done about one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli import following
from holdfast.cli import showing_certificates as shown
from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, TimeoutOption, WaitOption
from holdfast.cli.ls import CertArgument, LabelOption
from holdfast.cli.terminal import Format, FormatOption, asked_for, emit_one, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer()
KeyKind = Literal["ec-p256", "ec-p384", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519"]
Reason = Literal[
    "unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation",
    "privilege-withdrawn",
]  # fmt: skip
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask back.")]


class NotALabel(UserError):
    code = "not-a-label"
    hint = "For example: --label team=web"


@app.command("issue")
def issue(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="DNS names and addresses; the first names it.")],
    ca: Annotated[
        list[str] | None, typer.Option("--ca", help="A CA; may be repeated, the first is asked first.")
    ] = None,
    key: Annotated[KeyKind, typer.Option("--key", help="Kind of its key.")] = "ec-p256",
    profile: Annotated[str | None, typer.Option("--profile", help="Profile of the CA.")] = None,
    owner: Annotated[str, typer.Option("--owner", help="Whose it is.")] = "",
    label: LabelOption = None,
    approval: Annotated[bool, typer.Option("--approval", help="A second person must approve each attempt.")] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Ask for a certificate: it is obtained now and kept renewed from now on. One that is there is left as it is."""
    wish = {
        "names": names, "issuers": ca or None, "key": key, "profile": profile, "owner": owner,
        "labels": dict(map(label_of, label or ())), "approval_required": approval,
    }  # fmt: skip
    with connected(config, server) as client:
        made = _made(client, wish, idempotency_key, dry_run=dry_run)
        _finish(client, made, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


def _made(client: Client, wish: Mapping[str, Any], key: str | None, *, dry_run: bool) -> Any:
    """The one that is there already, if it is the same wish: repeating a command is not a mistake."""
    try:
        return client.post("/certificates", wish, headers=_once(key), dry_run=dry_run)
    except UserError as error:
        if error.code != "certificate-exists":
            raise
        there = client.get(f"/certificates/{wish['names'][0].strip().lower()}")
        if sorted(there["names"]) != sorted(each.strip().lower() for each in wish["names"]):
            raise
        say(f"{there['name']} is there already, and kept renewed.")
        return there


def label_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise NotALabel(f"{text!r:.60} is no label.")
    return name, value


def _once(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


def _finish(client: Client, row: Any, output: Format, *, wait: bool, timeout: float, dry_run: bool = False) -> None:
    code, attempt = 0, row["operation"]
    if wait and attempt is not None and not attempt["done"]:
        verdict = following.of_attempt(client, attempt["id"])
        code = following.follow(client, row["id"], verdict, timeout=timeout, clock=clock())
        row = client.get(f"/certificates/{row['id']}")
    now = clock().now()
    emit_one(row, output, text=lambda each: shown.block(each, now))
    if dry_run:
        say("Nothing was changed: this is how it would be.")
    elif attempt is not None and not wait:
        say(f"Attempt {attempt['id']} is under way. Follow it: holdfast wait {row['name']}")
    if code:
        raise typer.Exit(code)


@app.command("renew")
def renew(
    certificate: CertArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Renew a certificate now, whatever its schedule and its back-off say."""
    with connected(config, server) as client:
        row = client.post(f"/certificates/{certificate}/renew", headers=_once(idempotency_key), dry_run=dry_run)
        _finish(client, row, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


@app.command("wait")
def wait_for(
    certificate: CertArgument,
    goal: Annotated[Literal["issued"], typer.Option("--for", help="What to wait for.")] = "issued",
    timeout: TimeoutOption = 300,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Wait until a certificate is issued and nothing is under way. Exit code 3 if that takes longer."""
    with connected(config, server) as client:
        code = following.follow(client, certificate, following.issued, timeout=timeout, clock=clock())
    raise typer.Exit(code)


@app.command("cancel")
def cancel(
    what: Annotated[str, typer.Argument(metavar="CERT|JOB", help="A certificate, or the id of a job.")],
    why: Annotated[str, typer.Option("--why", help="For the audit log.")] = "stopped by hand",
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Stop the attempt under way for a certificate, or take a job out of the queue."""
    family = "jobs" if what.startswith("job_") else "certificates"
    with connected(config, server) as client:
        client.post(f"/{family}/{what}/cancel", {"why": why}, dry_run=dry_run)
    say(f"{'It would be cancelled' if dry_run else 'Cancelled'}: {what}.")


@app.command("retry")
def retry(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id of a dead job.")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Give a dead job back all its attempts."""
    with connected(config, server) as client:
        client.post(f"/jobs/{job}/retry", dry_run=dry_run)
    say(f"{'It would be' if dry_run else 'It is'} due now: {job}.")


@app.command("revoke")
def revoke(
    certificate: CertArgument,
    reason: Annotated[Reason, typer.Option("--reason", help="What the CA is told.")],
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Revoke the current version of a certificate. One that is active is replaced at once."""
    with connected(config, server) as client:
        row = client.get(f"/certificates/{certificate}")
        question = f"This revokes {row['name']} ({', '.join(row['names'])}), serial {row['serial']}."
        if not dry_run and not asked_for(question, yes=yes, word=row["name"]):
            raise typer.Exit(1)
        row = client.post(f"/certificates/{row['id']}/revoke", {"reason": reason}, dry_run=dry_run)
        _finish(client, row, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


@app.command("pause")
def pause(
    certificate: CertArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Do nothing about a certificate until it is resumed: it may expire."""
    with connected(config, server) as client:
        _finish(client, client.post(f"/certificates/{certificate}/pause"), output, wait=False, timeout=0)


@app.command("resume")
def resume(
    certificate: CertArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Look after a paused certificate again."""
    with connected(config, server) as client:
        _finish(client, client.post(f"/certificates/{certificate}/resume"), output, wait=False, timeout=0)


@app.command("archive")
def archive(
    certificate: CertArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Stop keeping a certificate, for good. It is not revoked."""
    with connected(config, server) as client:
        row = client.get(f"/certificates/{certificate}")
        if not asked_for(f"{row['name']} will not be renewed any more.", yes=yes, word=row["name"]):
            raise typer.Exit(1)
        _finish(client, client.delete(f"/certificates/{row['id']}"), output, wait=False, timeout=0)
