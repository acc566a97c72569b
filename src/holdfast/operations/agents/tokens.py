"""Tokens of agents: one string that lets hosts in, made and shown once. The server keeps the public half of its key."""

from __future__ import annotations

from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core import base64url
from holdfast.core.agents.agent import AgentToken
from holdfast.core.agents.token_text import SECRET_SIZE, BadToken, TokenText, decoded
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.agents.context import AgentContext
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Labels, Option, OwnerName, Page, Paged, Short, StrictFlag, from_row, paged
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki import agent_keys
from holdfast.secret import Secret
from holdfast.store import journal
from holdfast.store.agents import agents
from holdfast.store.tx import Tx

LONGEST: Final = 30 * 86400


class NoSuchAgentToken(UserError):
    status, code = 404, "no-such-agent-token"

    def __init__(self, token: str) -> None:
        super().__init__(f"There is no agent token {token!r:.60}.")
        self.hint = "See what there is: holdfast agent token ls"


class AgentTokenRefused(UserError):
    status, code = 400, "agent-token-refused"
    hint = "See: holdfast agent token create --help"


class NoAgents(UserError):
    status, code = 409, "no-agents"
    hint = "Ask a server that runs: holdfast serve"


class AgentTokenRef(Input):
    token: Annotated[str, Option(metavar="TOKEN")] = Field(max_length=100, description="The id of the agent token.")


class NewAgentToken(Input):
    name: Annotated[Short, Option(argument=True, metavar="NAME")] = Field(description="What it is for.")
    uses: int = Field(default=1, ge=1, le=100_000, description="How many hosts it lets in.")
    expires_in_s: Annotated[int, Option(flag="--expires", read="duration")] = Field(
        default=3600, gt=0, le=LONGEST, description="When it expires, such as 1h; at most 30d."
    )
    names: Annotated[list[Short], Option(flag="--agent-name")] = Field(
        default=[], max_length=20, description="A pattern that names of its agents must match, such as edge-*."
    )
    networks: Annotated[list[Short], Option(flag="--network")] = Field(
        default=[], max_length=20, description="A network that its agents come from, such as 10.0.0.0/8."
    )
    approval: StrictFlag = Field(default=False, description="A person approves each agent: holdfast agent approve")
    urls: Annotated[list[Short], Option(flag="--url")] = Field(
        default=[], max_length=5, description="Where agents reach the server; left out: acme.base_url."
    )
    system_roots: StrictFlag = Field(
        default=False, description="TLS is ended by a proxy whose certificate the roots of the hosts know."
    )
    owner: OwnerName = Field(default="", description="The owner of its agents.")
    labels: Annotated[Labels, Option(short="-l")] = Field(default={}, description="A label of its agents.")


class AgentTokenView(BaseModel):
    id: str
    name: str
    uses: int
    used: int
    names: list[str]
    networks: list[str]
    approval: bool
    owner: str
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class MadeAgentToken(AgentTokenView):
    token: str = Field(description="Shown this once: its secret is kept nowhere.")


def _shown(row: AgentToken) -> AgentTokenView:
    return from_row(AgentTokenView, row, names=list(row.names), networks=list(row.networks), labels=dict(row.labels))


def agent_context(ctx: Context) -> AgentContext:
    if ctx.services.agents is None:
        raise NoAgents("This process has no CA of its own that could sign for agents.")
    return ctx.services.agents


@operation(
    "agent_tokens.create",
    "POST /agent-tokens",
    command="agent token create",
    action=Action.MAKE_AGENT_TOKENS,
    scope=INSTALLATION,
    status=201,
    example="holdfast agent token create 'edge proxies' --uses 10 --agent-name 'edge-*'",
    not_on={Face.MCP: "Its result is a secret, and an assistant must not see one."},
)
async def create(ctx: Context, asked: NewAgentToken) -> MadeAgentToken:
    """Create an agent token: one string that lets hosts enrol. It is shown this once.

    Its secret is shown once, so an Idempotency-Key is not kept here.
    A host reads it from a file, from stdin or from HOLDFAST_AGENT_TOKEN: holdfast agent enrol --token-file FILE
    """
    context = agent_context(ctx)
    await context.signer()  # work is signed by it, and it is told with the first identity
    random = ctx.certificate_context.random
    secret, new_id = Secret(random.token(SECRET_SIZE)), random.new_id("at")
    text = TokenText(
        urls=tuple(each.rstrip("/") for each in asked.urls) or (context.policy.base_url,),
        pin=context.pin(),
        id=new_id,
        secret=secret.reveal(),
        system_roots=asked.system_roots,
    )
    _check(asked, text)
    public = base64url.encode(agent_keys.public_der(agent_keys.token_key(secret)))
    row = await ctx.write(lambda tx: _made(tx, ctx, asked, new_id, public))
    return MadeAgentToken(**_shown(row).model_dump(), token="" if ctx.dry_run else text.encoded())


def _check(asked: NewAgentToken, text: TokenText) -> None:
    try:
        decoded(text.encoded())
    except BadToken as why:
        raise AgentTokenRefused(str(why)) from None
    for each in asked.networks:
        try:
            ip_network(each)
        except ValueError:
            raise AgentTokenRefused(f"{each!r:.60} is no network, such as 10.0.0.0/8.") from None


def _made(tx: Tx, ctx: Context, asked: NewAgentToken, new_id: str, public: str) -> AgentToken:
    row = AgentToken(
        id=new_id,
        name=asked.name,
        public_key=public,
        uses=asked.uses,
        names=tuple(asked.names),
        networks=tuple(asked.networks),
        approval=asked.approval,
        owner=asked.owner,
        labels=asked.labels,
        created_by=ctx.actor,
        created_at=tx.now(),
        expires_at=tx.now() + timedelta(seconds=asked.expires_in_s),
    )
    agents.insert_token(tx, row)
    facts = {"name": row.name, "uses": row.uses, "expires": row.expires_at.isoformat(), "approval": row.approval}
    journal.audit(tx, "agent_token_created", row.id, actor=ctx.actor, **facts)
    return row


@operation(
    "agent_tokens.list",
    "GET /agent-tokens",
    command="agent token ls",
    action=Action.SEE_AGENT_TOKENS,
    scope=INSTALLATION,
)
def list_tokens(tx: Tx, ctx: Context, asked: Paged) -> Page[AgentTokenView]:
    """List agent tokens: how many hosts each let in, and when it expires. Never a token itself."""
    return paged(
        asked, lambda after, limit: agents.token_page(tx, after=after, limit=limit), lambda row: row.id, _shown
    )


@operation(
    "agent_tokens.revoke",
    "POST /agent-tokens/{token}/revoke",
    command="agent token revoke",
    action=Action.MAKE_AGENT_TOKENS,
    scope=INSTALLATION,
    destructive=True,
    keyed=False,
    done="Agent token {id} is revoked. Agents that it let in stay.",
)
def revoke(tx: Tx, ctx: Context, asked: AgentTokenRef) -> AgentTokenView:
    """Revoke an agent token: it lets no other host in. Agents that enrolled with it stay.

    Repeating it changes nothing, so an Idempotency-Key is not kept here.
    """
    row = agents.get_token(tx, asked.token)
    if row is None:
        raise NoSuchAgentToken(asked.token)
    if agents.revoke_token(tx, row.id):
        journal.audit(tx, "agent_token_revoked", row.id, actor=ctx.actor, name=row.name)
    return _shown(agents.get_token(tx, row.id) or row)
