"""docs/reference/access.md: who may use which operation, from the declarations of operations and the table of roles."""

from collections.abc import Callable

from holdfast.core.access import Role
from holdfast.operations import catalog
from holdfast.operations.access import EXPORT_RIGHT, MAY, Action, Owned, Principal, Verdict, allow
from holdfast.operations.operation import Operation
from holdfast.operations.scopes import INSTALLATION, VISIBLE

ABOUT = """# Access

Each operation needs an action, and a token's role has actions. A token may be confined to owners and labels: it then
sees and changes only certificates of these owners with these labels, and what belongs to them; all others are as if
they were not there. The last column says what a confined token may do if its role allows the action.

| operation | request | action | on | roles | a confined token |
|---|---|---|---|---|---|"""


def access() -> str:
    lines = [ABOUT]
    for each in catalog.declared():
        roles = ", ".join(role for role, actions in MAY.items() if each.action in actions)
        right = " (with the export right)" if each.action is Action.EXPORT else ""
        request = f"`{each.method} {each.path}`"
        lines.append(
            f"| `{each.name}` | {request} | {each.action} | {each.scope.name} | {roles}{right} | {_confined(each)} |"
        )
    return "\n".join(lines) + "\n"


def _confined(each: Operation) -> str:
    if each.scope is VISIBLE or each.scope.objects:
        return "only its own"
    role = next(role for role in MAY if each.action in MAY[role])
    if each.scope is not INSTALLATION:
        return "only for its own owners and labels"
    return "yes" if allow(_principal(role, ("mine",)), each.action) is Verdict.ALLOWED else "no"


def _principal(role: Role, owners: tuple[str, ...] = (), *, exports: bool = False) -> Principal:
    rights = frozenset({EXPORT_RIGHT}) if exports else frozenset[str]()
    return Principal(id=role, name=role, kind="human", role=role, rights=rights, owners=owners)


# ── For the reviewed table of verdicts in tests/support/verdicts.py ──

_ASKERS = (
    _principal(Role.ADMIN, exports=True),
    _principal(Role.OPERATOR),
    _principal(Role.VIEWER),
    _principal(Role.AUDITOR),
    _principal(Role.AGENT, ("mine",), exports=True),
    _principal(Role.OPERATOR, ("mine",)),
    _principal(Role.FIRST),
)


def verdicts(each: Operation) -> tuple[str, str]:
    """Letters as in that table, for an object of owner "mine" and for one of owner "theirs"."""
    if each.scope is INSTALLATION:
        return _letters(each, lambda who: None), ""
    if each.scope is VISIBLE:
        foreign = _letters(each, lambda who: Owned("theirs", {})) if each.path_fields else ""
        return _letters(each, lambda who: who.scope), foreign
    return _letters(each, lambda who: Owned("mine", {})), _letters(each, lambda who: Owned("theirs", {}))


def _letters(each: Operation, resource: Callable[[Principal], Owned | None]) -> str:
    hidden = "h" if each.scope.objects or each.scope is VISIBLE else "n"
    letters = {Verdict.ALLOWED: "y", Verdict.FORBIDDEN: "n", Verdict.HIDDEN: hidden}
    return "".join(letters[allow(who, each.action, resource(who))] for who in _ASKERS) + "n"
