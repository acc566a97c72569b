"""The keys that encrypt secrets in the store, as an operator may see them while a server runs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from pydantic import BaseModel, Field

from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Nothing
from holdfast.operations.installation import keys
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION


class KeyView(BaseModel):
    id: str
    use: str = Field(description="current, previous, or unused: in the key file, and not known to the database.")
    kind: str = Field(description="file or passphrase.")
    held: bool = Field(description="Whether the file or passphrase of the asked replica brings it.")
    secrets: int = Field(description="How many secrets are under it.")
    created_at: datetime


@operation(
    "keys.list",
    "GET /keys",
    command="key status",
    action=Action.SEE_CLUSTER,
    scope=INSTALLATION,
    example="holdfast key status",
)
async def list_keys(ctx: Context, asked: Nothing) -> list[KeyView]:
    """Show which keys encrypt the secrets in the store, and whether they are held here; never the keys themselves."""
    await ctx.read(lambda tx: None)  # authorises the asker; the keys are read beside it
    store = ctx.services.certificate_context.secret_store
    found = await keys.standing(store.db, store.settings, store.files)
    return [KeyView(**asdict(each)) for each in found]
