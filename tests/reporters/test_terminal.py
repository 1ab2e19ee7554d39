import re

import pytest

from nccl_forensics.extras import Host, Seat
from nccl_forensics.plain import columns
from nccl_forensics.presentation.case import particulars_of
from nccl_forensics.presentation.checks import by_missing
from nccl_forensics.presentation.values import RuleText
from nccl_forensics.reporters import terminal
from nccl_forensics.words import UNKNOWN_HOST, rank_list
from tests.reporters.samples import SAMPLES, hang, healthy, insufficient, large, line, unexplained


def render(sample, color=False, width=100):
    return terminal.render(sample.report, sample.extras, color=color, width=width)


def test_the_first_lines_say_what_who_and_where():
    text = render(hang())
    assert "EXPLAINED  collective-skipped  (high confidence)" in text
    assert "Rank 3 skipped all_reduce #18" in text
    assert re.search(r"Who +rank 3, host trn-a, GPU 3, pid 17218", text)
    assert re.search(r"Collective +all_reduce #18 of process group default_pg", text)


def test_evidence_is_quoted_with_path_and_line():
    text = render(hang())
    assert "logs/rank3.stderr.log:214" in text
    assert "loss is nan at step 4" in text


def test_what_to_do_and_what_is_missing_come_with_commands():
    text = render(hang())
    assert "$ sed -n 40,60p train_loop.py" in text
    assert "$ sudo journalctl -k" in text


def test_prose_is_cut_between_words_and_a_path_anywhere():
    page = terminal._Page(30, color=False)
    assert page.folded("ranks wait for each other in all_reduce", 1) == ["ranks wait for …"]
    assert page.folded("/checkpoints/of/a/very/long/name", 1) == ["/checkpoints/of/…"]


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("width", [60, 100])
def test_it_fits_one_screen(name, width):
    lines = render(SAMPLES[name](), width=width).splitlines()
    assert len(lines) <= 40
    assert all(columns(line) <= width for line in lines if "$ " not in line)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_without_colour_no_control_character_is_written(name):
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", render(SAMPLES[name]()))


def test_with_colour_only_our_own_colours_are_written():
    assert set(re.findall(r"\x1b[^m]*m", render(SAMPLES["hostile"](), color=True))) <= {
        "\x1b[0m",
        "\x1b[1m",
        "\x1b[2m",
        "\x1b[36m",
        "\x1b[1;31m",
        "\x1b[1;33m",
    }


def test_a_clean_run_says_what_was_not_checked():
    text = render(healthy())
    assert "No fault was found in what was handed in" in text
    assert "no kernel log: gpu-fault, nvlink-fault" in text
    assert "collective-skipped" not in text


def test_an_unexplained_hang_is_not_called_fine():
    text = render(unexplained())
    assert "UNEXPLAINED" in text
    assert "nothing handed in proves why" in text


def test_too_little_evidence_is_said_and_what_to_collect():
    text = render(insufficient())
    assert "NOT ENOUGH EVIDENCE" in text
    assert "Kernel log of both hosts" in text


def test_what_would_settle_it_comes_before_what_was_not_checked_unless_nothing_seems_wrong():
    for sample in (unexplained(), insufficient()):
        assert render(sample).index("\nMissing ") < render(sample).index("\nNot checked ")
    assert render(healthy()).index("\nNot checked ") < render(healthy()).index("\nMissing ")


def test_an_action_that_tells_neither_what_nor_where_is_left_to_the_sentence_above():
    sample = hang()
    sample.report["verdict"]["actions"] = [
        {"action": "fix-code", "ranks": [], "hosts": []},
        {"action": "restart-job", "ranks": [], "hosts": []},
    ]
    assert "Fix the code" not in render(sample)
    assert "1. Restart the job" in render(sample)
    sample.report["verdict"]["remedy"] = None
    assert "1. Fix the code" in render(sample)


def test_a_source_that_could_not_be_read_is_named():
    assert "1 could not be read as a whole: traces/rank6.json.gz" in render(hang())


def test_thousands_of_ranks_stay_one_screen():
    assert "ranks 0-1402, 1404-4095 wait" in render(large())


def test_different_reasons_come_before_a_second_item_for_the_same():
    sample = hang()
    same = [line("logs/a.log", n, f"timeout {n}", "timed out in it") for n in range(1, 7)]
    sample.report["findings"][0]["evidence"] = [*same, line("logs/b.log", 7, "nan", "the first odd line")]
    text = render(sample)
    assert text.index("logs/a.log:1") < text.index("logs/b.log:7") < text.index("logs/a.log:2")


def test_ranks_of_a_job_whose_size_is_not_told_are_counted_as_a_least_number():
    assert particulars_of({"world_size": None, "ranks_seen": 7}) == (("Ranks", "7 or more"),)
    assert particulars_of({"world_size": 8, "ranks_seen": 7}) == (("Ranks", "7 of 8"),)
    assert particulars_of({"world_size": None, "ranks_seen": 0}) == ()


def test_hosts_are_counted_as_a_least_number_only_where_some_ranks_have_none():
    known = Host("a", (Seat(0, "ok"),))
    case = {"hosts": ["a", "b"]}
    assert particulars_of(case, [known, Host(UNKNOWN_HOST, (Seat(1, "ok"),))]) == (("Hosts", "2 or more"),)
    assert particulars_of(case, [known, Host("b", (Seat(1, "ok"),))]) == (("Hosts", "2"),)


def test_a_list_of_ranks_that_has_to_be_cut_is_short():
    assert rank_list(range(1, 4096, 2)) == "1, 3, 5, 7 … (2,048 ranks)"
    assert rank_list([1, 3, 5, 7, 9]) == "1, 3, 5, 7, 9"
    assert rank_list([1, 3, 5, 7, 9], 3) == "1, 3, 5 … (5 ranks)"


def test_what_would_allow_most_checks_comes_first_and_many_checks_are_counted():
    def skipped(name, missing):
        return RuleText(name, "", "skipped", missing, "", ())

    told = by_missing([skipped("a", "memory"), *(skipped(n, "stacks") for n in "bcde"), skipped("f", "thread_states")])
    assert [(u.missing, u.brief) for u in told] == [
        ("stacks of the processes (py-spy, gdb)", "5 checks (b, c …)"),
        ("free output", "a"),
    ]
