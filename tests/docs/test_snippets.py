"""What pages show as code: who runs it, and that the names in it are there.

RUN says of each page whose blocks are code which test runs or reads them. The commands, directives and SQL functions in
the blocks and in the text of all pages are looked up besides: a page cannot name what is not there any more.
"""
import re
import subprocess

import pytest

from conftest import HAPAX, ROOT

FILES = ("README.md", "docs/*.md", "docs/problems/*.md", "docs/recipes/*.md", "sdk/*/README.md")
PAGES = {str(page.relative_to(ROOT)): page.read_text() for files in FILES for page in ROOT.glob(files)}
# A test that has the page's name in it. Of a page with several blocks it may run some; the others have names alone.
RUN = {
    "README.md": "tests/e2e/cli/test_readme.py", "docs/cli.md": "tests/e2e/cli/test_cli.py",
    "docs/consume.md": "tests/docs/test_recipes.py", "docs/database.md": "tests/docs/test_database.py",
    "docs/door.md": "tests/e2e/door/test_door.py", "docs/lambda.md": "tests/docs/test_lambda_templates.py",
    "docs/postgres-drivers.md": "tests/e2e/door/test_drivers.py", "docs/postgres.md": "tests/e2e/door/test_pg_sql.py",
    "docs/sagas.md": "tests/e2e/relay/test_saga.py", "docs/steps.md": "tests/e2e/gate/test_steps.py",
    **{f"docs/{name}.md": "tests/docs/test_pages.py" for name in
       ("dynamodb", "encryption", "index", "install", "metrics", "moving", "nginx", "run", "runbook", "trying",
        "unknowns")},
    **{f"sdk/{name}/README.md": "tests/docs/test_pages.py" for name in ("node", "python")},
    **{name: "tests/docs/test_recipes.py" for name in PAGES if name.startswith("docs/recipes/")},
}
# No test types these. Each has its reason.
NOT_RUN = {
    "docs/clients.md": "HTTP and OpenAPI, for others' programs; its YAML is read below",
    "docs/consume-sqs.md": "a policy of IAM, for an account at AWS; test_pages.py reads its JSON",
    "docs/design.md": "layouts, no code", "docs/keeper.md": "layouts of frames", "docs/testing.md": "what tools print",
    "docs/kubernetes.md": "needs a cluster; tests/ops reads the manifests",
    "docs/performance.md": "measurements, of minutes", "docs/stores.md": "a URI's parts",
    "docs/traces.md": "needs a collector; tests/e2e/cli/test_traces.py has one",
    "docs/web.md": "starts a page, and asks for a password; tests/e2e/web",
    **{f"sdk/{name}/README.md": "parts of a program; its example runs in tests/sdk" for name in
       ("cases", "go", "java")},
}
SPAN = re.compile(r"```.*?```|`[^`\n]+`", re.S)
COMMAND = re.compile(r"(?:^|[\s`$(/])hapax (?!help\b)([a-z]+)\b([^`\n]*)")


def code_of(text):
    """Its blocks and spans of code; a line that goes on by a backslash is one."""
    return [re.sub(r"\\\n\s*", "", found) for found in SPAN.findall(text)]


def test_each_page_with_code_is_run_or_says_why_not():
    with_blocks = {name for name, text in PAGES.items() if re.search(r"^```", text, re.M)}
    assert with_blocks == set(RUN) | set(NOT_RUN) and not set(RUN) & set(NOT_RUN)
    for name, test in RUN.items():
        assert name.rpartition("/")[2] in (ROOT / test).read_text() or "docs/recipes" in (ROOT / test).read_text(), name


# Each option that a page gives to a command is one of that command's.
def test_commands_have_the_options_that_pages_give_them():
    helps, wrong, seen = {}, [], 0
    listed = set(re.findall(r"^## hapax (\w+)$", PAGES["docs/cli.md"], re.M))
    for page, text in PAGES.items():
        for command, rest in (found for code in code_of(text) for found in COMMAND.findall(code)):
            if command not in listed:
                continue
            if command not in helps:
                said = subprocess.run([HAPAX, "help", command], capture_output=True, text=True, check=True).stdout
                helps[command] = {*re.findall(r"--[a-z][\w-]*", said), "--store", "--json", "--config", "--help"}
            own = re.split(r" -- |[|;&#(]", rest)[0]
            seen += 1
            wrong += [f"{page}: hapax {command} {option}" for option in re.findall(r"(?<!\S)\[?(--[a-z][\w-]*)", own)
                      if option not in helps[command]]
    assert wrong == [] and seen > 300


def test_directives_and_functions_that_pages_name_are_there():
    module = "".join(path.read_text() for path in ROOT.glob("nginx/*.c"))
    functions = set(re.findall(r"FUNCTION hapax\.(\w+)", "".join(path.read_text() for path in ROOT.glob("sql/*.sql"))))
    directives = set(re.findall(r'(?:ngx_http_hapax_directive|ngx_string)\("(hapax\w*)"', module))
    directives |= {f"hapax_{name}" for name in re.findall(r'ngx_http_hapax_policy\("(\w+)"', module)}
    for page, text in PAGES.items():
        for block in re.findall(r"```nginx\n(.*?)```", text, re.S):
            for name in re.findall(r"^\s*(hapax\w*)[\s;]", re.sub(r"[{;]", "\n", block), re.M):
                assert name in directives, f"{page}: {name}"
        for block in re.findall(r"```sql\n(.*?)```", text, re.S):
            for name in re.findall(r"\bhapax\.(\w+)\(", block):
                assert name in functions, f"{page}: hapax.{name}()"


def test_the_openapi_part_is_yaml_whose_references_are_there():
    yaml = pytest.importorskip("yaml")
    part = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGES["docs/clients.md"], re.S)[1])
    for path in re.findall(r"'#/([\w/]+)'", PAGES["docs/clients.md"]):
        at = part
        for word in path.split("/"):
            at = at[word]
    assert part["components"]["parameters"]["IdempotencyKey"]["in"] == "header"
