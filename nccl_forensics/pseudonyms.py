"""Names of hosts, users, jobs, models, addresses, devices and paths replaced by others, the same ones for the same names.

What is known to be a name (from typed columns) is replaced wherever it stands as a word; addresses, URLs, absolute paths and files of code
are told by their form. Names that identify nobody stay: folders of a system, sources of PyTorch and Python, words of the field such as
``rank`` or ``nccl``, loopback addresses. A text without any of these is given back as it is.

Known names get their numbers in their natural order, so that the same names give the same pseudonyms; what turns up later is numbered as it
comes.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from nccl_forensics.values.hostlist import expand
from nccl_forensics.words import natural

Kind = Literal["host", "user", "domain", "path", "namespace", "name"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words that identify nobody: a folder, file, host or user that consists of them keeps its name.
_WORDS = _words(
    # folders of a system
    """usr lib libx bin sbin local opt etc var log logs tmp dev shm proc sys class home users root mnt media data scratch run srv src share
    include libexec kernel debug boot spool cache conf config modules devices pci drivers infiniband ports counters hw net block cgroup
    memory cpu fd task status environ limits self thread maps smaps
    nvidia cuda nccl rdma mellanox ofed hpcx openmpi mpi ucx aws efa amazon rocm rccl
    python site packages dist torch torchvision torchrun distributed elastic multiprocessing deepspeed megatron lightning transformers
    accelerate conda miniconda anaconda venv env envs workspace work app code project repo build release x86 linux gnu
    """
    # what evidence is called
    """rank ranks node nodes host hosts hostname gpu gpus worker workers job jobs step steps epoch iter attempt attempts run runs restart
    local global world group fr flight recorder dump dumps trace traces stack stacks py spy pyspy gdb bt faulthandler pystack journal dmesg
    syslog messages stdout stderr out err output error errors report reports result results evidence incident incidents case
    nccl debug info warn topo topology graph ras inspector tuner profiler kineto nsys nsight perf perftest ib ibstat ibstatus ibdiagnet smi
    dcgm dcgmi lspci lstopo ip ethtool ss netstat tcpdump pcap capture sar vmstat iostat top ps df free ulimit env environment
    slurm slurmd srun sbatch squeue sacct scontrol sinfo kubectl kube pod pods events describe collect manifest baseline before after good
    bad healthy bandwidth iperf bw lat test tests all reduce allreduce gather allgather scatter broadcast alltoall sendrecv reducescatter
    train training trainer main pretrain finetune eval launch launcher start script scripts bench benchmark model data loader dataset
    checkpoint checkpoints ckpt ckpts master primary leader login head compute controller server client localhost loopback container docker
    the of and to in on for is not no none null unknown true false default auto user admin system service batch interactive
    """
)
#: Accounts that come with systems and services.
_ACCOUNTS = _words(
    """root nobody daemon bin sys slurm munge sshd systemd messagebus ubuntu centos debian rocky fedora admin user users operator adm mail
    ec2-user azureuser opc nvidia docker kube kubelet postfix polkitd chrony ntp syslog dbus test guest me default
    """
)
_EXTENSIONS = _words(
    """log txt out err json jsonl yaml yml toml csv py sh c cc cpp cu h hpp so gz zst xz bz2 tar tgz zip pickle pkl pt bin sqlite db html md
    xml pcap pcapng nsys-rep qdrep qdstrm service conf cfg ini parquet arrow prof dot rst pyc ipynb"""
)
#: Sites whose pages anybody may read: links to them stay.
_PUBLIC = ("pytorch.org", "nvidia.com", "kernel.org", "python.org", "oasis-open.org", "schemas.microsoft.com", "json-schema.org")
#: Ends of domain names that are not taken for a file's extension or a module.
_ENDS = "com|net|org|edu|gov|mil|local|localdomain|internal|lan|corp|intra|private|cluster"
#: Folders below which everybody has the same files.
_LIBRARIES = ("site-packages", "dist-packages")

_URL = r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s\"'<>\\]+"
_MAIL = r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}"
_MAC = r"(?<![0-9A-Fa-f:.-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5,19}(?![0-9A-Fa-f:-])"
_UUID = r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])"
_SIX = r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4})(?![\w:])"
_FOUR = r"(?<![0-9A-Za-z.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9])"
_PATH = r"(?<![A-Za-z0-9_/.<])/(?!/)[\w.+@%=:,~/{}#-]+"
_CODE = r"(?<![\w./@+-])[\w.@+-]{1,255}(?:/[\w.@+-]{1,255}){0,40}\.(?:py|ipynb|sh|ya?ml|toml)(?![\w/-])"
_DOMAIN = rf"(?<![\w.-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,10}}(?:{_ENDS})(?![\w-]|\.\w)"
_CLOUD = r"(?<![\w.-])ip(?:-[0-9]{1,3}){4}(?![\w-])"
_MANY = r"(?<![\w.-])[A-Za-z][A-Za-z0-9_-]{0,62}\[[0-9][0-9,-]{0,4000}\]"
_OURS = re.compile(r"(?:host|user|path|domain|namespace|name)-[0-9]+")
_NUMBERED = re.compile(r"(?i)(?:rank|gpu|local_?rank|step|task|mlx[0-9]+|eth|ib|bond|cuda|nccl|proc)[_-]?[0-9]+")
#: How a text tells the name of a user.
USER_SIGNS = r"(?i)(?:\b(?:user|username|logname|owner|UserId)[ \t]{0,2}[=:][ \t]{0,2}[\"']?|[ug]id=[0-9]{1,10}\(|/(?:home|Users)/)([A-Za-z_][A-Za-z0-9_.-]{1,31})"


#: How a text tells the name of a job, an experiment or a model: options and settings of launchers, schedulers and frameworks.
NAME_SIGNS = (
    r"(?i)(?:\b(?:job|run|exp|experiment|project|model|wandb_project|wandb_entity|wandb_name)(?:[_-]?(?:name|path|name_or_path))[\"']{0,1}[ \t]{0,2}[=: ][ \t]{0,2}[\"']{0,1}"
    r"|--(?:model|experiment|project|job)[ =]|\bWANDB_(?:PROJECT|ENTITY|NAME|RUN_GROUP)[=:][ \t]{0,2})([A-Za-z0-9][A-Za-z0-9_.-]{2,63}(?:/[A-Za-z0-9][A-Za-z0-9_.-]{2,63})?)"
)


class Pseudonyms:
    """The names met so far and what stands for them. A class because it grows while texts pass through it."""

    def __init__(self) -> None:
        self._known: dict[Kind, set[str]] = defaultdict(set)
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._addresses: dict[str, str] = {}
        self._networks: dict[str, int] = {}
        self._devices: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._word = re.compile(r"(?!)")

    def learn(self, kind: Kind, names: Iterable[str | None]) -> None:
        """Names that are to be replaced wherever they stand."""
        for name in names:
            if name is None or len(name) > 255 or _OURS.fullmatch(name):
                continue
            cleaned = name.strip()
            if kind in ("host", "domain") and (_is_address(cleaned) or not re.fullmatch(r"[\w.-]+", cleaned)):
                continue
            if len(cleaned) > 1 and not cleaned.isdigit() and not _nobody(cleaned):
                self._known[kind].add(cleaned.lower())
        self._pattern = None

    def learn_names(self, names: Iterable[str | None]) -> None:
        """Names of jobs, experiments and models, also as part of an organisation's (acme/model-70b). Words of the field are none."""
        for name in names:
            for part in (name or "").strip().split("/"):
                if 2 < len(part) <= 255 and not part.isdigit() and not _neutral(part) and not _OURS.fullmatch(part) and not _nobody(part):
                    self._known["name"].add(part.lower())
        self._pattern = None

    def learn_path(self, path: str) -> None:
        """The parts of a path that the evidence lies under; they may be named in sentences too."""
        for part in re.split(r"!?/", path):
            stem = _split(part)[0]
            # A plain word would be taken out of sentences that have nothing to do with the path.
            if len(stem) > 3 and re.search(r"[0-9_.-]", stem) and not _neutral(stem):
                self._known["path"].add(stem.lower())
        self._pattern = None

    def host(self, name: str) -> str:
        """A text that is a host's name, or names it together with others."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or _is_address(name) or _OURS.fullmatch(name):
            return self.text(name)
        return self._named("host", name)

    def user(self, name: str) -> str:
        """A text that is a user's name."""
        return self._named("user", name) if re.fullmatch(r"[A-Za-z0-9_.-]+", name) else self.text(name)

    def path(self, path: str) -> str:
        """A path inside the evidence, relative or absolute: every part that could tell something is replaced."""
        parts = re.split(r"(!?/|:)", path)
        library = next((n for n, part in enumerate(parts) if part in _LIBRARIES), len(parts))
        return "".join(part if part in ("/", "!/", ":") or n > library else self._part(part) for n, part in enumerate(parts))

    def text(self, text: str) -> str:
        """Any text with all names in it replaced."""
        if text not in self._done:
            if self._pattern is None:
                self._compile()
            assert self._pattern is not None
            if len(self._done) > 200_000:
                self._done.clear()
            self._done[text] = self._pattern.sub(self._replace, text)
        return self._done[text]

    def counts(self) -> dict[str, int]:
        """How many names of each kind were replaced."""
        return {**{k: n for k, n in sorted(self._counts.items()) if n}, **({"address": len(self._addresses)} if self._addresses else {})}

    def _compile(self) -> None:
        """Number what is known, in its natural order, and build the one pattern that finds everything."""
        for kind in ("host", "user", "namespace", "name", "path"):
            for name in sorted(self._known[kind], key=natural):
                self._number(kind, name)
        words = sorted(self._names)
        named = rf"(?i:(?<![A-Za-z0-9])(?:{_trie(words)})(?![A-Za-z0-9]))" if words else r"(?!)"
        self._word = re.compile(named)
        parts = {"url": _URL, "mail": _MAIL, "uuid": _UUID, "mac": _MAC, "six": _SIX, "four": _FOUR, "path": _PATH, "code": _CODE}
        parts |= {"named": named, "domain": f"(?i:{_DOMAIN})", "cloud": _CLOUD, "many": _MANY}
        self._pattern = re.compile("|".join(f"(?P<{k}>{v})" for k, v in parts.items()))
        self._done.clear()

    def _replace(self, found: re.Match[str]) -> str:
        text = found[0]
        match found.lastgroup:
            case "url":
                return self._url(text)
            case "mail":
                return self._mail(text)
            case "uuid" | "mac":
                return self._device(text)
            case "six" | "four":
                return self._address(text)
            case "path":
                return self._absolute(text)
            case "code":
                return self._code(text)
            case "named":
                return self._name(text)
            case "many":
                return self._many(text)
            case "domain" | "cloud":
                return self._named("host", text)
            case _:
                return text

    def _number(self, kind: str, name: str) -> str:
        key = name.lower()
        if kind == "path" and (split := _split(name))[1]:
            return self._number(kind, split[0]) + split[1]
        if key not in self._names:
            first, dot, rest = key.partition(".")
            if kind == "host" and dot and not _is_address(key):
                self._names[key] = f"{self._number('host', first)}.{self._domain(rest)}"
            else:
                self._counts[kind] += 1
                self._names[key] = f"{kind}-{self._counts[kind]}"
        return self._names[key]

    def _named(self, kind: Kind, name: str) -> str:
        return name if _nobody(name) else self._number(kind, name)

    def _domain(self, name: str) -> str:
        return self._number("domain", name)

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            return f"::ffff:{self._address(str(address.ipv4_mapped))}"
        if address.is_loopback or address.is_unspecified or address.is_multicast or (address.version == 4 and _is_mask(int(address))):
            return text
        key = str(address)
        if key not in self._addresses:
            if isinstance(address, ipaddress.IPv6Address):
                net, base = str(ipaddress.ip_network((int(address) >> 64 << 64, 64))), "2001:db8"
                number = self._networks.setdefault(net, len(self._networks) + 1)
                self._addresses[key] = f"{base}:{number:x}::{len(self._addresses) + 1:x}"
            else:
                # Of the range for benchmarks (RFC 2544): neighbours of one /24 stay neighbours, and .0 and .255 stay what they are.
                net, last = key.rsplit(".", 1)
                number = self._networks.setdefault(net, len(self._networks) + 1)
                mine = sum(1 for a in self._addresses if a.rsplit(".", 1)[0] == net and not a.endswith((".0", ".255"))) + 1
                end = last if last in ("0", "255") else str(mine)
                self._addresses[key] = f"198.{18 + number // 256}.{number % 256}.{end}"
        return self._addresses[key]

    def _device(self, text: str) -> str:
        """A MAC, an InfiniBand hardware address or a UUID, in the form that it had."""
        digits = re.sub(r"[:-]", "", text)
        if int(digits, 16) < 1 << 24:  # nobody's, or one of ours
            return text
        self._counts["device"] += text.lower() not in self._devices
        number = self._devices.setdefault(text.lower(), f"{self._counts['device']:x}")
        filled = iter(number.rjust(len(digits), "0"))
        return "".join(c if c in ":-" else next(filled) for c in text)

    def _url(self, text: str) -> str:
        scheme, _, rest = text.partition("://")
        authority, slash, tail = rest.partition("/")
        who, at, where = authority.rpartition("@")
        bare, colon, port = where.partition(":") if where.count(":") < 2 else (where, "", "")
        if any(bare == site or bare.endswith("." + site) for site in _PUBLIC):
            return text
        if who and "***" not in who:
            who = "user"
        host = self._place(bare) + colon + port
        return f"{scheme}://{who}{at}{host}{slash}{self.path(tail)}"

    def _place(self, text: str) -> str:
        """The host of a URL or an address of mail: an address in brackets too."""
        if text.startswith("[") and "]" in text:
            inner, _, rest = text[1:].partition("]")
            return f"[{self._address(inner)}]{rest}"
        if _is_address(text):
            return self._address(text)
        return self._named("host", text) if re.fullmatch(r"[A-Za-z0-9_.-]+", text) else text

    def _many(self, text: str) -> str:
        """Slurm's short form of several hosts, where one of them is known."""
        hosts = expand(text)
        if not any(h.lower() in self._names for h in hosts):
            return text
        return ",".join(self._named("host", h) for h in hosts)

    def _mail(self, text: str) -> str:
        who, _, where = text.partition("@")
        if "." not in where and where.lower() not in self._names:
            return f"{self._names.get(who.lower(), who)}@{where}"
        where = self._domain(where) if "." in where and where.lower() not in self._names else self._named("host", where)
        return f"{self.user(who)}@{where}"

    def _absolute(self, text: str) -> str:
        body = text.rstrip(".,:;")
        return self.path(body) + text[len(body) :]

    def _code(self, text: str) -> str:
        parts = text.split("/")
        if parts[0] in ("torch", "nccl", "triton", "numpy") or (len(parts) == 1 and text.removesuffix(".py") in _stdlib()):
            return text
        return self.path(text) if len(parts) > 1 or not _neutral(_split(text)[0]) else text

    def _part(self, part: str) -> str:
        """One part of a path: known names in it are replaced, and the rest of it too unless it consists of words that tell nothing."""
        if self._pattern is None:
            self._compile()
        stem, extension = _split(part)
        if not part or part in (".", "..", "~") or stem in _stdlib() or _OURS.fullmatch(part):
            return part
        if _is_address(stem):
            return self._address(stem) + extension
        inner = self._word.sub(lambda found: self._name(found[0]), stem)
        inner = re.sub(_FOUR, lambda found: self._address(found[0]), inner)
        return (inner if _neutral(inner) else self._number("path", stem)) + extension

    def _name(self, text: str) -> str:
        """What stands for a known name; a file's name keeps its extension."""
        return self._names[text.lower()]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_mask(value: int) -> bool:
    """A netmask such as 255.255.255.0, which is nobody's address."""
    inverted = value ^ 0xFFFFFFFF
    return value >= 0xFF000000 and inverted & (inverted + 1) == 0


def _split(part: str) -> tuple[str, str]:
    """A file's name and its extensions, as far as they are common ones."""
    stem, extension = part, ""
    while "." in stem[1:]:
        rest, _, last = stem.rpartition(".")
        if last.lower() not in _EXTENSIONS:
            break
        stem, extension = rest, f".{last}{extension}"
    return stem, extension


def _nobody(name: str) -> bool:
    """Whether the name of a host or user is a word of the field, an account of a system, or a rank, which many share."""
    return name.lower() in _WORDS or name.lower() in _ACCOUNTS or _NUMBERED.fullmatch(name) is not None


def _neutral(name: str) -> bool:
    """Whether a name is made of words that identify nobody, numbers and single letters."""
    return all(len(word) < 2 or word in _WORDS for word in re.split(r"[^a-z]+", _OURS.sub("", name.lower())))


def _stdlib() -> frozenset[str]:
    return sys.stdlib_module_names


def _trie(names: list[str]) -> str:
    """One pattern for many names in which shared beginnings stand once, so that a text is not held against each of them; longest first."""
    tree: dict[str, object] = {}
    for name in names:
        at = tree
        for char in name:
            at = at.setdefault(char, {})  # type: ignore[assignment]  # a tree of dicts, which has no finite type
        at[""] = {}

    def write(node: dict[str, object]) -> str:
        # A chain without forks is written as it is, so that long names nest no groups.
        chain = ""
        while len(node) == 1 and "" not in node:
            [(char, node)] = node.items()  # type: ignore[assignment]  # as above
            chain += re.escape(char)
        if list(node) == [""]:
            return chain
        branches = "|".join(re.escape(c) + write(n) for c, n in sorted(node.items()) if c and isinstance(n, dict))
        return f"{chain}(?:{branches})" + ("?" if "" in node else "")

    return write(tree)
