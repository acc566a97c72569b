"""Whether a certificate can be asked for: its names, its key, its issuers. Checked before an issuance is begun."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.core.certificate import AGENT_KEY, MAX_NAMES, CertificateSpec
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.key_kind import KeyKind
from holdfast.core.kind import Trait
from holdfast.core.own_ca.acme import Identifier, permits
from holdfast.core.solver import challenge_never_fits
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.certificates.own_ca_checks import check_own_ca
from holdfast.pki import csr, names
from holdfast.store import issuers, solvers
from holdfast.store.deployments import targets
from holdfast.store.tx import Tx


class UnknownIssuer(UserError):
    status, code = 400, "unknown-issuer"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"There is no issuer named {name!r:.80}.")
        listed = ", ".join(sorted(known))
        self.hint = f"There are: {listed}." if listed else "Add one first: holdfast issuer add."


class SpecificationRefused(UserError):
    status, code = 400, "specification-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast issue --help"


def identifiers_of(texts: Sequence[str]) -> tuple[Identifier, ...]:
    """Names and addresses in canonical spelling, each once, in the order given; NameRefused names the mistake."""
    if not texts:
        raise SpecificationRefused(
            "A certificate needs at least one name.", "Name what it is for: holdfast issue www.example.com"
        )
    found = dict.fromkeys(_identifier(text.strip()) for text in texts)
    if len(found) > MAX_NAMES:
        raise SpecificationRefused(
            f"A certificate has at most {MAX_NAMES} names; these are {len(found)}.",
            "Ask for several certificates, each with some of the names.",
        )
    return tuple(found)


def _identifier(text: str) -> Identifier:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return Identifier("dns", names.dns_name(text))
    return Identifier("ip", names.ip_address(text.strip("[]")))


def check(tx: Tx, spec: CertificateSpec) -> None:
    """Raise unless every issuer of the certificate could issue it: a mistake found here costs no issuance."""
    if spec.key_kind not in set(KeyKind):
        raise SpecificationRefused(f"There is no key type {spec.key_kind!r:.40}.", f"There are: {', '.join(KeyKind)}.")
    if not spec.name or len(spec.name) > 253 or any(char.isspace() for char in spec.name):
        raise SpecificationRefused(
            "A certificate's own name has 1 to 253 characters and no spaces.", "For example: www-example-com"
        )
    if spec.csr is not None:
        _check_csr(spec, spec.csr)
    if spec.key_location == AGENT_KEY:
        _check_agent(tx, spec)
    known = {row.name: row for row in issuers.all_issuers(tx)}
    for name in spec.issuers:
        if name not in known:
            raise UnknownIssuer(name, known)
        if spec.issuers.count(name) > 1:
            raise SpecificationRefused(
                f"The issuer {name} is named twice.", "Name each issuer once, the first choice first."
            )
    few_enough(spec, [known[name] for name in spec.issuers])
    _check_targets(tx, spec)
    _check_solver(tx, spec)


def _check_solver(tx: Tx, spec: CertificateSpec) -> None:
    """A challenge that can never prove a name, and a solver that is not for it, are refused before they are used."""
    if never := challenge_never_fits(spec):
        raise SpecificationRefused(never, "Ask for another challenge: --challenge dns-01, or any")
    if spec.solver is None:
        return
    row = solvers.get(tx, spec.solver)
    if row is None:
        raise SpecificationRefused(f"There is no solver {spec.solver!r:.80}.", "See what there is: holdfast solver ls")
    if other := next((each.value for each in spec.identifiers if not permits(row.names, each)), None):
        hint = f"It is for {', '.join(row.names[:5])}. Name another solver, or add one: holdfast solver add"
        raise SpecificationRefused(f"Solver {row.name} is not for {other}.", hint)


def _check_agent(tx: Tx, spec: CertificateSpec) -> None:
    """One key for each host: a certificate whose keys stay at an agent is deployed there and nowhere else."""
    rows = targets.named(tx, spec.targets)
    agents = {str(row.settings.get("agent")) if kinds.has(row, Trait.HAS_KEYS) else "" for row in rows.values()}
    if len(agents) != 1 or "" in agents:
        why = "The keys of this certificate stay at an agent, and its targets are not all at one agent."
        raise SpecificationRefused(why, "Name targets of one agent; for another host, ask for another certificate.")
    if spec.csr is not None or spec.reuse_key:
        why = "The keys of this certificate are made by its agent, a new one for each version."
        raise SpecificationRefused(why, "Leave out --csr and --reuse-key.")


def _check_targets(tx: Tx, spec: CertificateSpec) -> None:
    """A target with an owner takes certificates of that owner; one with room for one, no second."""
    known = targets.named(tx, spec.targets)
    for name in spec.targets:
        row = known.get(name)
        if row is None:
            raise SpecificationRefused(f"There is no target {name!r:.80}.", "See what there is: holdfast target ls")
        if row.owner and row.owner != spec.owner:
            raise SpecificationRefused(
                f"Target {name} takes certificates of owner {row.owner!r:.100} only.", "Name another target."
            )
        most = kinds.deploy_limits(row.kind).certificates
        others = [each for each in targets.names_at(tx, name) if each != spec.name]
        if most is not None and len(others) >= most:
            raise SpecificationRefused(
                f"Target {name} can hold no more than {most}, and is named by {others[0]}.", "Add another target."
            )


ANY_KEY: Final[Mapping[str, bool]] = {"ed25519_allowed": True, "must_staple_allowed": True}  # the CA decides


def _check_csr(spec: CertificateSpec, pem: str) -> None:
    """A CSR says exactly what is asked for; its key stays where it is, so nothing here can use it."""
    request = csr.parse(pem.encode(), **ANY_KEY)
    asked = {each.value for each in spec.identifiers}
    if {*request.names, *request.ips} != asked:
        names = ", ".join([*request.names, *request.ips][:5])
        raise SpecificationRefused(f"The CSR is for other names: {names}.", "Give a CSR for exactly these names.")
    if spec.targets:
        why = "A certificate for a CSR cannot be deployed: its key is not here."
        raise SpecificationRefused(why, "Fetch its chain to where the key is: holdfast fetch NAME --to FOLDER")


def check_own_cas(tx: Tx, spec: CertificateSpec) -> None:
    """Raise if one of the issuers is a CA of ours that would refuse it."""
    for row in issuers.all_issuers(tx):
        if row.name in spec.issuers:
            check_own_ca(tx, spec, row)


def few_enough(spec: CertificateSpec, rows: Iterable[IssuerRow]) -> None:
    """SpecificationRefused names the first issuer that would refuse so many names."""
    for row in rows:
        most, count = kinds.limits_of(row).names_in(spec.profile), len(spec.identifiers)
        if count > most:
            raise SpecificationRefused(
                f"{row.name} puts at most {most} names into a certificate{_of_profile(spec)}; these are {count}.",
                "Ask for several certificates, or for another profile.",
            )


def _of_profile(spec: CertificateSpec) -> str:
    return f" of profile {spec.profile!r:.40}" if spec.profile else ""
