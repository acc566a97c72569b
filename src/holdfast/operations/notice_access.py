"""Who may see and change which notice: it belongs to whoever owns the certificate that it is about."""

from __future__ import annotations

from holdfast.core.notice import Notice
from holdfast.operations.access import Action, Forbidden, Owned, Principal, Verdict, allow
from holdfast.operations.asking import Check
from holdfast.operations.certificates import NoSuchCertificate, found_by
from holdfast.operations.issuing import Keeper
from holdfast.operations.notices import NoSuchNotice
from holdfast.store import notices
from holdfast.store.notice_lists import Filter as Filter
from holdfast.store.tx import Tx


def owned(notice: Notice) -> Owned:
    return Owned(notice.owner, notice.labels)


def on_notice(principal: Principal, action: Action, notice: str) -> Check:
    """A check for transactions about one notice. What the asker may not see is as if it were not there."""

    def check(tx: Tx) -> None:
        found = notices.get(tx, notice)
        verdict = allow(principal, action, Owned("", {}) if found is None else owned(found))
        if verdict is Verdict.FORBIDDEN:
            raise Forbidden(principal, action)
        if verdict is Verdict.HIDDEN:
            raise NoSuchNotice(notice)

    return check


def visible(principal: Principal, found: list[Notice]) -> list[Notice]:
    return [each for each in found if allow(principal, Action.SEE_NOTICES, owned(each)) is Verdict.ALLOWED]


async def subject_of(keeper: Keeper, name: str) -> str:
    """Certificates may be named as people name them; CAs and channels by their names, which are their ids."""

    def read(tx: Tx) -> str:
        try:
            return found_by(tx, name).id
        except NoSuchCertificate:
            return name

    return await keeper.db.read(read)
