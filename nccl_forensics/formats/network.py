"""IP interfaces, addresses, routes, counters and probes: ip, ifconfig, ethtool, netstat -s, nstat, ping, nc, /etc/hosts."""

from __future__ import annotations

import itertools
import re

import polars as pl

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, real, whole
from nccl_forensics.values.documents import items
from nccl_forensics.values.units import is_number

_OPENS = (
    r"^\s*(?:(?:\d+: )?[\w.-]+\s+inet6? [0-9a-f]|(?:\d+: )?[\w.-]+(?:@[\w.-]+)?: (?:flags=\d+)?<[A-Z_,-]*> *mtu |<[A-Z_,-]+> mtu |[\w.-]+ +Link encap:|Settings for [\w.-]+:|NIC statistics:|Ip:$"
    r"|#kernel|driver: [a-z0-9_]+$|127\.0\.[01]\.1\s|(?:default|[0-9.]+/\d+) (?:via [0-9.]+ )?dev |(?:unreachable|blackhole|prohibit) [0-9.]+"
    r"|PING |\d+ bytes from .*icmp_seq|ping: |From .*icmp_seq|--- .* ping statistics ---|Resume: pmtu|1\?: \[LOCALHOST\]|Connection to .* port \[|nc: connect to |Ncat: )"
)
_IFACE_OF_COMMAND = re.compile(r"ethtool\s+-[a-zA-Z]+\s+([\w.-]+)")
_STANDALONE = frozenset(
    {
        "ping_reply",
        "ping_too_long",
        "ping_frag",
        "ping_unreachable",
        "ping_unknown",
        "pmtu",
        "pmtu_local",
        "nc_open",
        "nc_failed",
        "ncat_open",
        "ncat_failed",
    }
)
_WHY = (("refused", "refused"), ("timed out", "timed-out"), ("TIMEOUT", "timed-out"), ("No route", "no-route"), ("unreachable", "no-route"))
_ETHTOOL_KEYS = {"driver": "driver", "firmware-version": "firmware", "bus-info": "bus_id"}
_SPEED = re.compile(r"^(\d+)Mb/s")
_OLD_MTU = re.compile(r"MTU:(\d+)")


class _Reader:
    """Rows by table while the lines go by; what follows a heading belongs to it."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.mode: str | None = None
        self.interface: Row = {}
        self.named: str | None = None
        self.section = ""
        self.directions: list[str] = []
        self.ping: Row = {}
        #: What tracepath begins with: the MTU of the interface here.
        self.own_mtu: int | None = None

    def add(self, table: str, line: Line, **facts: object) -> Row:
        row: Row = {**line.where, **facts}
        self.rows.setdefault(table, []).append(row)
        return row

    def take(self, line: Line) -> bool:
        """Whether the line is understood where it stands."""
        if line.kind in _STANDALONE:
            return self._probe(line)
        if line.kind == "inet_oneline" and " scope " in line.text:
            self.mode, self.interface = "ip", {"name": line.get("name")}
            self._address(line)
            return True
        if line.kind and line.kind.startswith("ping_"):
            return self._ping(line)
        if self._opens(line):
            return True
        if line.text.lstrip().startswith("#kernel"):
            self.mode = "nstat"
            return True
        match self.mode:
            case "ip":
                return self._ip(line)
            case "ifconfig":
                return self._ifconfig(line)
            case "ethtool" | "ethtool-i":
                return self._ethtool(line)
            case "ethtool-S" | "netstat-s" | "nstat":
                return self._counter(line)
            case "hosts" if line.kind == "hosts":
                self.add("host_names", line, address=line.get("ip"), names=(line.get("names") or "").split())
                return True
            case "routes" if line.kind in ("route", "route_kind"):
                return self._route(line)
            case _:
                return False

    def _opens(self, line: Line) -> bool:
        get = line.get
        match line.kind:
            case "interface" | "ifconfig_new":
                self.mode = "ip" if line.kind == "interface" else "ifconfig"
                rest = (get("rest") or "").split()
                after_word = dict(itertools.pairwise(rest))
                self.interface = self.add(
                    "net_interfaces",
                    line,
                    tool="ip" if line.kind == "interface" else "ifconfig",
                    name=(get("name") or "").split("@")[0],
                    index=whole(get("index")),
                    flags=(get("flags") or "").split(",") if get("flags") else None,
                    mtu_bytes=whole(get("mtu")),
                    master=after_word.get("master"),
                    state=after_word.get("state", "").lower() or None,
                )
            case "ifconfig_old":
                self.mode = "ifconfig"
                self.interface = self.add("net_interfaces", line, tool="ifconfig", name=get("name"))
            case "ethtool_settings":
                self.mode, self.named = "ethtool", get("name")
                self.interface = self.add("net_interfaces", line, tool="ethtool", name=get("name"))
            case "ethtool_stats":
                self.mode = "ethtool-S"
            case "netstat_section":
                self.mode, self.section = "netstat-s", get("section") or ""
            case "key_value" | "count" if self.mode is None and line.text.startswith("driver: "):
                self.mode = "ethtool-i"
                self.interface = self.add(
                    "net_interfaces", line, tool="ethtool-i", name=self.named, driver=line.text.split(": ", 1)[1].strip()
                )
            case "hosts" if self.mode is None and (get("ip") or "").startswith("127."):
                self.mode = "hosts"
                self.add("host_names", line, address=get("ip"), names=(get("names") or "").split())
            case "route" | "route_kind" if self.mode is None:
                self.mode = "routes"
                return self._route(line)
            case _:
                return False
        return True

    def _ip(self, line: Line) -> bool:
        get = line.get
        match line.kind:
            case "link":
                self.interface["mac"] = get("mac")
            case "inet":
                self._address(line)
            case "stats_head":
                self.directions = [get("direction") or "", *line.text.split()[1:]]
            case _ if self.directions and line.text.replace(" ", "").strip().isdigit():
                names = self.directions[1:]
                for name, value in zip(names, line.text.split(), strict=False):
                    counter = f"{self.directions[0].lower()}_{name}"
                    self.add("net_counters", line, tool="ip-s", interface=self.interface.get("name"), counter=counter, value=whole(value))
                self.directions = []
            case "route" | "route_kind":
                return self._route(line)
            case _:
                return line.text[:1] in (" ", "\t") and bool(line.text.strip())
        return True

    def _address(self, line: Line) -> None:
        rest = (line.get("rest") or "").split()
        after_word = dict(itertools.pairwise(rest))
        prefix = whole(line.get("prefix"))
        mask = after_word.get("netmask")
        if prefix is None and mask:
            prefix = sum(bin(int(part)).count("1") for part in mask.split(".") if is_number(part))
        self.add(
            "net_addresses",
            line,
            interface=self.interface.get("name"),
            family=line.get("family"),
            address=line.get("address"),
            prefix=prefix,
            scope=after_word.get("scope"),
        )

    def _ifconfig(self, line: Line) -> bool:
        if line.kind == "inet":
            self._address(line)
            return True
        old = _OLD_MTU.search(line.text)
        if old:
            self.interface["mtu_bytes"] = int(old.group(1))
            self.interface["flags"] = [w for w in line.text.split() if w.isupper()]
        return line.text[:1] in (" ", "\t") and bool(line.text.strip())

    def _ethtool(self, line: Line) -> bool:
        key, _, value = line.text.strip().partition(":")
        value = value.strip()
        if self.mode == "ethtool-i":
            if key not in _ETHTOOL_KEYS and key not in ("version", "expansion-rom-version") and not key.startswith("supports-"):
                return False
            if key in _ETHTOOL_KEYS:
                self.interface[_ETHTOOL_KEYS[key]] = value or None
            return True
        if line.text[:1] not in (" ", "\t"):
            return False
        if key == "Speed":
            speed = _SPEED.match(value)
            self.interface["speed_mbit_s"] = int(speed.group(1)) if speed else None
        elif key == "Duplex":
            self.interface["duplex"] = value.lower() if value.lower() in ("full", "half") else None
        elif key == "Link detected":
            self.interface["link_detected"] = value.startswith("yes")
            self.interface["detail"] = value.partition("(")[2].rstrip(")") or None
        return True

    def _counter(self, line: Line) -> bool:
        get = line.get
        if line.kind == "nstat" and self.mode == "nstat":
            self.add("net_counters", line, tool="nstat", counter=get("counter"), value=whole(get("value")))
            return True
        if line.kind == "count" and self.mode == "ethtool-S":
            self.add("net_counters", line, tool="ethtool-S", interface=self.named, counter=get("counter"), value=whole(get("value")))
            return True
        if self.mode == "netstat-s" and line.text[:1] in (" ", "\t"):
            name = get("counter") if line.kind in ("count", "nstat") else "_".join((get("words") or "").lower().split()) or None
            if name and get("value") is not None:
                self.add("net_counters", line, tool="netstat-s", counter=f"{self.section}.{name}", value=whole(get("value")))
            return True
        return self.mode == "ethtool-S" and line.text[:1] in (" ", "\t") and ":" in line.text

    def _route(self, line: Line) -> bool:
        rest = (line.get("rest") or "").split()
        after_word = dict(itertools.pairwise(rest))
        self.add(
            "net_routes",
            line,
            destination=line.get("destination"),
            via=line.get("via"),
            interface=line.get("device"),
            source=after_word.get("src"),
            mtu_bytes=whole(after_word.get("mtu")),
            kind=line.get("route_kind"),
        )
        return True

    def _ping(self, line: Line) -> bool:
        get = line.get
        match line.kind:
            case "ping_start":
                self.ping = {"target": get("target"), "size_bytes": whole(get("size"))}
            case "ping_head":
                self.ping = {**self.ping, "target": get("target")}
            case "ping_statistics" if self.ping:
                counts = {"sent": whole(get("sent")), "received": whole(get("received")), "loss_percent": real(get("loss"))}
                self.ping["row"] = self.add("pings", line, tool="ping", outcome="statistics", **self._about(), **counts)
            case "ping_rtt" if isinstance(row := self.ping.get("row"), dict):
                row["rtt_ms"] = real(get("average"))
            case _:
                return False
        return True

    def _about(self) -> Row:
        return {k: v for k, v in self.ping.items() if k != "row"}

    def _probe(self, line: Line) -> bool:
        get, about = line.get, self._about()
        match line.kind:
            case "ping_reply":
                size = whole(get("size"))
                payload = size - 8 if size is not None else None
                self.add("pings", line, tool="ping", outcome="reply", target=get("target"), size_bytes=payload, rtt_ms=real(get("ms")))
            case "ping_too_long":
                self.add("pings", line, tool="ping", outcome="too-long", **about, mtu_bytes=whole(get("mtu")))
            case "ping_frag":
                self.add("pings", line, tool="ping", outcome="frag-needed", **about, reporter=get("reporter"), mtu_bytes=whole(get("mtu")))
            case "ping_unreachable":
                self.add("pings", line, tool="ping", outcome="unreachable", **about, reporter=get("reporter"))
            case "ping_unknown":
                self.add("pings", line, tool="ping", outcome="unknown-host", target=get("target"))
            case "pmtu_local":
                self.own_mtu = whole(get("mtu"))
            case "pmtu":
                size = self.own_mtu - 28 if self.own_mtu is not None else None
                self.add("pings", line, tool="tracepath", outcome="pmtu", size_bytes=size, mtu_bytes=whole(get("mtu")))
                self.own_mtu = None
            case "nc_open":
                self.add("port_probes", line, target=get("host"), port=whole(get("port")), outcome="open")
            case "nc_failed" | "ncat_failed":
                said = get("why") or get("ncat_why") or ""
                outcome = next((o for word, o in _WHY if word in said), "unknown-host")
                self.add("port_probes", line, target=get("host"), port=whole(get("port")), outcome=outcome, message=said)
            case "ncat_open":
                host, _, port = (get("endpoint") or "").rstrip(".").rpartition(":")
                self.add("port_probes", line, target=host, port=whole(port), outcome="open")
            case _:
                return False
        return True


def read(text: Text) -> Reading:
    """Everything understood, by table."""
    reader = _Reader()
    claimed: list[int] = []
    opens = pl.col("text").str.contains(_OPENS)
    for line in classify(after(text.lines, opens | pl.col("text").str.contains("ethtool ", literal=True), reach=800), "net", strip=True):
        command = _IFACE_OF_COMMAND.search(line.text)
        if command:
            reader.named, reader.mode = command.group(1), None
        elif reader.take(line):
            claimed.append(line.number)
        elif line.text.strip():
            reader.mode = None
            if reader.take(line):
                claimed.append(line.number)
    for row in reader.rows.get("net_interfaces", ()):
        # "ip -o" lines look as if a launcher had tagged them with the interface's name.
        if not row.get("name") and row.get("hint_host"):
            row["name"] = row.pop("hint_host")
    return Reading(frames=filled(dict(sorted(reader.rows.items()))), lines=line_numbers(claimed))


def _sniff_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"ifindex"' in head and b'"mtu"' in head and b'"operstate"' in head


@of_json("unreadable")
def _read_json(document: object) -> Reading:
    """``ip -j link`` and ``ip -j addr``."""
    interfaces: list[Row] = []
    addresses: list[Row] = []
    for i, link in enumerate(items(document)):
        if not isinstance(link, dict) or "ifname" not in link:
            continue
        interfaces.append(
            {
                "record": f"[{i}]",
                "tool": "ip-json",
                "name": link.get("ifname"),
                "index": link.get("ifindex"),
                "flags": link.get("flags"),
                "mtu_bytes": link.get("mtu"),
                "master": link.get("master"),
                "state": str(link.get("operstate", "")).lower() or None,
                "mac": link.get("address"),
            }
        )
        for j, own in enumerate(link.get("addr_info") or []):
            addresses.append(
                {
                    "record": f"[{i}].addr_info[{j}]",
                    "interface": link.get("ifname"),
                    "family": own.get("family"),
                    "address": own.get("local"),
                    "prefix": own.get("prefixlen"),
                    "scope": own.get("scope"),
                }
            )
    found = {"net_interfaces": interfaces, "net_addresses": addresses}
    return Reading(frames=filled(found), records=len(interfaces) + len(addresses))


_TABLES = ("net_interfaces", "net_addresses", "net_routes", "net_counters", "pings", "port_probes", "host_names")
FORMATS = (
    TextFormat(
        name="network",
        title="ip, ifconfig, ethtool, netstat -s, nstat, ping, nc, /etc/hosts",
        tables=_TABLES,
        anchors=(
            "> mtu ",
            ">  mtu ",
            "Link encap:",
            "Settings for ",
            "NIC statistics:",
            "Tcp:",
            "#kernel",
            "bus-info: ",
            "127.0.0.1",
            "127.0.1.1",
            " dev ",
            " scope global",
            "bytes of data.",
            "icmp_seq=",
            "packets transmitted, ",
            "ping: ",
            "Resume: pmtu",
            "[LOCALHOST]",
            "nc: connect to ",
            " port [",
            "Ncat: ",
        ),
        read=read,
        priority=45,
    ),
    DocumentFormat(
        name="ip-json",
        title="ip link, ip addr (JSON, -j)",
        tables=("net_interfaces", "net_addresses"),
        sniff=_sniff_json,
        read=_read_json,
        priority=40,
    ),
)
