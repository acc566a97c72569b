"""Pure rules behind RFC 8555 §7.4 and RFC 9773 §4.2: when a certificate may begin, and when to renew it."""

from datetime import datetime, timedelta

import pytest
from tests.support.pki import NOW, an_issuer

from holdfast.pki.ari import window
from holdfast.pki.profile import Profile, validity
from holdfast.pki.refused import CsrRefused

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


def told(at: datetime) -> datetime:
    return at.replace(microsecond=0)


@pytest.mark.parametrize("life", [SECOND, 2 * SECOND, 7 * SECOND, HOUR, 9 * DAY, 90 * DAY], ids=str)
@pytest.mark.parametrize("revoked", [False, True])
def test_a_window_as_it_is_told_is_never_empty(life: timedelta, revoked: bool) -> None:
    """RFC 9773 §4.2: servers MUST NOT serve a window whose end equals or precedes its start."""
    found = window(NOW, NOW + life, revoked_at=NOW + life / 2 if revoked else None)
    assert told(found.start) < told(found.end)


def test_a_beginning_that_was_right_when_it_was_asked_for_stays_right() -> None:
    """RFC 8555 §7.4: an order is a promise, for as long as it lives."""
    later = NOW + 6 * DAY
    begins, _ = validity(Profile(), an_issuer(), later, NOW, None, asked_at=NOW)
    assert begins == NOW
    with pytest.raises(CsrRefused):
        validity(Profile(), an_issuer(), later, NOW, None)
    with pytest.raises(CsrRefused):
        validity(Profile(), an_issuer(), later, NOW - 2 * HOUR, None, asked_at=NOW)


@pytest.mark.parametrize("short", [timedelta(0), timedelta(minutes=2), timedelta(minutes=5), DAY], ids=str)
def test_a_requested_end_may_be_as_late_as_the_profile_allows(short: timedelta) -> None:
    """RFC 8555 §7.4: what was asked for is issued; how far a certificate is backdated is nobody's wish."""
    profile = Profile()
    latest = NOW + profile.max_lifetime - SECOND
    begins, ends = validity(profile, an_issuer(), NOW, None, latest - short)
    assert ends == latest - short
    assert begins == max(NOW - profile.backdate, NOW - short)
    with pytest.raises(CsrRefused):
        validity(profile, an_issuer(), NOW, None, latest + SECOND)


def test_without_a_requested_end_a_certificate_is_backdated_as_ever() -> None:
    begins, ends = validity(Profile(), an_issuer(), NOW, None, None)
    assert (begins, ends) == (NOW - Profile().backdate, begins + Profile().lifetime - SECOND)
