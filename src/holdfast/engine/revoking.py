"""A revocation as a CA believes it: by our account, or by the key of the certificate itself."""

from __future__ import annotations

from typing import Final

from holdfast.core.certificate import Version
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.base import Issuer, RevokesByKey
from holdfast.operations.issuing import Keeper
from holdfast.pki import keys

NOT_OURS: Final = frozenset({Reason.ACCOUNT_REFUSED, Reason.ACCOUNT_GONE})


async def revoke(keeper: Keeper, issuer: Issuer, version: Version, leaf: bytes) -> None:
    """What another account ordered, as of a certificate that was taken over, is revoked by its own key, if we hold it.

    The first refusal is the one that is told: it says what is wrong with our account.
    """
    reason = version.revoke_reason or 0
    try:
        await issuer.revoke(leaf, reason)
    except Refused as why:
        if why.reason not in NOT_OURS or not isinstance(issuer, RevokesByKey):
            raise
        key = keys.from_pem(await keeper.vault.reveal(version.key_secret))
        try:
            await issuer.revoke_by_key(leaf, reason, key)
        except Refused:
            raise why from None
