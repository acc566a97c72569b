"""Reads the token of an agent: from a file, from stdin or from the environment, and never from an argument."""

from __future__ import annotations

from holdfast.core.agents.token_text import BadToken, TokenText, decoded
from holdfast.errors import Usage, UserError

VARIABLE = "HOLDFAST_AGENT_TOKEN"

__all__ = ["VARIABLE", "TokenText", "read"]


def read(text: str) -> TokenText:
    if not text.strip():
        raise Usage(f"There is no token. Give it in a file (--token-file), on stdin (-) or in {VARIABLE}.")
    try:
        return decoded(text)
    except BadToken as why:
        error = UserError(str(why))
        error.hint = "Make a new one on the server: holdfast agent token create NAME"
        raise error from None
