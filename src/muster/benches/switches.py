"""Which hosts are behind which switch, as a suite says. Pure."""

from __future__ import annotations

from muster.benches.suite import Suite
from muster.core.errors import InventoryError, UsageError
from muster.core.hostlist import fold_hosts
from muster.core.inventory import Inventory, parse_hosts
from muster.core.near import did_you_mean


def switches_of(suite: Suite) -> dict[str, tuple[str, ...]]:
    """Return the hosts behind each switch. Raises UsageError for what is no list of hosts."""
    hosts_of = {}
    for name, hosts in suite.switches.items():
        try:
            hosts_of[name] = parse_hosts(hosts).names
        except InventoryError as error:
            raise UsageError(str(error), where=f"switches.{name}", hint=error.hint) from None
    return hosts_of


def check_switches(suite: Suite, inventory: Inventory) -> None:
    """Raise UsageError for a host that is not among the bench's, or is behind two switches. A host may be
    behind none."""
    names: set[str] = set(inventory.names)
    behind: dict[str, str] = {}
    for switch, hosts in switches_of(suite).items():
        where = f"switches.{switch}"
        for host in hosts:
            if host not in names:
                hint = did_you_mean(host, names) or f"the hosts: {fold_hosts(names)[:200]}"
                raise UsageError("is not among the hosts", host=host, where=where, hint=hint)
            if host in behind:
                raise UsageError(f"is behind {behind[host]} already", host=host, where=where)
            behind[host] = switch
