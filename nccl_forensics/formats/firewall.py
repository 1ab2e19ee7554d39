"""Rules of a host's packet filter and policy routing: ``iptables -L -n [-v]``, ``iptables-save [-c]``, ``nft list ruleset``, ``ip
rule``."""

from __future__ import annotations

import itertools
import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, whole
from nccl_forensics.grammar.writers import WRITER

_OPENS = r"^(?:Chain [\w.-]+ \(|\*filter\s*$|table (?:inet|ip|ip6) [\w.-]+ \{|\d+:\s+(?:not )?from )"
_CHAIN = re.compile(r"^Chain ([\w.-]+) \((?:policy ([A-Z]+)(?: (\d+[KMGT]?) packets)?|\d+ references)")
_SAVED_CHAIN = re.compile(r"^:([\w.-]+) (ACCEPT|DROP|-)(?: \[(\d+):\d+\])?\s*$")
_SAVED = re.compile(r"^(?:\[(\d+):\d+\] )?-A ([\w.-]+) (.*)$")
_NFT_CHAIN = re.compile(r"^\s+chain ([\w.-]+) \{")
_NFT_HOOK = re.compile(r"^\s+type \w{1,20} hook (\w{1,20}) priority [^;]{1,40};(?: policy (\w{1,10});)?")
_NFT_VERDICTS = ("drop", "reject", "accept")
_IP_RULE = re.compile(
    r"^(\d{1,10}):\s+(?:not )?from (\S{1,80})(?: to (\S{1,80}))?(?: [a-z]+ \S{1,80}){0,6} (lookup \S{1,80}|unreachable|blackhole|prohibit)\b"
)
_PORTS = re.compile(
    r"\bdpts?:(\d{1,5})(?::(\d{1,5}))?|--dports? ([\d,:]{1,200})|\bdport (\d{1,5})(?:-(\d{1,5}))?|\bdports ([\d,:]{1,200})|\bdport \{([\d, -]{1,200})\}"
)
_SCALE = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000, "T": 1_000_000_000_000}
#: iptables writes the number of a protocol from 1.8.9 on.
_PROTOCOLS = {"0": "all", "1": "icmp", "6": "tcp", "17": "udp"}


class _Reader:
    """What the lines before have opened: a tool, a chain, a header."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.tool: str | None = None
        self.chain = ""
        self.header: list[str] = []

    def take(self, number: int, text: str, origin: Row) -> bool:
        """Whether the line belongs to a listing."""
        where: Row = {"line_no": number, **origin}
        if found := _CHAIN.match(text):
            self.tool, self.chain, self.header = "iptables", found[1], []
            if found[2]:
                self.rows.append(
                    {
                        **where,
                        "tool": "iptables",
                        "chain": found[1],
                        "kind": "policy",
                        "action": found[2].lower(),
                        "packets": _count(found[3]),
                    }
                )
            return True
        if found := _IP_RULE.match(text):
            told = {
                "tool": "ip-rule",
                "kind": "rule",
                "source": _any(found[2]),
                "destination": _any(found[3]),
                "action": found[4].split(" ")[0],
            }
            self.rows.append({**where, **told, "detail": found[4]})
            return True
        if text.startswith("*"):
            self.tool, self.chain = ("iptables-save" if text.rstrip() == "*filter" else "other-table"), ""
            return self.tool == "iptables-save"
        if re.match(r"^table (?:inet|ip|ip6) [\w.-]+ \{", text):
            self.tool, self.chain = "nft", ""
            return True
        match self.tool:
            case "iptables":
                return self._listed(text, where)
            case "iptables-save":
                return self._saved(text, where)
            case "nft":
                return self._nft(text, where)
            case _:
                return False

    def _listed(self, text: str, where: Row) -> bool:
        words = text.split()
        if not words:
            return False
        if "target" in words and "source" in words and "destination" in words:
            self.header = words
            return True
        if not self.header or len(words) < len(self.header):
            return bool(self.header) and text[:1] in (" ", "0123456789") and len(words) >= 5
        cells = dict(zip(self.header, words, strict=False))
        rest = " ".join(words[len(self.header) :])
        self._add(where, "iptables", cells.get("target", ""), cells.get("pkts"), rest, cells)
        return True

    def _saved(self, text: str, where: Row) -> bool:
        if found := _SAVED_CHAIN.match(text):
            if found[2] != "-":
                policy: Row = {"kind": "policy", "action": found[2].lower(), "packets": _count(found[3])}
                self.rows.append({**where, "tool": "iptables-save", "chain": found[1], **policy})
            return True
        if found := _SAVED.match(text):
            self.chain = found[2]
            words = found[3].split()
            option = {a: b for a, b in itertools.pairwise(words) if a.startswith("-")}
            cells = {
                "prot": option.get("-p", "all"),
                "in": option.get("-i", "*"),
                "source": option.get("-s", ""),
                "destination": option.get("-d", ""),
            }
            self._add(where, "iptables-save", option.get("-j", ""), found[1], found[3], cells)
            return True
        return text.startswith(("COMMIT", "#"))

    def _nft(self, text: str, where: Row) -> bool:
        if found := _NFT_CHAIN.match(text):
            self.chain = found[1].upper()
            return True
        if found := _NFT_HOOK.match(text):
            self.chain = found[1].upper()
            if found[2]:
                self.rows.append({**where, "tool": "nft", "chain": self.chain, "kind": "policy", "action": found[2]})
            return True
        verdict = next((word for word in text.split() if word in _NFT_VERDICTS), None)
        if self.chain and verdict is not None and not text.rstrip().endswith((";", "{")):
            said = text.strip()
            packets = re.search(r"\bcounter packets (\d+)", said)
            source = re.search(r"\bip6? saddr (\S+)", said)
            prot = re.search(r"\b(tcp|udp|icmp) ", said)
            iface = re.search(r'\biif(?:name)? "([^"]+)"', said)
            cells = {"prot": prot[1] if prot else "all", "in": iface[1] if iface else "*", "source": source[1] if source else ""}
            self._add(where, "nft", verdict, packets[1] if packets else None, said, cells)
            return True
        return text[:1] in ("\t", " ", "}")

    def _add(self, where: Row, tool: str, target: str, packets: str | None, rest: str, cells: dict[str, str]) -> None:
        low, high = _ports(rest)
        prot = cells.get("prot", "all")
        told: Row = {"tool": tool, "chain": self.chain, "kind": "rule", "action": target.lower() or None, "packets": _count(packets)}
        told |= {
            "protocol": _PROTOCOLS.get(prot, prot),
            "interface": _any(cells.get("in")),
            "port": low,
            "port_end": high,
            "detail": rest[:300] or None,
        }
        self.rows.append({**where, **told, "source": _any(cells.get("source")), "destination": _any(cells.get("destination"))})


def _count(text: str | None) -> int | None:
    """``1204``, ``123K`` of packets."""
    if not text:
        return None
    scale = _SCALE.get(text[-1])
    number = whole(text[:-1] if scale else text)
    return None if number is None else number * (scale or 1)


def _any(text: str | None) -> str | None:
    """None for what stands for any address or interface."""
    return None if text in (None, "", "*", "all", "any", "anywhere", "0.0.0.0/0", "::/0") else text


def _ports(text: str) -> tuple[int | None, int | None]:
    """First and last destination port that a rule names; None for any."""
    found = _PORTS.search(text)
    if found is None:
        return None, None
    numbers = sorted(int(n) for group in found.groups() if group for n in re.findall(r"\d+", group))
    return numbers[0], numbers[-1]


def read(text: Text) -> Reading:
    """One row per rule, and one per chain with a policy."""
    reader = _Reader()
    claimed: list[int] = []
    lines = after(text.lines, pl.col("text").str.contains(_OPENS), reach=4000)
    for number, body, *origin in lines.select("line_no", "text", *WRITER).iter_rows():
        if reader.take(number, body, {k: v for k, v in zip(WRITER, origin, strict=True) if v is not None}):
            claimed.append(number)
        elif body.strip():
            reader.tool = None if reader.tool != "other-table" else reader.tool
    return Reading(frames=filled({"firewall_rules": reader.rows}), lines=line_numbers(claimed if reader.rows else []))


FORMAT = TextFormat(
    name="firewall",
    title="iptables -L, iptables-save, nft list ruleset, ip rule",
    tables=("firewall_rules",),
    anchors=("Chain INPUT (", "Chain OUTPUT (", "Chain FORWARD (", "*filter", " hook input ", " hook output ", "from all lookup "),
    read=read,
    priority=43,
)
