"""The commands that change certificates: issue, change, renew, wait, cancel, retry, revoke, pause, resume, archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.certificates import display as shown
from holdfast.cli.certificates import options, progress
from holdfast.cli.certificates.ls import CertArgument, LabelOption
from holdfast.cli.certificates.progress import TimeoutOption, WaitOption, a_job, job_over, once
from holdfast.cli.durations import span
from holdfast.cli.everywhere import DETACHED, FAILED, IN_PROGRESS, Row, chosen
from holdfast.cli.input_files import filtered
from holdfast.cli.terminal import asked_for, duration, emit, emit_one, instant, say
from holdfast.cli.terminal import progress as bar
from holdfast.core.finding import BAD
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import Usage, UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer()
LONGEST_STAGGER: Final = timedelta(days=7)


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


@app.command("issue")
@options.with_fields("issue")
def issue(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="DNS names and addresses; the first names it. Not needed with --csr."),
    ] = None,
    *,
    staging: Annotated[
        bool, typer.Option("--staging", help="From the test endpoint of the CA: the issuer of that name with -staging.")
    ] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    **said: object,
) -> None:
    """Ask for a certificate. It is issued now and renewed from then on; one that exists already is not changed."""
    asked = options.asked(said)
    wish = {"names": names or _names_in(asked.get("csr"))} | asked
    with connected() as client:
        if staging:
            known = [each["name"] for each in client.pages("/issuers", limit=500)]
            wish["issuers"] = options.staged(wish.get("issuers", ()), known)
        finish(client, _made(client, wish), wait=wait, timeout=timeout)


class NoNames(Usage):
    code = "no-names"
    hint = "For example: holdfast issue www.example.com, or holdfast issue --csr FILE"


def _names_in(pem: str | None) -> list[str]:
    """The names that a CSR asks for."""
    if pem is None:
        raise NoNames("A certificate needs at least one name.")
    from holdfast.pki import csr

    found = csr.parse(pem.encode(), ed25519_allowed=True, must_staple_allowed=True)
    return [*found.names, *found.ips]


def _made(client: Client, wish: Row) -> Any:
    """The one that is there already, if it is the same wish: repeating a command is not a mistake."""
    try:
        return client.post("/certificates", wish, headers=once(), dry_run=chosen().dry_run)
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
    """Of a table, only the keys that were asked for are compared."""
    if isinstance(asked, Mapping):
        return any(_differs(value, found.get(name)) for name, value in asked.items())
    if isinstance(asked, list):
        return len(asked) != len(found) or any(map(_differs, asked, found))
    return bool(asked != found)


class OtherwiseThere(UserError):
    status, code = 409, "certificate-exists"

    def __init__(self, name: str, others: Sequence[str]) -> None:
        super().__init__(f"{name} is there already, with other {', '.join(others).replace('_', ' ')}; it is as it was.")
        self.hint = f"Change it: holdfast change {quote(name)} --help"


def finish(client: Client, row: Row, *, wait: bool = False, timeout: float = 0) -> None:
    """Show a certificate after it was changed; with --wait, follow its issuance first."""
    code, attempt = 0, row["operation"]
    if wait and not chosen().dry_run and attempt is not None and not attempt["done"]:
        verdict = progress.of_attempt(client, attempt["id"])
        code = progress.follow(client, row["id"], verdict, timeout=timeout, clock=clock(), known=row)
        row = client.get(f"/certificates/{row['id']}")
    now = clock().now()
    emit_one(row, text=lambda each: shown.block(each, now))
    if chosen().dry_run:
        say("Nothing was changed: this is how it would be.")
    elif attempt is not None and not wait:
        say(f"Issuance {attempt['id']} is under way. Follow it: holdfast wait {quote(row['name'])}")
    if code:
        raise typer.Exit(code)


class NothingToChange(Usage):
    code = "nothing-to-change"
    hint = "For example: --owner platform, --label team=web, --add-name api.example.com, --issuer letsencrypt"


@app.command("change")
@options.with_fields("change")
def change(
    certificate: CertArgument,
    *,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
    **said: object,
) -> None:
    """Change a certificate. Other names, issuers, key, profile, chain or lifetime: it is issued anew at once."""
    if not options.asked(said):  # values that cannot be read are refused here, before the server is asked
        raise NothingToChange("No option says what to change.")
    with connected() as client:
        row = client.get(f"/certificates/{certificate}")
        wish = options.asked(said, row)
        if wish.get("csr") and "names" not in wish:
            wish["names"] = _names_in(wish["csr"])
        headers = once() | {"If-Match": f'"{row["version"]}"'}
        made = client.patch(f"/certificates/{row['id']}", wish, headers=headers, dry_run=chosen().dry_run)
        if made["version"] == row["version"]:
            say(f"{made['name']} has these values already.")
        finish(client, made, wait=wait, timeout=timeout)


@app.command("renew")
def renew(
    certificate: Annotated[
        str | None, typer.Argument(metavar="[CERT]", help="Its name, its id, or a unique prefix of the id.")
    ] = None,
    label: LabelOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All certificates that you may see.")] = False,
    if_due: Annotated[bool, typer.Option("--if-due", help="Only certificates that are due or failing.")] = False,
    stagger: Annotated[
        str | None, typer.Option("--stagger", metavar="SPAN", help="Spread the renewals over this time, such as 6h.")
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
) -> None:
    """Renew a certificate now, whatever its schedule and its back-off say; or many, by label."""
    if (certificate is None) == (not label and not everything):
        raise NotNamed("Name one certificate, or many by --label or --all.")
    if stagger is not None and certificate is not None:
        raise NothingToSpread("--stagger spreads many certificates, and this is one.")
    over = spread_over(stagger)
    with connected() as client:
        if certificate is None:
            manner = Manner(if_due=if_due, stagger=over, wait=wait, timeout=timeout)
            raise typer.Exit(_renew_many(client, label or (), manner))
        if if_due and not _is_due(client.get(f"/certificates/{certificate}"), clock().now()):
            say(f"{certificate} is not due: nothing to do.")
            return
        row = client.post(f"/certificates/{certificate}/renew", headers=once(), dry_run=chosen().dry_run)
        finish(client, row, wait=wait, timeout=timeout)


@app.command("wait")
def wait_for(
    certificate: CertArgument,
    goal: Annotated[
        Literal["issued", "served"],
        typer.Option("--for", help="The state to wait for: issued, or served by all of its targets."),
    ] = "issued",
    timeout: TimeoutOption = 300,
) -> None:
    """Wait until a certificate is issued, or served by its targets. Exit code 3: the timeout came first."""
    verdict = progress.issued if goal == "issued" else progress.served
    with connected() as client:
        code = progress.follow(client, certificate, verdict, timeout=timeout, clock=clock(), goal=goal)
    raise typer.Exit(code)


@app.command("cancel")
def cancel(
    what: Annotated[str, typer.Argument(metavar="CERT|JOB", help="A certificate, or the id of a job.")],
    why: Annotated[str, typer.Option("--why", help="For the audit log.")] = "stopped by hand",
) -> None:
    """Cancel the issuance of a certificate, or a job."""
    family = "jobs" if what.startswith("job_") else "certificates"
    with connected() as client:
        client.post(f"/{family}/{what}/cancel", {"why": why}, headers=once(), dry_run=chosen().dry_run)
    say(f"{'It would be cancelled' if chosen().dry_run else 'Cancelled'}: {what}.")


@app.command("retry")
def retry(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id, as 'jobs ls' shows it, or a unique prefix.")],
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
) -> None:
    """Run a job now: one that waits, or a dead job, whose attempts are counted anew."""
    with connected() as client:
        row = client.post(f"/jobs/{job}/retry", headers=once(), dry_run=chosen().dry_run)
        if wait and not chosen().dry_run:
            code = progress.watch(client, a_job(client, row), job_over(row), timeout=timeout, clock=clock())
            raise typer.Exit(code)
    due = "would be due" if chosen().dry_run else "is due"
    say(f"Job {row['id']} {due} now. Look at it: holdfast jobs show {row['id']}")


@app.command("revoke")
def revoke(
    certificate: CertArgument,
    reason: Annotated[RevocationReason, typer.Option("--reason", help="The reason that the CA publishes.")],
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
) -> None:
    """Revoke the current version of a certificate. An active certificate is issued anew at once."""
    with connected() as client:
        row = client.get(f"/certificates/{certificate}")
        question = f"This revokes {row['name']} ({', '.join(row['names'])}), serial {row['serial']}."
        if not chosen().dry_run and not asked_for(question, word=row["name"]):
            raise typer.Exit(1)
        path, headers = f"/certificates/{row['id']}/revoke", once()
        row = client.post(path, {"reason": reason}, headers=headers, dry_run=chosen().dry_run)
        if row.get("note"):
            say(row["note"])
        finish(client, row, wait=wait, timeout=timeout)


@app.command("pause")
def pause(
    certificate: CertArgument,
) -> None:
    """Pause a certificate: it is not renewed until it is resumed, and may expire."""
    with connected() as client:
        row = client.post(f"/certificates/{certificate}/pause", headers=once(), dry_run=chosen().dry_run)
        finish(client, row)


@app.command("resume")
def resume(
    certificate: CertArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
) -> None:
    """Resume a paused certificate: it is renewed again when it is due."""
    with connected() as client:
        row = client.post(f"/certificates/{certificate}/resume", headers=once(), dry_run=chosen().dry_run)
        finish(client, row, wait=wait, timeout=timeout)


@app.command("archive")
def archive(
    certificate: CertArgument,
) -> None:
    """Stop renewing a certificate, for good. It is not revoked."""
    with connected() as client:
        row = client.get(f"/certificates/{certificate}")
        question = f"{row['name']} ({', '.join(row['names'])}) will not be renewed any more."
        if not chosen().dry_run and not asked_for(question, word=row["name"]):
            raise typer.Exit(1)
        row = client.delete(f"/certificates/{row['id']}", headers=once(), dry_run=chosen().dry_run)
        finish(client, row)


# ── Many at once: shown first, asked back about, then renewed one by one, each exactly once ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How many certificates are renewed at once."""

    if_due: bool
    stagger: timedelta = timedelta(0)  # they are spread over so much time
    wait: bool = False
    timeout: float = 300


def _is_due(row: Row, now: datetime) -> bool:
    """Its time has come, or its last attempt failed."""
    at = row["status"]["next_attempt_at"]
    return row["status"]["phase"] in BAD or (at is not None and instant(at) <= now)


def _renew_many(client: Client, labels: Sequence[str], manner: Manner) -> int:
    """Renew all that have these labels; the exit code. A failure of one does not keep the others from it."""
    now = clock().now()
    found = client.pages("/certificates", label=[*map(filtered, labels)], state="active", limit=500)
    due = [row for row in found if not manner.if_due or _is_due(row, now)]
    if not due:
        say("There is nothing to renew.")
        return 0
    orders = ", ".join(f"{number} at {ca}" for ca, number in _by_ca(due).items())
    over = f", spread over {duration(manner.stagger)}" if manner.stagger else ""
    question = f"This renews {len(due)} certificate{'' if len(due) == 1 else 's'}{over}: {orders}."
    if not chosen().dry_run and not asked_for(question, word="renew"):
        return FAILED
    done, problems = list[Any](), list[str]()
    try:
        _ask_for_all(client, due, manner, done, problems)
        emit(sorted(done, key=_turn) if manner.stagger else done, shown.columns(now))
        for each in problems:
            say(f"not renewed: {each}")
        would = "would be under way" if chosen().dry_run else "under way. See how they do: holdfast status"
        say(f"{len(done)} {would}{'.' if chosen().dry_run else ''}")
        waited = _wait_for_all(client, done, manner) if manner.wait and not chosen().dry_run else 0
    except KeyboardInterrupt:
        say(f"You left; the {len(done)} of {len(due)} that were asked for go on. Look again: holdfast status")
        return DETACHED
    return FAILED if problems else waited


def _ask_for_all(client: Client, due: Sequence[Row], manner: Manner, done: list[object], problems: list[str]) -> None:
    with bar("Renewing", len(due)) as step:
        for row in due:
            try:
                done.append(_one(client, row, manner))
            except UserError as why:
                problems.append(f"{row['name']}: {why} {why.hint}")
            step(1)


def _wait_for_all(client: Client, rows: Sequence[Row], manner: Manner) -> int:
    """Until each attempt is over: 0, 1 if one failed, 3 if that takes too long."""
    deadline, failed = clock().monotonic() + manner.timeout, 0
    attempts = [(row["name"], row["operation"]["id"]) for row in rows if row["operation"]]
    with bar("Issued", len(attempts)) as step:
        for name, attempt in attempts:
            while not (found := client.when_over(f"/issuances/{attempt}", deadline - clock().monotonic()))["ended_at"]:
                if clock().monotonic() >= deadline:
                    say("Some are still under way. Look again: holdfast status")
                    return IN_PROGRESS
            if found["state"] != "issued":
                failed += 1
                say(f"not renewed: {name}: {found['reason_code']} {found['error'] or ''}")
            step(1)
    return FAILED if failed else 0


def _turn(row: Row) -> str:
    return str(row["status"]["next_attempt_at"] or "")


def _one(client: Client, row: Row, manner: Manner) -> object:
    delay = _share(row["id"]) * manner.stagger.total_seconds()
    path, when = f"/certificates/{row['id']}/renew", {"delay_s": round(delay)} if manner.stagger else None
    return client.post(path, when, headers=once(row["id"]), dry_run=chosen().dry_run)


def _share(certificate: str) -> float:
    """Its share of the stagger, derived from its id, so that a repeated command asks for the same."""
    from holdfast.core.backoff import spread

    return spread(f"stagger {certificate}")


def _by_ca(rows: Sequence[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["issuers"][0]] = counts.get(row["issuers"][0], 0) + 1
    return counts
