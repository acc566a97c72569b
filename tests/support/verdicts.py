"""The table of verdicts: every route of the API, and who may use it on what."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# One letter for each role, in the order of ROLES: y allowed, n forbidden, h hidden (as if it were not there).
ROLES: Final = ("admin", "operator", "viewer", "auditor", "agent", "confined operator", "first", "nobody")
# "agent" and "confined operator" are confined to owner "mine"; `foreign` is what they get for what is another's.


class Row(NamedTuple):
    verdicts: str  # on an object of owner "mine", or on the whole installation
    foreign: str = ""  # on an object of owner "theirs"; empty: the route names no object
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    wrong: Any = None  # a body that is refused: but who may not ask at all is told that, and nothing of what is wrong


_SEE: Final = "yyyyyynn"
_SEE_FOREIGN: Final = "yyyyhhnn"
_LIST: Final = "yyyyyynn"  # filtered, never refused for whoever may see anything
_OPERATE: Final = "yynnnynn"
_OPERATE_FOREIGN: Final = "yynnnhnn"
_ADMIN: Final = "ynnnnnnn"
_CAS: Final = "yyyynnnn"  # our CAs are the installation's: who is confined to some certificates sees none of them
_SELF: Final = "yyyynynn"  # what one keeps for oneself
_FINDS: Final = "yynnnnnn"
_NOTIFICATIONS: Final = "yyyynynn"  # no agent needs to know who is told what
_ON_AGENTS: Final = ("approve", "ban", "unban", "retire", "settle", "recoveries")

TABLE: Final[dict[tuple[str, str], Row]] = {
    ("GET", "/certificates"): Row(_LIST),
    ("POST", "/certificates"): Row(_OPERATE, "yynnnnnn", {"names": ["new.example.com"], "owner": "{owner}"}),
    ("GET", "/certificates/{ref}"): Row(_SEE, _SEE_FOREIGN),
    ("PATCH", "/certificates/{ref}"): Row(_OPERATE, _OPERATE_FOREIGN, {"reuse_key": True}, (("If-Match", "*"),)),
    ("DELETE", "/certificates/{ref}"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("POST", "/certificates/{ref}/pause"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("POST", "/certificates/{ref}/resume"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("POST", "/certificates/{ref}/renew"): Row("yynnyynn", "yynnhhnn"),
    ("POST", "/certificates/{ref}/deploy"): Row("yynnyynn", "yynnhhnn", {}),
    ("POST", "/certificates/{ref}/rollback"): Row("yynnyynn", "yynnhhnn", {}),
    ("POST", "/certificates/{ref}/cancel"): Row("yynnyynn", "yynnhhnn", {"why": "a test"}),
    ("POST", "/certificates/{ref}/revoke"): Row(_OPERATE, _OPERATE_FOREIGN, {"reason": "superseded"}),
    ("GET", "/certificates/{ref}/versions"): Row(_SEE, _SEE_FOREIGN),
    ("GET", "/certificates/{ref}/explain"): Row(_SEE, _SEE_FOREIGN),
    ("GET", "/certificates/{ref}/events"): Row(_SEE, _SEE_FOREIGN),
    ("GET", "/certificates/{ref}/chain"): Row(_SEE, _SEE_FOREIGN),
    ("POST", "/certificates/{ref}/export"): Row("ynnnynnn", "ynnnhnnn", {}),  # admin and agent have the right
    ("POST", "/documents/plan"): Row("yyyynnnn", "", {"document": {"certificates": []}}),
    ("POST", "/documents/apply"): Row("yynnnnnn", "", {"document": {"certificates": []}}),
    ("GET", "/documents"): Row("yyyynnnn"),
    ("POST", "/imports/account"): Row(_ADMIN, "", {"directory": "https://ca.example.com/directory"}),
    ("POST", "/imports/certificates"): Row(_ADMIN, "", {"certificates": []}),
    ("GET", "/cas"): Row(_CAS),
    ("POST", "/cas"): Row(_ADMIN, "", {"ca": "new"}, wrong={"ca": "Not a name"}),
    ("POST", "/cas/{ca}/adopt"): Row(_ADMIN, "", {"chain": "x"}),
    ("GET", "/cas/{ca}"): Row(_CAS),
    ("PATCH", "/cas/{ca}"): Row(_ADMIN, "", {"eab_required": True}, (("If-Match", "*"),)),
    ("GET", "/cas/{ca}/chain"): Row(_CAS),
    ("GET", "/keys"): Row(_CAS),
    ("GET", "/cas/{ca}/stages"): Row(_CAS),
    ("POST", "/cas/{ca}/close"): Row(_ADMIN),
    ("POST", "/cas/{ca}/open"): Row(_ADMIN),
    ("POST", "/cas/{ca}/renew"): Row(_ADMIN, "", {}),
    ("POST", "/cas/{ca}/root-crl"): Row(_ADMIN, "", {}),
    ("GET", "/cas/{ca}/certificates"): Row(_CAS),
    ("POST", "/cas/{ca}/certificates/{serial}/revoke"): Row(_ADMIN, "", {"reason": "superseded"}),
    ("GET", "/policies"): Row(_CAS),
    ("POST", "/policies"): Row(_ADMIN, "", {"policy": "new", "names": ["*.new.example"]}),
    ("GET", "/policies/{policy}"): Row(_CAS),
    ("PATCH", "/policies/{policy}"): Row(_ADMIN, "", {"issuers": []}, (("If-Match", "*"),)),
    ("DELETE", "/policies/{policy}"): Row(_ADMIN),
    ("POST", "/policies/check"): Row(_OPERATE, "yynnnnnn", {"names": ["new.example.com"], "owner": "{owner}"}),
    ("GET", "/policies/violations"): Row(_CAS),
    ("GET", "/acme/eab-keys"): Row(_CAS),
    ("POST", "/acme/eab-keys"): Row(_ADMIN, "", {"ca": "default"}),
    ("POST", "/acme/eab-keys/{kid}/revoke"): Row(_ADMIN),
    ("GET", "/acme/accounts"): Row(_CAS),
    ("POST", "/acme/accounts/{account}/revoke"): Row(_ADMIN),
    ("GET", "/acme/orders"): Row(_CAS),
    ("GET", "/acme/pauses"): Row(_CAS),
    ("POST", "/acme/pauses"): Row(_ADMIN, "", {"account": "unknown", "name": "a.example.com"}),
    ("DELETE", "/acme/pauses/{account}/{name}"): Row(_ADMIN),
    ("POST", "/acme/blocked-keys"): Row(_ADMIN, "", {"key": "ab" * 32, "why": "a test"}),
    ("GET", "/issuances"): Row(_LIST),
    ("GET", "/issuances/{issuance}"): Row(_SEE, _SEE_FOREIGN),
    ("GET", "/jobs"): Row("yyyynnnn"),
    ("GET", "/jobs/{job}"): Row("yyyynnnn"),
    ("POST", "/jobs/{job}/retry"): Row("yynnnnnn"),
    ("POST", "/jobs/{job}/cancel"): Row("yynnnnnn", "", {"why": "a test"}),
    ("GET", "/approvals"): Row(_LIST),
    ("GET", "/approvals/{approval}"): Row(_SEE, _SEE_FOREIGN),
    ("POST", "/approvals/{approval}/approve"): Row(_OPERATE, _OPERATE_FOREIGN, {}),
    ("POST", "/approvals/{approval}/reject"): Row(_OPERATE, _OPERATE_FOREIGN, {}),
    ("GET", "/issuers"): Row("yyyyyynn"),
    ("GET", "/issuers/{name}"): Row("yyyyyynn"),
    ("POST", "/issuers"): Row(
        _ADMIN, "", {"name": "new", "kind": "test"}, wrong={"name": "new", "kind": "no-such-kind"}
    ),
    ("PATCH", "/issuers/{name}"): Row(_ADMIN, "", {"settings": {}}, (("If-Match", "*"),)),
    ("DELETE", "/issuers/{name}"): Row(_ADMIN),
    ("POST", "/issuers/{name}/pause"): Row(_ADMIN),
    ("POST", "/issuers/{name}/resume"): Row(_ADMIN),
    ("POST", "/issuers/{name}/test"): Row(_ADMIN),
    ("POST", "/issuers/{name}/account-key"): Row(_ADMIN),
    ("POST", "/issuers/{name}/new-account"): Row(_ADMIN),
    ("GET", "/issuers/{name}/budget"): Row("yyyyyynn"),
    ("GET", "/agents"): Row("yyyynynn"),
    ("GET", "/agents/{agent}"): Row("yyyynynn", "yyyynhnn"),
    **{("POST", f"/agents/{{agent}}/{verb}"): Row(_ADMIN, _ADMIN, {}) for verb in _ON_AGENTS},
    ("DELETE", "/agents/{agent}"): Row(_ADMIN, _ADMIN),
    ("GET", "/agent-tokens"): Row("ynnynnnn"),
    ("POST", "/agent-tokens"): Row(_ADMIN, "", {"name": "new"}),
    ("POST", "/agent-tokens/{token}/revoke"): Row(_ADMIN),
    ("GET", "/targets"): Row("yyyynynn"),
    ("GET", "/targets/{name}"): Row("yyyynynn"),
    ("POST", "/targets"): Row(_ADMIN, "", {"name": "new", "kind": "test"}),
    ("PATCH", "/targets/{name}"): Row(_ADMIN, "", {"rollout": "web"}, (("If-Match", "*"),)),
    ("DELETE", "/targets/{name}"): Row(_ADMIN),
    ("POST", "/targets/{name}/pause"): Row(_ADMIN),
    ("POST", "/targets/{name}/resume"): Row(_ADMIN),
    ("POST", "/targets/{name}/test"): Row(_ADMIN),
    ("GET", "/deployments"): Row("yyyyyynn"),
    ("POST", "/deployments/freeze"): Row(_ADMIN, "", {"until": "2099-01-01T00:00:00Z"}),
    ("POST", "/deployments/unfreeze"): Row(_ADMIN),
    ("GET", "/solvers"): Row("yyyyyynn"),
    ("GET", "/solvers/gaps"): Row("yyyyyynn"),
    ("GET", "/solvers/{name}"): Row("yyyyyynn"),
    ("POST", "/solvers"): Row(_ADMIN, "", {"name": "new", "kind": "http", "names": ["a.example"]}),
    ("DELETE", "/solvers/{name}"): Row(_ADMIN),
    ("PATCH", "/solvers/{name}"): Row(_ADMIN, "", {"settings": {}}, (("If-Match", "*"),)),
    ("POST", "/solvers/{name}/pause"): Row(_ADMIN),
    ("POST", "/solvers/{name}/resume"): Row(_ADMIN),
    ("POST", "/solvers/{name}/test"): Row(_ADMIN),
    ("GET", "/finds"): Row(_CAS),  # finds are the installation's: nobody owns them yet
    ("GET", "/finds/{find}"): Row(_CAS),
    ("POST", "/finds/{find}/adopt"): Row(_FINDS, "", {}),
    ("POST", "/finds/{find}/ignore"): Row(_FINDS, "", {"reason": "a printer"}),
    ("POST", "/finds/{find}/reconsider"): Row(_FINDS),
    ("POST", "/drill"): Row(_FINDS, "", {}),
    ("GET", "/discovery"): Row(_CAS),
    ("GET", "/discovery/runs"): Row(_CAS),
    ("GET", "/discovery/runs/{discovery}"): Row(_CAS),
    ("POST", "/discovery/runs/{discovery}/stop"): Row(_FINDS),
    ("POST", "/discovery/runs/{discovery}/again"): Row(_FINDS),
    ("DELETE", "/discovery/runs/{discovery}"): Row(_FINDS),
    ("POST", "/discovery/ct"): Row(_FINDS, "", {"log": "https://log.example.com"}),
    ("POST", "/discovery/ca"): Row(_FINDS, "", {"issuer": "ca"}),
    ("POST", "/discovery/host"): Row(_FINDS, "", {"host": "web-1"}),
    ("POST", "/discovery/network"): Row(_FINDS, "", {"where": ["127.0.0.1"]}),
    ("GET", "/endpoints"): Row("yyyynynn"),
    ("POST", "/endpoints"): Row(_OPERATE, "yynnnnnn", {"place": "new.example.com", "owner": "{owner}"}),
    ("GET", "/endpoints/{endpoint}"): Row("yyyynynn", "yyyynhnn"),
    ("PATCH", "/endpoints/{endpoint}"): Row(_OPERATE, _OPERATE_FOREIGN, {"samples": 2}, (("If-Match", "*"),)),
    ("DELETE", "/endpoints/{endpoint}"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("POST", "/endpoints/{endpoint}/check"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("GET", "/notifications"): Row(_NOTIFICATIONS),
    ("GET", "/notifications/summary"): Row("yyyynnnn"),
    ("GET", "/dead-letters"): Row("yyyynnnn"),
    ("GET", "/notifications/{notification}"): Row(_NOTIFICATIONS, "yyyynhnn"),
    ("POST", "/notifications/{notification}/requeue"): Row(_OPERATE, _OPERATE_FOREIGN),
    ("POST", "/notifications/{notification}/resolve"): Row(_OPERATE, _OPERATE_FOREIGN, {"note": "a test"}),
    ("POST", "/dead-letters/requeue"): Row("yynnnnnn", "", {"all": True}),
    ("POST", "/dead-letters/resolve"): Row("yynnnnnn", "", {"all": True, "note": "a test"}),
    ("GET", "/channels"): Row(_NOTIFICATIONS),
    ("GET", "/channels/{name}"): Row(_NOTIFICATIONS),
    ("POST", "/channels"): Row(_ADMIN, "", {"name": "new", "kind": "pagerduty", "credentials": {"routing_key": "x"}}),
    ("PATCH", "/channels/{name}"): Row(_ADMIN, "", {"severities": ["info"]}, (("If-Match", "*"),)),
    ("DELETE", "/channels/{name}"): Row(_ADMIN),
    ("POST", "/channels/{name}/pause"): Row(_ADMIN),
    ("POST", "/channels/{name}/resume"): Row(_ADMIN),
    ("POST", "/channels/{name}/test"): Row(_ADMIN),
    ("GET", "/events"): Row(_LIST),
    ("GET", "/events/stream"): Row(_LIST, headers=(("Last-Event-ID", "x"),)),  # refused: it would not end
    ("GET", "/audit"): Row("ynnynnnn"),
    ("GET", "/audit/export"): Row("ynnynnnn"),
    ("GET", "/audit/verify"): Row("ynnynnnn"),
    ("POST", "/audit/archive"): Row(_ADMIN, "", {"seq": 1, "hash": "0" * 64}, wrong={"seq": 0, "hash": ""}),
    ("GET", "/stats/summary"): Row(_LIST),
    ("GET", "/stats/expiry"): Row(_LIST),
    ("GET", "/stats/times"): Row(_LIST),
    ("GET", "/attention"): Row(_LIST),
    ("POST", "/attention/snooze"): Row(_SELF, "", {"what": "certificate", "name": "x", "why": "a test"}),
    ("POST", "/attention/wake"): Row(_SELF, "", {"what": "certificate", "name": "x"}),
    ("GET", "/views"): Row(_SEE),
    ("PUT", "/views/{name}"): Row(_SELF, "", {"query": "state:failing"}),
    ("DELETE", "/views/{name}"): Row(_SELF),
    ("GET", "/stats/outcomes"): Row(_LIST),
    ("GET", "/stats/issuance-rate"): Row(_LIST),
    ("GET", "/forecast"): Row("yyyynnnn"),  # of the whole fleet
    ("GET", "/cluster"): Row("yyyynnnn"),
    ("GET", "/restore"): Row("yyyynnnn"),
    ("GET", "/backups"): Row("yyyynnnn"),
    ("POST", "/backups"): Row(_ADMIN, body={}),
    ("POST", "/restore/release"): Row(_ADMIN, body={}),
    ("POST", "/cluster/replicas/{replica}/drain"): Row(_ADMIN),
    ("POST", "/cluster/replicas/{replica}/resume"): Row(_ADMIN),
    ("GET", "/self"): Row("yyyyyynn"),
    ("GET", "/tokens"): Row("ynnynnnn"),
    ("POST", "/tokens"): Row("ynnnnnyn", "", {"name": "x", "role": "admin"}),
    ("POST", "/tokens/{token}/revoke"): Row(_ADMIN),
    ("GET", "/people"): Row("ynnynnnn"),
    ("POST", "/people"): Row(_ADMIN, "", {"name": "new"}),
    ("GET", "/people/{name}"): Row("ynnynnnn"),
    ("PATCH", "/people/{name}"): Row(_ADMIN, "", {"role": "viewer"}, (("If-Match", "*"),)),
    ("DELETE", "/people/{name}"): Row(_ADMIN),
    ("POST", "/people/{name}/disable"): Row(_ADMIN),
    ("POST", "/people/{name}/enable"): Row(_ADMIN),
    ("POST", "/people/{name}/reset"): Row(_ADMIN),
    ("POST", "/people/{name}/recover"): Row(_ADMIN),  # and only on the server's machine
    ("POST", "/people/{name}/logout"): Row("yyyynynn"),  # one's own
    ("GET", "/sessions"): Row("yyyyyynn"),  # one's own
    ("POST", "/sessions/{session}/end"): Row("yyyynynn"),  # one's own
}
