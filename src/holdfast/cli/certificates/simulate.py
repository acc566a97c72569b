"""`holdfast simulate`: the months to come of this very fleet, against what its CAs allow; and what if."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from holdfast.cli.calling import connected
from holdfast.cli.durations import span
from holdfast.cli.everywhere import FINDINGS, Row, chosen
from holdfast.cli.terminal import Column, as_data, emit, exact, progress, say
from holdfast.errors import Usage

app = typer.Typer()
_ADVICE = {
    "hour": "Widen the change windows, or give some of the certificates another one.",
    "week": "Give some of them a second CA, or ask this one for more: holdfast issuer budget",
    "names": "Ask for them in one certificate instead of several, or renew it less often.",
    "domain": "Take some names of this domain to another CA, or put more of them into one certificate.",
}


class NotARate(Usage):
    code = "not-a-rate"
    hint = "Orders and the time in which they are allowed again, such as 300/3h."


@app.command("simulate")
def simulate(
    months: Annotated[int, typer.Option("--months", min=1, max=36, help="How many months, this one first.")] = 12,
    issuer: Annotated[str | None, typer.Option("--issuer", help="Only this issuer.")] = None,
    lifetime: Annotated[
        str | None,
        typer.Option("--lifetime", metavar="SPAN", help="Suppose no certificate lives longer than this, such as 47d."),
    ] = None,
    certificates: Annotated[
        int, typer.Option("--certificates", metavar="N", min=0, help="Suppose so many certificates more.")
    ] = 0,
    orders: Annotated[
        str | None,
        typer.Option("--orders", metavar="N/SPAN", help="Suppose this issuer allows these orders, such as 300/3h."),
    ] = None,
) -> None:
    """Forecast the orders of your certificates, and the first month in which the limit of an issuer is exceeded."""
    query = {"months": months, "lifetime_days": None if lifetime is None else span(lifetime).total_seconds() / 86400}
    query |= _allowed(issuer, orders)
    with connected() as client:
        names = [issuer] if issuer is not None else [each["name"] for each in client.pages("/issuers", limit=500)]
        found = []
        with progress("reckoning", len(names)) as step:
            for n, name in enumerate(names):
                share = certificates // len(names) + (n < certificates % len(names))
                found.append(client.get("/forecast", issuer=name, more=share, **query))
                step(1)
    outlook = _joined(found)
    _show(outlook)
    if not outlook["fits"]:
        raise typer.Exit(FINDINGS)


def _allowed(issuer: str | None, orders: str | None) -> dict[str, Any]:
    if orders is None:
        return {}
    found = re.fullmatch(r"(\d{1,7})/(\d{1,6}[smhdw])", orders)
    if found is None or int(found[1]) == 0 or issuer is None:
        raise NotARate(
            f"{orders!r:.40} cannot be read." if issuer is not None else "--orders is about one issuer: name it."
        )
    burst = int(found[1])
    return {"orders_burst": burst, "orders_every_s": span(found[2]).total_seconds() / burst}


def _joined(found: list[Any]) -> dict[str, Any]:
    """All CAs together, month by month."""
    rows = sorted((row for each in found for row in each["months"]), key=lambda row: (row["month"], row["issuer"]))
    return {
        "at": found[0]["at"] if found else None,
        "certificates": sum(each["certificates"] for each in found),
        "fits": all(each["fits"] for each in found),
        "months": rows,
    }


def _show(outlook: dict[str, Any]) -> None:
    if chosen().output in ("jsonl", "name"):
        emit(outlook["months"], COLUMNS, name="month")
        return
    if as_data(outlook):
        return
    busy = [row for row in outlook["months"] if row["orders"]]
    emit(busy, COLUMNS, empty="Nothing is to be renewed in these months.")
    if busy:
        say(_verdict(outlook))


def _verdict(outlook: dict[str, Any]) -> str:
    total = sum(row["orders"] for row in outlook["months"])
    certificates = f"{outlook['certificates']} certificate{'s' * (outlook['certificates'] != 1)}"
    bad = next((row for row in outlook["months"] if not row["fits"]), None)
    if bad is None:
        return f"{certificates}, {total} orders: everything fits."
    problem = bad["problem"]
    where = f"{bad['month']} does not fit at {bad['issuer']}"
    return f"{certificates}, {total} orders. {where}: {_sentence(problem)}\n{_ADVICE[problem['kind']]}"


def _sentence(problem: Any) -> str:
    when = "in the hour from" if problem["kind"] == "hour" else "in the week from"
    what = f"certificates for {problem['what']:.80}" if problem["kind"] in ("domain", "names") else "orders"
    return f"{problem['needed']} {what} {when} {exact(problem['starts'])}, and {problem['allowed']} are allowed."


def _busiest(row: Row) -> str:
    return "-" if row["busiest_day"] is None else f"{row['busiest_day'][:10]} ({row['busiest_day_orders']})"


COLUMNS = [
    Column("MONTH", lambda row: row["month"]),
    Column("CA", lambda row: row["issuer"]),
    Column("ORDERS", lambda row: str(row["orders"])),
    Column("NAMES", lambda row: str(row["names"]), wide=True),
    Column("DEPLOYMENTS", lambda row: str(row["deployments"])),
    Column("BUSIEST DAY", _busiest),
    Column("BUSIEST HOUR", lambda row: str(row["busiest_hour_orders"]), wide=True),
    Column("BUDGET", lambda row: "-" if row["used_percent"] is None else f"{row['used_percent']} %"),
    Column("FITS", lambda row: "yes" if row["fits"] else "NO"),
]
