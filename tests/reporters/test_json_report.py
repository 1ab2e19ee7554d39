import json
from importlib import resources

import jsonschema
import pytest

from nccl_forensics.model import CAUSES
from nccl_forensics.reporters import json_report
from tests.reporters.samples import SAMPLES, hang

SCHEMA = json.loads(resources.files("nccl_forensics").joinpath("report.schema.json").read_text(encoding="utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_knows_exactly_the_causes_of_the_contract():
    assert SCHEMA["$defs"]["cause"]["enum"] == list(CAUSES)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_keeps_the_contract(name):
    errors = [f"{e.json_path}: {e.message[:200]}" for e in VALID.iter_errors(json.loads(json_report.render(SAMPLES[name]().report)))]
    assert errors == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict", "status"), "fine"),
        (("verdict", "cause"), "gremlins"),
        (("verdict", "cause"), None),
        (("case", "started_at"), "yesterday"),
        (("schema",), "nccl-forensics/report/2"),
        (("findings",), [{}]),
        (("sources",), [{"path": 3}]),
    ],
)
def test_a_report_that_breaks_the_contract_is_refused(path, value):
    report = json.loads(json_report.render(hang().report))
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not VALID.is_valid(report)


@pytest.mark.parametrize("key", sorted(SCHEMA["required"]))
def test_every_part_of_the_contract_is_required(key):
    report = json.loads(json_report.render(hang().report))
    del report[key]
    assert not VALID.is_valid(report)


def test_added_keys_are_allowed():
    report = json.loads(json_report.render(hang().report))
    report["verdict"]["added_later"] = report["added_later"] = 1
    assert VALID.is_valid(report)


def test_keys_are_sorted_and_the_same_report_gives_the_same_bytes():
    report = hang().report
    backwards = dict(reversed(list(report.items())))
    assert json_report.render(report) == json_report.render(backwards)
    assert json_report.render(report).endswith(b"}\n")


def test_a_file_name_that_is_not_utf8_does_not_stop_the_report():
    assert json.loads(json_report.render({"path": "log\udcff", "large": 1 << 70, "items": [(1, None)]})) == {
        "path": "log\ufffd",
        "large": str(1 << 70),
        "items": [[1, None]],
    }


def test_a_value_that_json_does_not_know_is_a_bug_and_not_text():
    with pytest.raises(TypeError):
        json_report.render({"oops": object()})
