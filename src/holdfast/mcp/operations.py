"""Two tools for everything else: find a declared operation, and call it; what can hurt is planned and confirmed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from holdfast.mcp.line import ApiLine, JsonObject, McpCaller, segment

MOST: Final = 8  # operations in one answer
Name = Annotated[str, Field(max_length=100, description="As find_operation names it, such as issuers.pause.")]
Arguments = Annotated[JsonObject, Field(description="The fields of the operation's input schema.")]


async def find_operation(
    line: McpCaller, words: Annotated[str, Field(max_length=200, description="What you want to do, in a few words.")]
) -> JsonObject:
    """Find operations that have no tool of their own, by words of their names and summaries: each with the schema of
    its input. Call one with call_operation."""
    document = await line.document()
    wanted = set(re.findall(r"\w+", words.lower()))
    scored = [(_score(wanted, name, each), name, each) for name, each in _operations(document).items()]
    best = sorted((row for row in scored if row[0]), key=lambda row: (-row[0], row[1]))[:MOST]
    return {"operations": [_shown(document, name, each) for _, name, each in best]}


def _score(wanted: set[str], name: str, operation: Mapping[str, object]) -> int:
    inside = set(re.findall(r"\w+", f"{name} {operation['summary']} {operation.get('description', '')}".lower()))
    parts = set(re.findall(r"[a-z]+", name))
    return sum(3 * (word in parts) + (word in inside) for word in _stems(wanted))


def _stems(words: set[str]) -> set[str]:
    return words | {word.rstrip("s") for word in words} | {f"{word}s" for word in words}


def _operations(document: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {
        each["operationId"]: {**each, "method": method.upper(), "path": path}
        for path, item in document["paths"].items()
        for method, each in item.items()
    }


def _shown(document: Mapping[str, Any], name: str, operation: Mapping[str, Any]) -> JsonObject:
    told = operation["x-holdfast"]
    shown = {
        "name": name,
        "summary": operation["summary"],
        "changes": told["changes"],
        "planned_first": told["destructive"],
        "input": _resolved(document, told["input"], depth=4),
    }
    return shown if not told["not_on_mcp"] else {**shown, "not_offered": told["not_on_mcp"]}


def _resolved(document: Mapping[str, Any], schema: Any, depth: int) -> Any:
    """References followed, so that a model sees the fields; not for ever."""
    if isinstance(schema, list):
        return [_resolved(document, each, depth) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name and depth:
        return _resolved(document, document["components"]["schemas"][name], depth - 1)
    return {key: _resolved(document, each, depth) for key, each in schema.items() if key != "title"}


async def call_operation(line: McpCaller, name: Name, arguments: Arguments | None = None) -> JsonObject:
    """Call an operation that find_operation named. One that can hurt is only planned: confirm carries it out."""
    from holdfast.mcp.changing import planned

    operation, given = await _operation(line, name), arguments or {}
    if operation["x-holdfast"]["destructive"] and not _tried(given):
        return await planned(line, "operation", {"operation": name, "input": given})
    once = line.new_id("call") if operation["x-holdfast"]["changes"] else None
    return {"result": await _call(line, operation, given, once=once)}


def _tried(given: Mapping[str, object]) -> bool:
    """Whether the arguments ask for a dry run. What only looks like a yes must not become a change."""
    asked = given.get("dry_run", False)
    if not isinstance(asked, bool):
        raise ToolError("dry_run is true or false.")
    return asked


async def _operation(line: ApiLine, name: str) -> JsonObject:
    known = _operations(await line.document())
    if name not in known:
        raise ToolError(f"There is no operation {name!r:.60}. Look for it with find_operation.")
    if why := known[name]["x-holdfast"]["not_on_mcp"]:
        raise ToolError(f"{name} is not offered to assistants: {why}")
    return known[name]


async def _call(
    line: ApiLine,
    operation: Mapping[str, Any],
    given: Mapping[str, object],
    *,
    once: str | None = None,
    dry_run: bool = False,
) -> object:
    places = {each["name"]: each["in"] for each in operation.get("parameters", ())}
    inside = {name: segment(str(value)) for name, value in given.items() if places.get(name) == "path"}
    missing = [name for name, where in places.items() if where == "path" and name not in inside]
    if missing:
        raise ToolError(f"{operation['operationId']} needs {missing[0]}.")
    query = {name: value for name, value in given.items() if places.get(name) == "query"}
    body = {name: value for name, value in given.items() if name not in inside and name not in query}
    if body and "requestBody" not in operation:
        raise ToolError(f"{operation['operationId']} has no field {min(body)!r:.60}.")
    headers = {"If-Match": "*"} if "if-match" in places else {}
    headers |= {"Idempotency-Key": once} if once and "idempotency-key" in places else {}
    path = operation["path"].format(**inside)
    sent = body if "requestBody" in operation else None
    dry_run = dry_run or _tried(given)
    return await line.ask(operation["method"], path, sent, headers, {**query, "dry_run": dry_run})


async def look(line: ApiLine, args: Mapping[str, Any]) -> JsonObject:
    """What a plan shows: the operation and its input; `would` is the result of a dry run, and binds the plan to it."""
    operation = await _operation(line, args["operation"])
    would = None
    if any(each["name"] == "dry_run" for each in operation.get("parameters", ())):
        would = await _call(line, operation, args["input"], dry_run=True)
    return {"operation": args["operation"], "summary": operation["summary"], "input": args["input"], "would": would}


async def do(line: ApiLine, args: Mapping[str, Any], once: str) -> Any:
    return await _call(line, await _operation(line, args["operation"]), args["input"], once=once)
