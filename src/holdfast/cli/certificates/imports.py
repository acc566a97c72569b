"""`holdfast import`: take over what certbot, acme.sh or lego keep, or loose PEM files, without issuing anything."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.everywhere import DETACHED, FAILED, FINDINGS, Row, chosen
from holdfast.cli.input_files import content
from holdfast.cli.input_files import label as label_of
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import as_data, exact, instant, progress, say, table
from holdfast.errors import UserError

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.importing.found import FoundAccount, FoundCertificate, FoundInFolder

app = typer.Typer(name="import", help="Adopt certificates, keys and accounts of another client; nothing is issued.")
_BATCH: Final = 50  # certificates in one request
Tool = Literal["certbot", "acme.sh", "lego", "pem"]
PlanOption = Annotated[bool, typer.Option("--plan", help="Only show what would be adopted; exit code 10 if anything.")]
OwnerOption = Annotated[str, typer.Option("--owner", help="The owner of the certificates.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="A label for all; may be repeated.")
]
RootsOption = Annotated[
    Path | None, typer.Option("--roots", help="PEM: trusted roots of a CA that this system does not trust.")
]
UsedInOption = Annotated[
    Path, typer.Option("--used-in", metavar="FOLDER", help="Where daemons are configured; it is read, not changed.")
]
_ETC: Final = Path("/etc")


@app.command("certbot")
def certbot(
    path: Annotated[Path, typer.Argument(help="certbot's configuration folder.")] = Path("/etc/letsencrypt"),
    plan: PlanOption = False,
    owner: OwnerOption = "",
    label: LabelOption = None,
    roots: RootsOption = None,
    used_in: UsedInOption = _ETC,
) -> None:
    """Adopt what certbot renews: everything in renewal/, with the accounts."""
    from holdfast.importing import certbot
    from holdfast.world import LocalTree

    found = _read(lambda now: certbot.read(LocalTree(path.expanduser()), now))
    _Import("certbot", plan, owner, label, roots, None).carry_out(found, used_in)


@app.command("acme.sh")
def acme_sh(
    path: Annotated[Path, typer.Argument(help="acme.sh's home.")] = Path("~/.acme.sh"),
    plan: PlanOption = False,
    owner: OwnerOption = "",
    label: LabelOption = None,
    roots: RootsOption = None,
    used_in: UsedInOption = _ETC,
) -> None:
    """Adopt what acme.sh renews, with the accounts."""
    from holdfast.importing import acme_sh
    from holdfast.world import LocalTree

    found = _read(lambda now: acme_sh.read(LocalTree(path.expanduser()), now))
    _Import("acme.sh", plan, owner, label, roots, None).carry_out(found, used_in)


@app.command("lego")
def lego(
    path: Annotated[Path, typer.Argument(help="lego's folder, the one of its --path.")] = Path(".lego"),
    directory: Annotated[
        str | None, typer.Option("--directory", help="The ACME directory of the CA, if it is not a well-known CA.")
    ] = None,
    plan: PlanOption = False,
    owner: OwnerOption = "",
    label: LabelOption = None,
    roots: RootsOption = None,
    used_in: UsedInOption = _ETC,
) -> None:
    """Adopt the certificates of lego, with the accounts."""
    from holdfast.importing import lego
    from holdfast.operations import kinds
    from holdfast.world import LocalTree

    tree = LocalTree(path.expanduser())
    known = [str(each.settings["directory"]) for each in kinds.presets().values() if "directory" in each.settings]
    found = _read(lambda now: lego.read(tree, now, directory=directory, known=known))
    _Import("lego", plan, owner, label, roots, None).carry_out(found, used_in)


@app.command("pem")
def pem(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders, or files with certificates and keys.")],
    issuer: Annotated[str | None, typer.Option("--issuer", help="The issuer that will renew them.")] = None,
    plan: PlanOption = False,
    owner: OwnerOption = "",
    label: LabelOption = None,
    used_in: UsedInOption = _ETC,
) -> None:
    """Adopt loose PEM files: certificates and keys find each other, chains are put together."""
    from holdfast.importing import pem
    from holdfast.world import LocalTree

    folders = [each for each in paths if _is_folder(each)]
    files = [each.resolve() for each in paths if each not in folders]
    sources: list[pem.PemSource] = [(LocalTree(each), None) for each in folders]
    sources += [(LocalTree(each.parent), [each.name]) for each in files]
    found = _read(lambda now: pem.read(sources, now))
    _Import("pem", plan, owner, label, None, issuer).carry_out(found, used_in)


def _is_folder(path: Path) -> bool:
    from holdfast.ports import Unreadable
    from holdfast.world import LocalTree

    try:
        return LocalTree(path).names("") is not None
    except Unreadable:
        return True  # reading it says what is wrong


def _read(reader: Callable[[datetime], FoundInFolder]) -> FoundInFolder:
    from holdfast.importing.found import ImportTrouble
    from holdfast.world import SystemClock

    try:
        return reader(SystemClock().now())
    except ImportTrouble as trouble:
        raise Unusable(trouble.problem.file, trouble.problem.problem, trouble.problem.next_step) from None


class Unusable(UserError):
    code = "import-refused"

    def __init__(self, file: str, problem: str, next_step: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.hint = next_step


class _Import:
    """One import: what it adopts into, and how it tells."""

    def __init__(
        self,
        tool: Tool,
        plan: bool,
        owner: str,
        label: Sequence[str] | None,
        roots: Path | None,
        issuer: str | None,
    ) -> None:
        self._tool, self._plan = tool, plan
        self._roots = "" if roots is None else _roots(roots)
        self._wishes = {"issuer": issuer, "owner": owner, "labels": dict(map(label_of, label or ()))}

    def carry_out(self, found: FoundInFolder, used_in: Path) -> None:
        outcomes = self._certificates(found.certificates, dry_run=True)
        wanted = [each for each in found.certificates if outcomes[each.name]["verdict"] == "adopt"]
        accounts = self._accounts(wanted)
        if not self._plan:
            outcomes |= self._certificates(wanted, dry_run=False)
        report = {
            "certificates": [_told(each, outcomes[each.name]) for each in found.certificates],
            "accounts": accounts,
            "problems": [
                {"file": each.file, "problem": each.problem, "next_step": each.next_step} for each in found.problems
            ]
            + [_refused(each, outcomes[each.name]) for each in found.certificates if _is_refused(outcomes[each.name])],
            "notes": [*found.notes, *_notes(found.certificates), *self._unproved(found.certificates)],
            "meanwhile": _meanwhile(),
            "old_timer": _timer(self._tool),
        }
        report["renewed_by_nobody"] = by_nobody(report)
        here = [each for each in found.certificates if not _is_refused(outcomes[each.name])]
        report |= (
            _uses(here, used_in) if chosen().server is None else {"uses": [], "to_deploy": [], "not_looked_at": []}
        )
        _show(report, planned=self._plan)
        raise typer.Exit(self._exit_code(report))

    def _exit_code(self, report: Row) -> int:
        if self._plan and any(each["verdict"] == "adopt" for each in report["certificates"]):
            return FINDINGS
        return FAILED if report["problems"] else 0

    def _unproved(self, found: Sequence[FoundCertificate]) -> list[str]:
        here = chosen().server is None
        with connected(offline=True) as client:
            kept = client.maybe("/solvers")
        return unproved(found, [*(kept or ()), *solvers_of(settings().keeping.solvers_file)] if here else kept)

    # ── Asking ──

    def _certificates(self, found: Sequence[FoundCertificate], *, dry_run: bool) -> dict[str, Any]:
        outcomes: dict[str, Any] = {}
        try:
            with progress("Planning" if dry_run else "Adopting", len(found)) as step:
                for at in range(0, len(found), _BATCH):
                    offered = [_offer(each) for each in found[at : at + _BATCH]]
                    answer = self._ask(
                        "/imports/certificates", {"certificates": offered, **self._wishes}, dry_run=dry_run
                    )
                    outcomes |= {each["name"]: each for each in answer}
                    step(len(offered))
        except KeyboardInterrupt:
            say(_left(0 if dry_run else len(outcomes), len(found)))
            raise typer.Exit(DETACHED) from None
        return outcomes

    def _accounts(self, found: Sequence[FoundCertificate]) -> list[dict[str, object]]:
        """The CA of each directory; of several accounts there, the one that most certificates came from."""
        told = []
        for directory in dict.fromkeys(each.directory for each in found if each.directory is not None):
            used = [each.account for each in found if each.directory == directory and each.account is not None]
            account = max(used, key=used.count, default=None)
            answer = self._ask("/imports/account", self._account_offer(directory, account), dry_run=self._plan)
            others = _left_out([each for each in found if each.directory == directory], account)
            told.append({**answer, "url": None if account is None else account.url, "others": others})
        return told

    def _account_offer(self, directory: str, account: FoundAccount | None) -> dict[str, object]:
        offer: dict[str, Any] = {"directory": directory, "roots": self._roots}
        if account is not None:
            offer |= {"key": account.key.reveal().decode(), "url": account.url, "contacts": list(account.contacts)}
        return offer

    def _ask(self, path: str, body: dict[str, Any], *, dry_run: bool) -> Any:
        with connected(offline=True) as client:
            return client.post(path, body, dry_run=dry_run)


def _left(done: int, total: int) -> str:
    if not done:
        return "You left; nothing was changed. Look first: the same command with --plan"
    return f"You left; {done} of {total} were adopted. The same command goes on: none is adopted twice."


def _offer(found: FoundCertificate) -> dict[str, object]:
    """For the socket in the data folder, which only its owner may open, or for a server elsewhere that is trusted."""
    return {
        "name": found.name,
        "names": list(found.names),
        "chain": found.chain.decode(),
        "key": found.key.reveal().decode(),
        "key_kind": found.key_kind,
        "directory": found.directory,
        "account_url": None if found.account is None else found.account.url,
        "reuse_key": found.reuse_key,
        "preferred_chain": found.preferred_chain,
        "profile": found.profile,
        "challenge": "dns-01" if found.proved_by.startswith("dns-01") else "any",
        "paused": found.paused,
        "renew_before_s": None if found.renew_before is None else found.renew_before.total_seconds(),
    }


def _roots(file: Path) -> str:
    from holdfast.pki.chain import MAX_BUNDLE, parse_bundle

    given = content(file, MAX_BUNDLE)
    parse_bundle(given)
    return given.decode()


# ── Telling ──


def _told(found: FoundCertificate, outcome: Row) -> dict[str, object]:
    return {
        "name": found.name,
        "names": list(found.names),
        "issuer": outcome["issuer"],
        "key": found.key_kind,
        "serial": found.serial,
        "expires_at": found.not_after.isoformat(),
        "renewal_at": outcome["renewal_at"],
        "verdict": outcome["verdict"],
        "file": found.file,
        "proved_by": found.proved_by,
    }


def _is_refused(outcome: Row) -> bool:
    return bool(outcome["verdict"] == "refused")


def _refused(found: FoundCertificate, outcome: Row) -> dict[str, str]:
    return {"file": found.file, "problem": outcome["why"], "next_step": outcome["next_step"]}


def _notes(found: Iterable[FoundCertificate]) -> list[str]:
    return [f"{each.name}: {note}." for each in found for note in each.notes]


def _uses(found: Sequence[FoundCertificate], folder: Path) -> Row:
    """Where they are used on this machine, and what to type so that they are deployed there."""
    from holdfast.importing import proposals, uses
    from holdfast.world import LocalTree

    of, notes = uses.read(LocalTree(folder.absolute()))
    used = proposals.used(found, of)
    told = [
        {"certificate": each.name, "daemon": use.daemon.preset, "file": use.file, "path": use.certificate,
         "key_path": use.key, "endpoints": use.endpoints(each)}
        for each, by in used for use in by
    ]  # fmt: skip
    return {
        "uses": told,
        "to_deploy": proposals.commands(used, f"{folder.absolute()}/holdfast/live"),
        "not_looked_at": notes,
    }


def _meanwhile() -> list[str]:
    from holdfast.importing.found import MEANWHILE

    return list(MEANWHILE)


def _timer(tool: Tool) -> list[str]:
    from holdfast.importing.found import STEPS

    return list(STEPS[tool])


def _show(report: Row, *, planned: bool) -> None:
    if as_data(report):
        return
    rows = [
        {
            "name": each["name"],
            "names": len(each["names"]),
            "CA": each["issuer"] or "-",
            "key": each["key"],
            "expires": exact(each["expires_at"]),
            "next renewal": _renewal(each, planned=planned),
            "proved by": each["proved_by"] or "-",
            "": each["verdict"],
        }
        for each in report["certificates"]
    ]
    print(table(rows) if rows else "There is nothing to adopt.")
    for each in report["accounts"]:
        say(_account_line(each, planned=planned))
    for note in report["notes"]:
        say(f"note: {note}")
    for each in report["problems"]:
        say(f"not adopted: {each['file']}: {each['problem']}\n  next: {each['next_step']}")
    _show_end(report, planned=planned)


def _renewal(told: Row, *, planned: bool) -> str:
    """Before it is here, only the day is near the truth: the moment is spread by an id that it does not have yet."""
    if told["renewal_at"] is None:
        return "-"
    if instant(told["renewal_at"]) <= clock().now():
        return "at once"
    at = exact(told["renewal_at"])
    return f"about {at.partition('T')[0]}" if planned and told["verdict"] == "adopt" else at


def _account_line(account: Row, *, planned: bool) -> str:
    would = "would be " if planned else ""
    ca = f"CA {account['issuer']} ({account['directory']})" + (f" {would}added" if account["added"] else "")
    if account["account"]:
        known = account["url"] or "looked up by its key when first used"
        return f"{ca}; its account {would}adopted: {known}" + _others(account)
    return f"{ca}; no account {would}adopted: {'the one here is kept' if account['url'] else 'none was found'}"


def _left_out(found: Iterable[FoundCertificate], account: FoundAccount | None) -> list[dict[str, object]]:
    """The other accounts, each with the certificates that came by it."""
    names: dict[str, list[str]] = {}
    for each in found:
        if each.account is not None and each.account != account:
            names.setdefault(each.account.file, []).append(each.name)
    return [{"file": file, "certificates": of} for file, of in sorted(names.items())]


def _others(account: Row) -> str:
    told = [f"{each['file']}, of {_some(each['certificates'])}" for each in account["others"]]
    return f"; left out: {'; '.join(told)}: the adopted one renews them" if told else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _show_end(report: Row, *, planned: bool) -> None:
    count = sum(each["verdict"] in ("adopt", "adopted") for each in report["certificates"])
    if planned:
        say(f"\nDry run: {count} would be adopted. To do it, leave --plan out.")
    elif count:
        say(f"\n{count} adopted; nothing was issued, and the files are as they were. See them: holdfast ls")
    if count:
        for line in (*_use_lines(report), "", *report["meanwhile"], "", *report["renewed_by_nobody"]):
            say(line)
        say("When that is arranged, switch off what renewed them until now:")
        for line in report["old_timer"]:
            say(f"  {line}")
        say("To undo it: holdfast archive NAME, and switch the timer on again.")


def _use_lines(report: Row) -> list[str]:
    """Nothing, if no daemon was found to use them."""
    lines = [f"note: {each}" for each in report["not_looked_at"]]
    if report["uses"]:
        lines += ["", "Where they are used:"]
        lines += [
            f"  {each['certificate']}: {each['daemon']}, {each['path']} in {each['file']}" for each in report["uses"]
        ]
        lines += ["To let Holdfast deploy there, allow it in the file of deployment.local_file, and type:"]
        lines += [f"  {each}" for each in report["to_deploy"]]
        lines += ["Then let the daemon read fullchain.pem and privkey.pem in NAME/current of that folder."]
    return lines


# ── What the user must know besides: names that cannot be validated here, certificates that were not adopted ──


MOST: Final = 1_000_000
_WHERE: Final = "holdfast solver add --help"


def unproved(found: Sequence[FoundCertificate], solvers: Sequence[Row] | None) -> list[str]:
    """Those that were proved by DNS, and here could not be. `solvers`: None, if they are another machine's to know."""
    return [_words(each, solvers) for each in found if not _proved(each, solvers)]


def _proved(found: FoundCertificate, solvers: Sequence[Row] | None) -> bool:
    from holdfast.core.own_ca.acme import Identifier, permits

    wildcards = [each for each in found.names if each.startswith("*.")]
    wanted = found.names if found.proved_by.startswith("dns-01") else wildcards
    patterns = [name for each in solvers or () if str(each.get("kind")).startswith("dns-") for name in _names(each)]
    return all(permits(patterns, Identifier("dns", each)) for each in wanted)


def _names(solver: Row) -> list[str]:
    names = solver.get("names")
    return [str(each) for each in names] if isinstance(names, list) else []


def _words(found: FoundCertificate, solvers: Sequence[Row] | None) -> str:
    how = found.proved_by or "a wildcard needs dns-01"
    if solvers is None:
        return f"{found.name}: {how}: see that the server has a DNS solver for it, or its renewal fails ({_WHERE})."
    return f"{found.name}: {how}, and no DNS solver is set up here for it: its renewal fails until one is ({_WHERE})."


def solvers_of(file: Path | None) -> list[Row]:
    """The tables of keeping.solvers_file, as far as they can be read: the server says what is wrong with them."""
    if file is None:
        return []
    try:
        tables = tomllib.loads(content(file, MOST).decode()).get("solver", [])
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return []
    return [each for each in tables if isinstance(each, dict)] if isinstance(tables, list) else []


def by_nobody(report: Row) -> list[str]:
    """A warning about certificates that were not adopted: without the old timer, they are not renewed."""
    count = len(report["problems"])
    if not count:
        return []
    files = [str(each["file"]) for each in report["problems"]]
    shown = ", ".join(files[:5]) + (f" and {count - 5} more" if count > 5 else "")
    return [f"Careful: {count} not adopted ({shown}). Once the old timer is off, nothing renews {_these(count)}."]


def _these(count: int) -> str:
    return "it" if count == 1 else "them"
