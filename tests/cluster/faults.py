"""What happens to the cluster in a round: each fault begins, lasts for a while, and is mended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.cluster.database import PatroniPair
from tests.cluster.replicas import Replica, Replicas
from tests.cluster.space import HERE


@dataclass(frozen=True, slots=True)
class Ground:
    database: PatroniPair
    replicas: Replicas
    number: int  # of the round

    @property
    def one(self) -> Replica:
        """Another replica in each round."""
        return self.replicas.all[self.number % len(self.replicas.all)]


def lasts(seconds: float) -> None:
    """A fault has a length: it is the cause, and not waited for."""
    time.sleep(seconds)


def switch_over(ground: Ground) -> None:
    """An operator moves the database to the other server."""
    ground.database.switch_over()


def kill_primary(ground: Ground) -> None:
    """The machine of the primary dies, and comes back later."""
    leader = ground.database.leader()
    ground.database.machines[leader].kill()
    ground.database.leader()
    ground.database.start_server(leader)


def partition_replica(ground: Ground) -> None:
    """A replica is reached by clients, and does not reach the database: packets are dropped."""
    for server in ground.database.machines.values():
        ground.one.machine.refuse(server.address, refused=True)
    lasts(20)
    for server in ground.database.machines.values():
        ground.one.machine.refuse(server.address, refused=False)


def cut_replica_off(ground: Ground) -> None:
    """A replica reaches nobody, and goes on for itself."""
    ground.one.machine.cut_off()
    lasts(15)
    ground.one.machine.connect_again()


def freeze_replica(ground: Ground) -> None:
    """A replica stands still for longer than its leases, and then goes on as if nothing had been."""
    ground.one.freeze(frozen=True)
    lasts(15)
    ground.one.freeze(frozen=False)


def kill_replica(ground: Ground) -> None:
    ground.one.kill()
    lasts(3)
    ground.one.start()


def partition_primary(ground: Ground) -> None:
    """The primary reaches neither etcd nor the standby nor the replicas, and is demoted."""
    leader = ground.database.machines[ground.database.leader()]
    leader.cut_off()
    lasts(30)
    leader.connect_again()


def isolate_primary(ground: Ground) -> None:
    """The primary still serves the replicas, and reaches neither its standby nor etcd: without synchronous replication,
    what it acknowledges until it is demoted is lost."""
    name = ground.database.leader()
    leader, others = (
        ground.database.machines[name],
        (ground.database.machines[ground.database.other(name)].address, HERE),
    )
    for address in others:
        leader.refuse(address, refused=True)
    lasts(30)
    for address in others:
        leader.refuse(address, refused=False)


def fill_disk(ground: Ground) -> None:
    """The disk of the primary is full for a while."""
    name = ground.database.leader()
    taken = ground.database.fill_disk(name)
    lasts(10)
    taken.unlink()


def restart_everything(ground: Ground) -> None:
    """A power cut: everything ends at once, and starts in any order."""
    for replica in ground.replicas.all:
        replica.kill()
    for machine in ground.database.machines.values():
        machine.kill()
    ground.database.stop_etcd()
    for replica in ground.replicas.all:
        replica.start()  # before there is a database: they wait for it
    ground.database.start_etcd()
    for name in ground.database.machines:
        ground.database.start_server(name)


FAULTS: Final[dict[str, Callable[[Ground], None]]] = {
    "switchover": switch_over,
    "kill-primary": kill_primary,
    "partition-replica": partition_replica,
    "freeze-replica": freeze_replica,
    "kill-replica": kill_replica,
    "partition-primary": partition_primary,
    "isolate-primary": isolate_primary,
    "cut-replica-off": cut_replica_off,
    "fill-disk": fill_disk,
    "restart-everything": restart_everything,
}
