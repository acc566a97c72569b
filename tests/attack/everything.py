"""All attacks there are; a module with more of them adds its table here."""

from typing import Final

from tests.attack import connections, requests
from tests.attack.attack import Attack

ATTACKS: Final[dict[str, Attack]] = {attack.name: attack for attack in (*connections.ATTACKS, *requests.ATTACKS)}
