"""examples/lambda: templates for SAM and Terraform say what `hapax init` would make and allow. No AWS is asked."""
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from conftest import HAPAX, ROOT

FOLDER = ROOT / "examples/lambda"
STORE = "dynamodb://eu-west-1/hapax"


class Template(yaml.SafeLoader):
    pass


Template.add_multi_constructor("!", lambda loader, tag, node: {tag: node.value})


def printed(option):
    return subprocess.run([HAPAX, "init", "--store", STORE, option], capture_output=True, check=True, text=True).stdout


def options_of(line):
    """{"--key-schema": [{"AttributeName": "id", …}, …], …} of a line of the AWS command line."""
    words, options = shlex.split(line), {}
    for word in words:
        if word.startswith("--"):
            values = options.setdefault(word, [])
        elif "=" in word:
            values.append(dict(pair.split("=") for pair in word.split(",")))
    return options


@pytest.fixture(scope="module")
def wanted():
    """The table's attributes and keys, its TTL's attribute, and what a door may call."""
    table, _, ttl = map(options_of, printed("--print").splitlines())
    statement, = json.loads(printed("--print-acl"))["door"]["Statement"]
    return (table["--attribute-definitions"], table["--key-schema"],
            ttl["--time-to-live-specification"][0]["AttributeName"], statement["Action"])


def test_the_template_for_sam_says_what_init_would(wanted):
    resources = yaml.load((FOLDER / "template.yaml").read_text(), Template)["Resources"]
    table, function = resources["Records"]["Properties"], resources["Payments"]["Properties"]
    statement, = function["Policies"][0]["Statement"]
    assert wanted == (table["AttributeDefinitions"], table["KeySchema"],
                      table["TimeToLiveSpecification"]["AttributeName"], statement["Action"])
    variables = function["Environment"]["Variables"]
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/hapax-wrapper"
    assert variables["HAPAX_STORE"] == {"Sub": "dynamodb://${AWS::Region}/${Records}"}
    assert function["Events"]["Order"]["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_the_one_for_terraform_says_the_same(wanted):
    text = (FOLDER / "main.tf").read_text()
    attributes, keys, ttl, actions = wanted
    assert re.findall(r'attribute \{\s*name = "(\w+)"\s*type = "(\w+)"', text) == [
        (one["AttributeName"], one["AttributeType"]) for one in attributes]
    assert re.findall(r'(?:hash|range)_key +="? ?"(\w+)"', text) == [one["AttributeName"] for one in keys]
    assert re.findall(r'attribute_name = "(\w+)"', text) == [ttl]
    assert json.loads(re.search(r"Action +=( \[\"dyn.*\])", text)[1]) == actions
    assert 'AWS_LAMBDA_EXEC_WRAPPER = "/opt/hapax-wrapper"' in text and '["ReportBatchItemFailures"]' in text


def test_the_page_shows_a_part_of_the_template():
    part, = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/lambda.md").read_text(), re.S)
    assert part in (FOLDER / "template.yaml").read_text()


@pytest.mark.skipif(not shutil.which("terraform"), reason="there is no terraform on this machine")
def test_terraform_reads_it():
    env = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run(["terraform", "fmt", "-check", "-diff", FOLDER], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
