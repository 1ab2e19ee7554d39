"""Settings that harm and have no word of their own."""

from __future__ import annotations

import re

import pytest

from nccl_forensics.facts.setting_effects import SETTINGS
from nccl_forensics.model import CAUSES
from nccl_forensics.rules.bad_setting import bad_setting
from nccl_forensics.views.failures import FAILURES
from tests.corpus import corpus_root
from tests.rules.frames import cited, settings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

EVERYONE = [0, 1, 2, 3]
#: (setting, harmful value, severity, harmless value or None where every value harms)
CASES = [
    ("NCCL_PROTO", "LL", "error", None),
    ("NCCL_PROTO", "Simple", "warning", None),
    ("NCCL_ALGO", "Ring", "warning", None),
    ("NCCL_BUFFSIZE", "65536", "error", "4194304"),
    ("NCCL_BUFFSIZE", "262143", "error", "262144"),
    ("NCCL_NTHREADS", "64", "warning", "512"),
    ("NCCL_MIN_NCHANNELS", "32", "warning", "16"),
    ("NCCL_IB_TIMEOUT", "13", "warning", "20"),
    ("NCCL_IB_TIMEOUT", "23", "info", "22"),
    ("NCCL_IB_RETRY_CNT", "1", "warning", "7"),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "0", "warning", "1"),
    ("NCCL_DEBUG", "TRACE", "info", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,COLL", "info", "INIT,ENV"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.log", "warning", "/tmp/nccl.%h.%p.log"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl.log", "warning", "/dev/stderr"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "warning", "3"),
    ("TORCH_DISTRIBUTED_DEBUG", "detail", "warning", "INFO"),
    ("TORCH_FR_BUFFER_SIZE", "0", "info", "2000"),
    ("CUDA_LAUNCH_BLOCKING", "1", "error", "0"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "info", "max_split_size_mb:128"),
    ("GLOO_SOCKET_IFNAME", "lo", "warning", "eth0"),
    ("UCX_TLS", "tcp,self,cuda", "warning", "rc,tcp,cuda"),
]


@pytest.mark.parametrize(("name", "harmful", "severity", "harmless"), CASES, ids=[f"{n}={v}" for n, v, _, _ in CASES])
def test_a_harmful_value_is_named_and_another_is_not(name: str, harmful: str, severity: str, harmless: str | None) -> None:
    [finding] = bad_setting.check(settings(name, (harmful, EVERYONE)), None)
    assert told(finding) == (severity, "high", (0, 1, 2, 3))
    assert finding.title.startswith(f"{name}={harmful} on ranks 0-3: ")
    assert cited(finding) == [(0, 2)]
    if harmless is not None:
        assert bad_setting.check(settings(name, (harmless, EVERYONE)), None) == []


def test_the_worst_comes_first() -> None:
    both = settings("NCCL_ALGO", ("Ring", EVERYONE)).collect().vstack(settings("NCCL_PROTO", ("LL", EVERYONE)).collect())
    assert [f.subject[0] for f in bad_setting.check(both, None)] == ["NCCL_PROTO", "NCCL_ALGO"]


def test_what_differs_between_ranks_and_what_has_its_own_word_is_left_to_other_rules() -> None:
    assert bad_setting.check(settings("NCCL_ALGO", ("Ring", [0, 1])), None) == []
    assert bad_setting.check(settings("NCCL_P2P_DISABLE", ("1", EVERYONE)), None) == []


def test_a_value_that_nccl_refused_is_told_with_its_line() -> None:
    lines = table("nccl_env", {"name": "NCCL_BUFFSIZE", "value": "4MB", "invalid": True, "host": "node1", "line_no": 9})
    [finding] = bad_setting.check(None, lines)
    assert finding.title == "NCCL could not read NCCL_BUFFSIZE=4MB and uses its default"
    assert (cited(finding), finding.hosts) == ([(0, 9)], ("node1",))
    assert finding.severity == "error"
    assert bad_setting.check(None, table("nccl_env", {"name": "NCCL_BUFFSIZE", "value": "4194304", "invalid": False})) == []
    # It goes on with its default: what ended a job is another matter.
    [finding] = bad_setting.check(None, lines, None, rows(FAILURES, {"sign": "NCCL errors", "count": 1}))
    assert finding.severity == "warning"


def test_own_words_are_causes() -> None:
    assert {s.own_word for s in SETTINGS.values()} - {None} <= set(CAUSES)


@pytest.mark.corpus
@pytest.mark.parametrize("page", ["nccl.md", "torch.md", "host.md"])
def test_every_setting_that_the_catalogues_name_is_known(page: str) -> None:
    file = corpus_root().parent / "formats" / page
    if not file.exists():
        pytest.skip(f"the catalogue {page} is not beside the corpus")
    named = set(re.findall(r"`((?:NCCL|TORCH|FI|RCCL|HSA)_[A-Z0-9_]*[A-Z0-9])", file.read_text(encoding="utf-8")))
    assert named, "no setting found in the page"
    assert named - set(SETTINGS) == set()
