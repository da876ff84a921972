"""Nodes that are namespaces, each with a host name and its own network, joined by a bridge that is cut at will."""

from __future__ import annotations

import subprocess

from tools.chaos.patience import until
from tools.chaos.process import Process
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation

_RATE = "60mbit"  # so that a broadcast takes some seconds


class Network:
    """Nodes number 0 to `size` - 1, at 10.77.0.1 and so on; they end with the scene."""

    def __init__(self, scene: Scene, size: int) -> None:
        self.size = size
        self._switch = _namespaces(scene, "switch")
        _inside(self._switch, "ip link add bridge type bridge; ip link set bridge up")
        self._hosts = [_namespaces(scene, f"node{number}") for number in range(size)]
        for number, host in enumerate(self._hosts):
            _inside(self._switch, f"ip link add p{number} type veth peer name eth0 netns {host.pid}")
            _inside(self._switch, f"ip link set p{number} master bridge; ip link set p{number} up")
            _inside(host, f"ip link set lo up; ip addr add 10.77.0.{number + 1}/24 dev eth0; ip link set eth0 up")
            _inside(host, f"tc qdisc add dev eth0 root tbf rate {_RATE} burst 256kb latency 50ms")

    def within(self, number: int) -> list[str]:
        """Returns the words of the command that runs others on a node."""
        return ["nsenter", "-t", str(self._hosts[number].pid), "-n", "-u", "--"]

    def environ(self, number: int) -> dict[str, str]:
        """Returns the variables by which the processes of a job, one on each node, know each other."""
        place = {"RANK": str(number), "WORLD_SIZE": str(self.size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        nodes = {"GROUP_RANK": str(number), "GROUP_WORLD_SIZE": str(self.size)}
        return {"MASTER_ADDR": "10.77.0.1", "DLIO_INTERFACE": "eth0"} | place | nodes

    def lose(self, number: int, percent: int) -> None:
        """Makes a node lose this many of a hundred packets that come to it, at random."""
        chain = "add table inet chaos; add chain inet chaos in { type filter hook input priority 0; }"
        _inside(self._hosts[number], f"nft '{chain}; add rule inet chaos in numgen random mod 100 < {percent} drop'")

    def cut(self, number: int) -> None:
        """Takes a node's cable out."""
        _inside(self._switch, f"ip link set p{number} down")

    def mend(self) -> None:
        """Makes the network whole."""
        for number, host in enumerate(self._hosts):
            _inside(self._switch, f"ip link set p{number} up")
            _inside(host, "nft flush ruleset")


def _namespaces(scene: Scene, name: str) -> Process:
    """Returns a process that holds namespaces."""
    holder = scene.serve(["unshare", "-n", "-u", "sh", "-c", f"hostname {name}; echo is up; exec sleep 3600"])
    if not until(lambda: "is up" in holder.said(), 30):
        raise Violation(f"{holder} does not start{holder.tail()}")
    return holder


def _inside(host: Process, commands: str) -> None:
    words = ["nsenter", "-t", str(host.pid), "-n", "sh", "-ec", commands]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{commands}: {done.stderr}")
