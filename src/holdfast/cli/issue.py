"""`holdfast issue`, `renew`, `wait`, `cancel`, `revoke`, `pause`, `resume`, `archive`: what may be done about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdfast.cli import following, wishing
from holdfast.cli import showing_certificates as shown
from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, TimeoutOption, WaitOption, a_job, job_over, once
from holdfast.cli.given import label as label_of
from holdfast.cli.ls import CertArgument, LabelOption
from holdfast.cli.spans import span
from holdfast.cli.terminal import Format, FormatOption, asked_for, emit_one, say
from holdfast.cli.windows import windows
from holdfast.errors import Usage, UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer()
Reason = Literal[
    "unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation",
    "privilege-withdrawn",
]  # fmt: skip
LONGEST_STAGGER: Final = timedelta(days=7)
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask back.")]


class NotNamed(Usage):
    code = "not-named"
    hint = "For example: holdfast renew www.example.com, or: holdfast renew --label team=web"


class NothingToSpread(Usage):
    code = "nothing-to-spread"
    hint = "Name them by --label or --all, with a span of at most 7 days: holdfast renew --label team=web --stagger 6h"


def spread_over(text: str | None) -> timedelta:
    found = timedelta(0) if text is None else span(text)
    if found > LONGEST_STAGGER:
        raise NothingToSpread("Renewals are spread over 7 days at most.")
    return found


class NotDeployed(Usage):
    code = "not-deployed"
    hint = "Wait until it is issued, then fetch it: holdfast wait NAME && holdfast fetch NAME --to FOLDER"


@app.command("issue")
def issue(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="DNS names and addresses; the first names it.")],
    ca: wishing.CaOption = None,
    staging: wishing.StagingOption = False,
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
    label: LabelOption = None,
    approval: wishing.ApprovalOption = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Ask for a certificate: it is obtained now and kept renewed from now on. One that is there is left as it is."""
    wish = wishing.given(
        ca=ca, key=key, reuse_key=reuse_key, profile=profile, preferred_chain=preferred_chain, lifetime=lifetime,
        owner=owner, approval=approval,
    )  # fmt: skip
    wish |= {"names": names, "labels": dict(map(label_of, label or ()))}
    wish |= wishing.rule({}, after=renew_after, before=renew_before, ari=ari) | windows(window)
    with connected(config, server) as client:
        if staging:
            known = [each["name"] for each in client.pages("/issuers", limit=500)]
            wish["issuers"] = wishing.staged(ca or (), known)
        made = _made(client, wish, idempotency_key, dry_run=dry_run)
        finish(client, made, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


def _made(client: Client, wish: Mapping[str, Any], key: str | None, *, dry_run: bool) -> Any:
    """The one that is there already, if it is the same wish: repeating a command is not a mistake."""
    try:
        return client.post("/certificates", wish, headers=once(key), dry_run=dry_run)
    except UserError as error:
        if error.code != "certificate-exists":
            raise
        there = client.get(f"/certificates/{wish['names'][0].strip().lower()}")
        if sorted(there["names"]) != sorted(each.strip().lower() for each in wish["names"]):
            raise
        if others := [name for name in wish if name != "names" and _differs(wish[name], there[name])]:
            raise OtherwiseThere(there["name"], others) from None
        say(f"{there['name']} is there already, and kept renewed.")
        return there


def _differs(asked: Any, found: Any) -> bool:
    """Of a table, what was asked for is compared, and not what it has besides."""
    if isinstance(asked, Mapping):
        return any(_differs(value, found.get(name)) for name, value in asked.items())
    if isinstance(asked, list):
        return len(asked) != len(found) or any(map(_differs, asked, found))
    return bool(asked != found)


class OtherwiseThere(UserError):
    status, code = 409, "certificate-exists"

    def __init__(self, name: str, others: Sequence[str]) -> None:
        super().__init__(f"{name} is there already, with other {', '.join(others).replace('_', ' ')}; it is as it was.")
        self.hint = f"Change it: holdfast change {name} --help"


def finish(client: Client, row: Any, output: Format, *, wait: bool, timeout: float, dry_run: bool = False) -> None:
    code, attempt = 0, row["operation"]
    if wait and attempt is not None and not attempt["done"]:
        verdict = following.of_attempt(client, attempt["id"])
        code = following.follow(client, row["id"], verdict, timeout=timeout, clock=clock(), known=row)
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
    certificate: Annotated[
        str | None, typer.Argument(metavar="[CERT]", help="Its name, its id, or a unique prefix of the id.")
    ] = None,
    label: LabelOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All that you may see.")] = False,
    if_due: Annotated[bool, typer.Option("--if-due", help="Only if its time has come, or it is failing.")] = False,
    stagger: Annotated[
        str | None, typer.Option("--stagger", metavar="SPAN", help="Spread many over a time, such as 6h.")
    ] = None,
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Renew a certificate now, whatever its schedule and its back-off say; or many, by label."""
    from holdfast.cli import bulk

    if (certificate is None) == (not label and not everything):
        raise NotNamed("Name one certificate, or many by --label or --all.")
    if stagger is not None and certificate is not None:
        raise NothingToSpread("--stagger spreads many certificates, and this is one.")
    over = spread_over(stagger)
    with connected(config, server) as client:
        if certificate is None:
            manner = bulk.Manner(
                key=idempotency_key,
                dry_run=dry_run,
                if_due=if_due,
                yes=yes,
                stagger=over,
                wait=wait,
                timeout=timeout,
            )
            raise typer.Exit(bulk.renew(client, label or (), manner, output, clock()))
        if if_due and not bulk.is_due(client.get(f"/certificates/{certificate}"), clock().now()):
            say(f"{certificate} is not due: nothing to do.")
            return
        row = client.post(f"/certificates/{certificate}/renew", headers=once(idempotency_key), dry_run=dry_run)
        finish(client, row, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


@app.command("wait")
def wait_for(
    certificate: CertArgument,
    goal: Annotated[
        Literal["issued", "deployed", "serving"],
        typer.Option("--for", help="What to wait for; what is installed where is not known here yet."),
    ] = "issued",
    timeout: TimeoutOption = 300,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Wait until a certificate is issued and nothing is under way. Exit code 3 if that takes longer."""
    if goal != "issued":
        raise NotDeployed(f"This version deploys nothing, so nobody can say when {certificate} is {goal}.")
    with connected(config, server) as client:
        code = following.follow(client, certificate, following.issued, timeout=timeout, clock=clock())
    raise typer.Exit(code)


@app.command("cancel")
def cancel(
    what: Annotated[str, typer.Argument(metavar="CERT|JOB", help="A certificate, or the id of a job.")],
    why: Annotated[str, typer.Option("--why", help="For the audit log.")] = "stopped by hand",
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Stop the attempt under way for a certificate, or take a job out of the queue."""
    family = "jobs" if what.startswith("job_") else "certificates"
    with connected(config, server) as client:
        client.post(f"/{family}/{what}/cancel", {"why": why}, headers=once(idempotency_key), dry_run=dry_run)
    say(f"{'It would be cancelled' if dry_run else 'Cancelled'}: {what}.")


@app.command("retry")
def retry(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id, as 'jobs ls' shows it, or a unique prefix.")],
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Run a job now: one that waits, without waiting longer; one that was given up, with all its attempts."""
    with connected(config, server) as client:
        row = client.post(f"/jobs/{job}/retry", headers=once(idempotency_key), dry_run=dry_run)
        if wait and not dry_run:
            code = following.watch(client, a_job(client, row), job_over(row), timeout=timeout, clock=clock())
            raise typer.Exit(code)
    say(
        f"{'It would be' if dry_run else 'It is'} due now: {row['id']}. See how it does: holdfast jobs show {row['id']}"
    )


@app.command("revoke")
def revoke(
    certificate: CertArgument,
    reason: Annotated[Reason, typer.Option("--reason", help="What the CA is told.")],
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
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
        path, headers = f"/certificates/{row['id']}/revoke", once(idempotency_key)
        row = client.post(path, {"reason": reason}, headers=headers, dry_run=dry_run)
        if row.get("note"):
            say(row["note"])
        finish(client, row, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


@app.command("pause")
def pause(
    certificate: CertArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Do nothing about a certificate until it is resumed: it may expire."""
    with connected(config, server) as client:
        row = client.post(f"/certificates/{certificate}/pause", headers=once(idempotency_key), dry_run=dry_run)
        finish(client, row, output, wait=False, timeout=0, dry_run=dry_run)


@app.command("resume")
def resume(
    certificate: CertArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Look after a paused certificate again."""
    with connected(config, server) as client:
        row = client.post(f"/certificates/{certificate}/resume", headers=once(idempotency_key), dry_run=dry_run)
        finish(client, row, output, wait=wait and not dry_run, timeout=timeout, dry_run=dry_run)


@app.command("archive")
def archive(
    certificate: CertArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Stop keeping a certificate, for good. It is not revoked."""
    with connected(config, server) as client:
        row = client.get(f"/certificates/{certificate}")
        question = f"{row['name']} ({', '.join(row['names'])}) will not be renewed any more."
        if not dry_run and not asked_for(question, yes=yes, word=row["name"]):
            raise typer.Exit(1)
        row = client.delete(f"/certificates/{row['id']}", headers=once(idempotency_key), dry_run=dry_run)
        finish(client, row, output, wait=False, timeout=0, dry_run=dry_run)
