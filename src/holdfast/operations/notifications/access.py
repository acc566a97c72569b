"""Access to notifications: a notification belongs to the owner of the certificate that it is about."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.notifications.notification import Notification, Routing
from holdfast.errors import UserError
from holdfast.operations.access import Action, Forbidden, Owned, Principal, Verdict, allow
from holdfast.operations.certificates.refs import NoSuchCertificate, found_by
from holdfast.store.notifications import notifications
from holdfast.store.tx import Tx


class NoSuchNotification(UserError):
    status, code = 404, "no-such-notification"

    def __init__(self, notification: str) -> None:
        super().__init__(f"There is no notification {notification!r:.80}.")
        self.hint = "See what there is: holdfast notify ls"


Check = Callable[[Tx], None]  # raises the error for the principal


def owned(notification: Notification) -> Owned:
    return Owned(notification.owner, notification.labels)


def on_notification(principal: Principal, action: Action, notification: str) -> Check:
    """A check for transactions about one notification. One that the principal may not see is reported as missing."""

    def check(tx: Tx) -> None:
        found = notifications.get(tx, notification)
        verdict = allow(principal, action, Owned("", {}) if found is None else owned(found))
        if verdict is Verdict.FORBIDDEN:
            raise Forbidden(principal, action)
        if verdict is Verdict.HIDDEN:
            raise NoSuchNotification(notification)

    return check


def visible(principal: Principal, found: list[Notification]) -> list[Notification]:
    return [each for each in found if allow(principal, Action.SEE_NOTIFICATIONS, owned(each)) is Verdict.ALLOWED]


def tells(principal: Principal, routing: Routing) -> bool:
    """Whether a channel may tell of a certificate that the principal sees."""
    owned = not (principal.owners and routing.owners) or not set(principal.owners).isdisjoint(routing.owners)
    return owned and all(principal.labels.get(name, value) == value for name, value in routing.labels.items())


def is_channel_of(principal: Principal, routing: Routing) -> bool:
    """Whether a channel tells of nothing but what the principal sees."""
    owned = not principal.owners or (bool(routing.owners) and set(routing.owners) <= set(principal.owners))
    return owned and principal.labels.items() <= routing.labels.items()


def subject_of(tx: Tx, name: str) -> str:
    """The id of a subject: of a certificate by any of its names; issuers and channels have their name as id."""
    try:
        return found_by(tx, name).id
    except NoSuchCertificate:
        return name
