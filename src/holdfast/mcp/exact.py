"""Tools that take the arguments they have and no others: one that is dropped unseen would widen what is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import ValidationError


def exact(function: Callable[..., Any], hints: ToolAnnotations) -> Tool:
    tool = ExactTool.from_function(function, annotations=hints)
    tool.parameters["additionalProperties"] = False
    return tool


class ExactTool(Tool):
    async def run(self, arguments: dict[str, Any], *more: Any, **options: Any) -> Any:
        known = self.parameters["properties"]
        if unknown := arguments.keys() - known.keys():
            raise ToolError(f"{self.name} has no argument {min(unknown)!r:.60}. It has: {', '.join(known) or 'none'}.")
        try:
            return await super().run(arguments, *more, **options)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{self.name}: {_in_words(error.__cause__)}") from None
            raise


def _in_words(error: ValidationError) -> str:
    """Without pydantic's own addresses and repeated input."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
