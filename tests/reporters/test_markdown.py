import re

import pytest

from nccl_forensics.reporters import markdown
from nccl_forensics.reporters.markdown import code, fence, prose
from tests.reporters.samples import SAMPLES, action, hang, healthy, hostile, large


def render(sample):
    return markdown.render(sample.report, sample.extras)


def outside_code(text):
    """Markdown without fenced blocks and code spans."""
    without = re.sub(r"^ *(`{3,})text\n.*?^ *\1$", "", text, flags=re.M | re.S)
    return re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", without)


def test_it_opens_with_the_cause_and_who():
    text = render(hang())
    assert text.startswith("# Rank 3 skipped `all_reduce #18` of")
    assert "**Explained**: `collective-skipped`, high confidence" in text
    assert "| Who | rank 3, host trn-a, GPU 3, pid 17218 |" in text


def test_every_evidence_item_of_the_cause_is_quoted():
    text = render(hang())
    assert "`logs/rank3.stderr.log:214`" in text
    assert "WARNING:root:loss is nan at step 4" in text
    assert "… and 5 more evidence items" in text


def test_foreign_text_makes_no_markup_outside_code():
    text = outside_code(render(hostile()))
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert "@everyone" not in text
    assert not re.search(r"^# heading", text, flags=re.M)


def test_each_exhibit_is_told_in_one_sentence():
    text = render(hang())
    assert "- **Divergence timeline**: At #<!-- -->18 ranks 0-2, 4-7 (7 ranks) wait in all_reduce; rank 3 called broadcast instead." in text
    assert "- **Cluster map**: Rank 3 at fault on trn-a; ranks 0-2, 4-7 (7 ranks) waiting on trn-a, trn-b." in text
    assert text.count("\n- Impact:\n") == 1


def test_a_code_span_or_fence_cannot_be_left():
    assert code("a``b`c") == "```a``b`c```"
    assert code("`x") == "`` `x ``"
    assert fence("```\n````") == "`````text\n```\n````\n`````"


def test_prose_names_no_one_and_links_nowhere():
    assert prose("fix #18 for @ann, see https://x.y") == "fix #<!-- -->18 for @<!-- -->ann, see https\\://x.y"
    assert prose("(all_reduce #18), no #1") == "(`all_reduce #18`), no #<!-- -->1"


def test_a_clean_run_never_says_ruled_out():
    text = render(healthy())
    assert "No fault was found in what was handed in" in text
    assert "Not made for want of kernel log: gpu-fault, nvlink-fault" in text
    assert "ruled out" not in text.lower()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_it_stays_within_what_a_tracker_takes(name):
    assert len(render(SAMPLES[name]())) < 65_536


def test_many_findings_are_cut_with_a_count():
    assert "… and 574 more in `report.json`" in render(large())


def test_action_words_of_hosts_read_as_a_sentence():
    sample = hang()
    sample.report["verdict"]["actions"] = [action("reset_gpu", gpus=["3"]), action("check-network")]
    text = render(sample)
    assert "1. **Reset the GPU**: GPU 3" in text
    assert "2. **Check network**" in text
