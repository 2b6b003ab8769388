"""The command line, end to end: every command, every exit status, against real stores."""
import base64
import contextlib
import json
import os
import pathlib
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import gate as g
import pytest
from conftest import HAPAX, PATIENCE, ROOT, end, read_line, wait_until
from postgres_server import Postgres
from redis_server import Redis

COMMANDS = ["serve", "door", "run", "keep", "init", "check", "config", "show", "list", "resolve", "erase", "purge",
            "top", "web", "bench", "help"]
RECORD = {"id", "scope", "state", "attempt", "fence", "stale", "hold", "ran", "reruns", "fingerprint", "caller",
          "created_us", "updated_us", "lease_until_us", "expires_us", "status", "headers", "body_kept",
          "resolved_us", "resolved_by", "what", "owner", "replaced_state", "replaced_status"}


# ---- where a store may be ---------------------------------------------------------------

@pytest.fixture
def fuse(tmp_path):
    """A folder on FUSE; a file system of the network is not to be had, and has its number in the same list."""
    (tmp_path / "under").mkdir()
    (tmp_path / "fuse").mkdir()
    if subprocess.run(["bindfs", tmp_path / "under", tmp_path / "fuse"], capture_output=True).returncode != 0:
        pytest.skip("no FUSE to be had")
    yield tmp_path / "fuse"
    subprocess.run(["umount", tmp_path / "fuse"], check=True)


# Two machines with one folder would be two keepers of the same files.
def test_a_store_is_not_opened_where_another_machine_may_open_it(hapax, fuse):
    done = hapax("init", "--store", f"rocksdb:{fuse}")
    assert done.code == 2 and "it is on FUSE" in done.err and "any_files=on" in done.err, done
    assert list(fuse.iterdir()) == []
    with_it = hapax("init", "--store", f"rocksdb:{fuse}?any_files=on")
    assert with_it.code == 0, with_it
    assert hapax("purge", "--store", f"rocksdb:{fuse}?any_files=on").code == 0
    done = hapax("init", "--store", f"rocksdb:{fuse}?any_files=perhaps")
    assert done.code == 2 and "any_files is not on or off" in done.err


# ---- cores ------------------------------------------------------------------------------

# A core would hold secrets, tokens and bodies.
@pytest.mark.parametrize("wanted, limit", [("", "0"), ("on", "4096")])
def test_no_core_is_written(hapax, tmp_path, wanted, limit):
    resource.setrlimit(resource.RLIMIT_CORE, (4096, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":disable_coredump=0"  # which sets the limit to 0 by itself
    process = hapax.start("keep", "--store", f"rocksdb:{tmp_path}/store", HAPAX_CORE_DUMPS=wanted,
                          ASAN_OPTIONS=sanitizer)
    read_line(process)
    with open(f"/proc/{process.pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max core file size"))
    assert line.split()[4] == limit
    assert end(process) == 0


# ---- help -------------------------------------------------------------------------------

def test_no_command_prints_the_commands_and_is_a_usage_error(hapax):
    result = hapax()
    assert result.code == 2
    assert all(f"  {command} " in result.out for command in COMMANDS)


def test_version_is_one_line(hapax):
    result = hapax("--version")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"hapax \d+\.\d+\.\d+\n", result.out)


# A page is 80 columns wide, and a tall screen long.
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_a_screen(hapax, command):
    result = hapax(command, "--help")
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0].startswith(f"usage: hapax {command}")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 78
    assert hapax("help", command).out == result.out


def test_every_option_in_the_synopsis_is_explained(hapax):
    for command in COMMANDS:
        text = hapax(command, "--help").out
        synopsis, rest = text.split("\n\n", 1)
        for option in re.findall(r"--[a-z-]+", synopsis):
            assert re.search(rf"^  {option}\b", rest, re.M), f"{command} {option}"


# One way to say a default, and never what a value may be behind a semicolon alone.
def test_defaults_stand_in_brackets(hapax):
    pages = hapax("help", "--markdown").out
    assert "efault is" not in pages
    assert not re.findall(r"^- `--.*; (?:\d+\w*|on|off|rerun|retry|hold|key|body)$", pages, re.M)
    assert "`: A claim not renewed for this long is dead (default 30s)\n" in pages
    assert re.findall(r"^(\S.*)", hapax("serve", "--help").out, re.M)[1:] == [
        "Connections", "Requests and answers", "Limits, and the process", "Policies", "Options of every command"]


def test_man_pages_are_without_warnings(hapax):
    for page in ["hapax"] + [command for command in COMMANDS if command != "help"]:
        roff = hapax("help", "--man", page).out
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=78n"], input=roff.encode(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), page
        assert roff.splitlines()[0].startswith(".TH HAPAX")


def test_the_written_page_is_what_the_program_prints(hapax):
    assert (ROOT / "docs/cli.md").read_text() == hapax("help", "--markdown").out


# ---- usage ------------------------------------------------------------------------------

@pytest.mark.parametrize("words, text", [
    (["lsit"], 'no command "lsit": did you mean "list"?'),
    (["something"], 'no command "something"; "hapax help" lists them'),
    (["--verison"], 'no option "--verison": did you mean "--version"?'),
    (["--store", "memory:", "list"], "options come after the command"),
    (["list", "--stat", "x"], 'no option "--stat": did you mean "--state"?'),
    (["list", "--something", "x"], 'no option "--something"; see "hapax list --help"'),
    (["list", "--stroe=redis://:secret@h"], 'no option "--stroe": did you mean "--store"?'),
    (["serve", "--on_expired", "hold"], 'no option "--on_expired": did you mean "--on-expired"?'),
    (["serve", "--config"], "--config needs a value: NAME|FILE"),
    (["list", "--config", "nowhere"], 'cannot read the settings "/etc/hapax/nowhere.conf": No such file'),
    (["list", "--config", "/dev/null"], 'cannot read the settings "/dev/null": Invalid argument'),
    (["config"], 'no command ""'),
    (["config", "srve"], 'no command "srve": did you mean "serve"?'),
    (["config", "serve", "--no-such"], 'no option "--no-such"; see "hapax serve --help"'),
    (["list", "-s"], 'no option "-s"'),
    (["list", "--limit"], "--limit needs a value: N"),
    (["list", "--limit", "0"], '--limit "0" is not within 1 to'),
    (["list", "--limit", "-1"], '--limit "-1" is not a whole number'),
    (["list", "--limit", "1x"], '--limit "1x" is not a whole number'),
    (["list", "--limit", "99999999999999999999"], "is not a whole number"),
    (["list", "--limit", "5", "--limit=6"], "--limit is given twice"),
    (["list", "--older", "5"], '--older "5" is not a duration'),
    (["list", "--state", "done"], '--state "done" is not started, completed, failed or unknown'),
    (["list", "--scope", ""], "--scope is not of 1 to 255 bytes"),
    (["list", "--json=yes"], "--json takes no value"),
    (["list", "x"], '"x" is too much'),
    (["show"], "name the operation by its KEY, or by --id HEX"),
    (["show", "a", "b"], '"b" is too much: one KEY is enough'),
    (["show", ""], "KEY, --scope and --owner have 1 to 255 bytes"),
    (["show", "k" * 256], "KEY, --scope and --owner have 1 to 255 bytes"),
    (["show", "k", "--step", "a:b"], "no ':'"),
    (["show", "--id", "abc"], '--id "abc" is not 64 hex digits'),
    (["show", "--id", "g" * 64], "is not 64 hex digits"),
    (["show", "k", "--id", "0" * 64], "not by both"),
    (["show", "--id", "0" * 64, "--scope", "s"], "--scope and --step go with a KEY"),
    (["resolve", "k"], "one of --complete STATUS, --fail and --forget"),
    (["resolve", "k", "--fail", "--forget"], "one of --complete STATUS, --fail and --forget"),
    (["resolve", "k", "--complete", "1000"], "is not within 0 to 999"),
    (["resolve", "k", "--fail", "--body", "x"], "--header, --body and --text go with --complete"),
    (["resolve", "k", "--complete", "200", "--header", "no colon"], "is not of the form 'Name: value'"),
    (["resolve", "k", "--complete", "200", "--header", "A: b\r\nC: d"], "is not of the form 'Name: value'"),
    (["resolve", "k", "--complete", "200", "--body", "missing"], 'cannot open --body "missing"'),
    (["resolve", "k", "--fail", "--by", "x" * 65], "--by is not of 1 to 64 bytes"),
    (["resolve", "k", "--fail", "--dry-run"], "--older, --limit and --dry-run go with --state"),
    (["resolve", "k", "--fail", "--state", "unknown"], "give no KEY, --id or --step with it"),
    (["resolve", "--fail", "--state", "unknown", "--force"], "--if-attempt and --if-updated are for one operation"),
    (["resolve", "--fail", "--state", "completed"], "what has completed is replaced one by one"),
    (["resolve", "--fail", "--state", "unknown", "--scope", ""], "--scope is not of 1 to 255 bytes"),
    (["resolve", "--state", "unknown"], "one of --complete STATUS, --fail and --forget"),
    (["keep", "--store", "memory:"], "only an embedded store"),
    (["keep", "--mode", "0999"], "is not octal from 0600"),
    (["keep", "--mode", "77777"], "is not octal from 0600"),
    (["keep", "--listen", "/tmp/x"], "is not unix:PATH"),
    (["bench", "--duplicates", "100"], "is not within 0 to 99"),
    (["bench", "--clients", "5000"], "is not within 1 to 4096"),
    (["bench", "--size", "17m"], "is not within 0 to 16777216 bytes"),
    (["purge", "--every", "10ms"], "is not within 1000 to"),
    (["help", "x"], 'no command "x"'),
    (["help", "srve"], 'no command "srve": did you mean "serve"?'),
    (["list", "--store", "nothing"], "is not a URI"),
    (["list", "--store", "mysql://x"], 'store "mysql://x" is of no known scheme (rocksdb:, unix:, redis://'),
    (["list", "--store", "mysql://u:secret@x"], 'store "mysql://u:***@x" is of no known scheme'),
    (["init", "--print-acl", "--store", "mysql://u:secret@x"], 'store "mysql://u:***@x" is of no known scheme'),
    (["init", "--print-acl", "--store", "memory:"], 'store "memory:" has no users of its own'),
    (["list", "--store", "rocks:x"], 'store "rocks:x" is of no known scheme'),
])
def test_what_is_wrong_is_said(hapax, words, text):
    result = hapax(*words)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert result.err.startswith("hapax") and result.err.count("\n") == 1


# In every command, of options of its own and of shared ones.
def test_a_name_with_a_letter_too_many_is_recognised(hapax):
    for command in re.findall(r"^  ([a-z]+) ", hapax().out.split("Commands\n")[1].split("\n\n")[0], re.M):
        assert f': did you mean "{command}"?' in hapax(command + command[-1]).err, command
        options = re.findall(r"^  (--[a-z-]+)", hapax(command, "--help").out, re.M)
        for option in options[:1] + options[-2:-1]:
            said = hapax.run(HAPAX, command, option + option[-1]).err
            assert f': did you mean "{option}"?' in said, (command, said)


def test_a_failure_is_an_object_with_json(hapax):
    result = hapax("list", "--limit", "x", "--json")
    assert (result.code, result.err) == (2, "")
    assert result.json == {"error": "invalid", "text": '--limit "x" is not a whole number'}
    assert hapax("list", "--json", "--store", "mysql:x").json["error"] == "unsupported"
    assert hapax("list", "--json", "--store", "unix:nobody.sock").json["error"] == "unavailable"


# ---- settings ---------------------------------------------------------------------------

# What the line has beats the environment, which beats the file; and hapax config says which it was.
def test_an_option_is_the_lines_else_the_environments_else_the_files(hapax, tmp_path):
    file = tmp_path / "gate.conf"
    file.write_text("# of the gate\n\nupstream = http://u:secret@api\r\n  lease=7s\nwait = 1s\non-expired = rerun\n"
                    "location = /a wait=1s\nlocation = /b off\nconfig-only = on\nprofile = payments\n")
    env = {"HAPAX_WAIT": "2s", "HAPAX_ON_EXPIRED": "hold", "HAPAX_RETENTION": "", "HAPAX_JSON": "off",
           "HAPAX_REDIS_PASSWORD": "secret", "HAPAX_NOTHING": "x", "HAPAX_CONFIG": str(file)}
    done = hapax("config", "--json", "serve", "--on-expired", "reconcile", **env)
    assert done.code == 0 and "secret" not in done.out, done
    found = {}
    for line in map(json.loads, done.out.splitlines()):
        found.setdefault(line["option"], []).append((line["value"], line["from"], line["where"]))
    assert {name: found[name] for name in ("upstream", "lease", "wait", "on-expired", "location", "config-only",
                                           "key-min", "timeout", "config", "HAPAX_REDIS_PASSWORD")} == {
        "upstream": [("http://u:***@api", "file", f"{file}:3")],
        "lease": [("7s", "file", f"{file}:4")],
        "wait": [("2s", "environment", "HAPAX_WAIT")],
        "on-expired": [("reconcile", "line", "--on-expired")],
        "location": [("/a wait=1s", "file", f"{file}:8"), ("/b off", "file", f"{file}:8")],
        "config-only": [("on", "file", f"{file}:9")],
        "key-min": [("16", "profile", "--profile")],
        "timeout": [("2s", "default", "default")],
        "config": [(str(file), "environment", "HAPAX_CONFIG")],
        "HAPAX_REDIS_PASSWORD": [("***", "environment", "HAPAX_REDIS_PASSWORD")],
    }
    assert re.search(r"^wait +2s  \(HAPAX_WAIT\)$", hapax("config", "serve", **env).out, re.M)
    env.update(HAPAX_OWNER="$http_x_account", HAPAX_UPSTREAM="http://127.0.0.1:9")
    conf = hapax("serve", "--config-only", "--module", g.MODULE, **env)
    assert conf.code == 0 and re.search(r"hapax_on_expired\s+hold;", conf.out), conf
    assert re.search(r"hapax_lease\s+7s;", conf.out)


@pytest.mark.parametrize("command, text, env, said", [
    ("serve", "\nleese = 5s", {}, 'line 2 of FILE: no setting "leese": did you mean "lease"?'),
    ("serve", "help = on", {}, 'line 1 of FILE: no setting "help"'),
    ("serve", "config = other", {}, 'line 1 of FILE: no setting "config"'),
    ("serve", "lease 5s", {}, "line 1 of FILE: not of the form NAME = VALUE"),
    ("serve", "lease = 5s\nlease = 6s", {}, "line 2 of FILE: lease stands on line 1, too"),
    ("serve", "drain = soon", {}, 'line 1 of FILE: drain "soon" is not a duration'),
    ("serve", "config-only = yes", {}, 'line 1 of FILE: config-only "yes" is not on or off'),
    ("serve", "x" * 70000, {}, 'the settings "FILE" are no text of at most 65536 bytes'),
    ("serve", "", {"HAPAX_DRAIN": "2h"}, 'HAPAX_DRAIN "2h" is not within 0 to 3600000 ms'),
    ("list", "limmit = 1", {}, 'line 1 of FILE: no setting "limmit"'),
])
def test_what_is_wrong_with_a_setting_is_said(hapax, tmp_path, command, text, env, said):
    file = tmp_path / "x.conf"
    file.write_text(text)
    done = hapax(command, "--config", file, **env)
    assert done.code == 2 and said.replace("FILE", str(file)) in done.err, done


# An act stands on its own line: the environment and a service's file name its store, and nothing else.
def test_an_act_takes_only_the_store_from_elsewhere(hapax, store, tmp_path):
    for key in "ab":
        hapax.completed(store, key)
    file = tmp_path / "gate.conf"
    file.write_text(f"store = {store}\nupstream = http://127.0.0.1:9\nscope = other\n")
    for more in (["--config", file], []):
        done = hapax("list", "--json", *more, HAPAX_LIMIT="1", HAPAX_STATE="no", HAPAX_STORE="" if more else store)
        assert done.code == 0 and len(done.out.splitlines()) == 2, done


# hapax run gives its command the operation's key, which is not where the keys of messages are.
def test_the_key_of_hapax_run_is_no_option(hapax):
    def key(**env):
        lines = hapax("config", "--json", "consume", HAPAX_KEY="/id", **env).out.splitlines()
        return next((line["from"] for line in map(json.loads, lines) if line["option"] == "key"), None)
    assert key() == "environment" and key(HAPAX_ATTEMPT="1") != "environment"


def test_words_after_two_dashes_are_no_options(hapax, store):
    hapax.completed(store, "--help")
    assert hapax("show", "--store", store, "--", "--help").code == 0


# ---- which store ------------------------------------------------------------------------

def test_the_store_is_the_option_else_the_variable_else_the_state_folder(hapax, folder):
    by_option, by_variable = f"rocksdb:{folder}/option", f"rocksdb:{folder}/variable"
    assert hapax("init", "--json", "--store", by_option, HAPAX_STORE=by_variable).json["store"] == by_option
    assert hapax("init", "--json", HAPAX_STORE=by_variable).json["store"] == by_variable
    assert hapax("init", "--json", XDG_STATE_HOME=f"{folder}/xdg").json["store"] == f"rocksdb:{folder}/xdg/hapax"
    assert hapax("init", "--json").json["store"] == f"rocksdb:{folder}/.local/state/hapax"
    for below in [".local", ".local/state", ".local/state/hapax", "xdg", "xdg/hapax"]:
        assert (folder / below).stat().st_mode & 0o777 == 0o700, below


def test_looking_makes_no_store(hapax, folder, store):
    for words in (["list"], ["show", "k"], ["check"], ["purge"], ["resolve", "k", "--fail"]):
        result = hapax(*words, "--store", store)
        assert result.code == 3
        assert f'there is no store at "{store}"' in result.err
    assert not (folder / "store").exists()


def test_a_path_that_cannot_be_written_is_named(hapax, folder):
    (folder / "file").write_text("")
    for path in (f"{folder}/file/store", f"{folder}/no/folder/store"):
        result = hapax("init", "--store", f"rocksdb:{path}")
        assert result.code in (2, 3)
        assert path in result.err


# As a user for whom permissions count, also where root runs the tests.
def test_a_folder_without_permission_is_named(hapax, folder):
    binary = shutil.copy(HAPAX, folder / "hapax")
    (folder / "closed").mkdir()
    (folder / "closed").chmod(0o555)
    folder.chmod(0o755)
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    result = subprocess.run([binary, "init", "--store", f"rocksdb:{folder}/closed/store"], capture_output=True,
                            text=True, env=hapax.env, **user)
    assert result.returncode in (2, 3) and f"{folder}/closed/store" in result.stderr


def test_memory_is_a_store_that_ends_with_the_process(hapax):
    assert hapax("list", "--store", "memory:").code == 0
    assert hapax("show", "--store", "memory:", "k").code == 1
    assert hapax("check", "--store", "memory:").code in (0, 1)


def test_what_cannot_be_printed_is_a_failure(hapax):
    with open("/dev/full", "w") as full:
        assert subprocess.run([HAPAX, "--version"], stdout=full, stderr=subprocess.DEVNULL).returncode == 3


# ---- init, check ------------------------------------------------------------------------

def test_init_makes_the_store_once(hapax, folder, store):
    said = hapax("init", "--print", "--store", store)
    assert said.code == 0 and f"would make the folder {folder}/store" in said.out
    assert not (folder / "store").exists()
    assert hapax("init", "--store", store, "--json").json["created"] is True
    assert (folder / "store").stat().st_mode & 0o777 == 0o700
    again = hapax("init", "--store", store)
    assert again.code == 0 and "already" in again.out
    assert "already" in hapax("init", "--print", "--store", store).out
    assert "nothing" in hapax("init", "--store", "memory:").out


def test_check_is_calm_about_a_safe_store_and_warns_of_an_unsynced_one(hapax, store):
    hapax("init", "--store", store)
    safe = hapax("check", "--store", store, "--json")
    assert safe.code == 0
    assert safe.lines and all(line.keys() == {"danger", "level", "text"} and not line["danger"] for line in safe.lines)
    unsafe = hapax("check", "--store", store + "?sync=off")
    assert unsafe.code == 1
    assert re.search(r"^danger  ", unsafe.out, re.M)


def checked(hapax, store, *words, **env):
    """What hapax check says of a door with these options: (level, text), the store's own lines left out."""
    done = hapax("check", "--store", store, "--json", "--", *words, **env)
    assert done.code in (0, 1), done.err
    assert done.code == any(line["level"] == "danger" for line in done.lines)
    return [(line["level"], line["text"]) for line in done.lines if "record" not in line["text"]]


SERVE = ["serve", "--upstream", "http://127.0.0.1:9000", "--status", "127.0.0.1:8081"]
SAFE = [*SERVE, "--profile", "payments", "--owner", "$jwt_sub"]
CONSUME = ["consume", "--from", "amqp://localhost/?queue=q", "--to", "http://localhost:9000/", "--retention", "7d"]


def test_check_has_nothing_against_payments(hapax, store, tmp_path):
    """It says what the settings promise, and no more."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    secret.chmod(0o600)
    hapax("init", "--store", store)
    lines = checked(hapax, store, *SAFE, HAPAX_SECRET_FILE=str(secret))
    assert [line for line in lines if line[0] != "ok"] == []
    assert lines[0] == ("ok", "no effect happens twice: after a crash, a cut connection or a 500 an operator decides "
                        "(hapax list --state unknown); each owner ($jwt_sub) has keys of its own; an answer is kept "
                        "for 7d; requests without a key are refused")


@pytest.mark.some(9)
@pytest.mark.parametrize("words, level, said", [
    (SERVE, "warning", "an effect may happen twice: after a crash"),
    (SERVE, "warning", "no --owner: tenants who are told apart by something else than credentials"),
    ([*SERVE, "--caller", "none"], "danger", "--caller is none, and there is no --owner"),
    ([*SERVE, "--scope", "$http_x_tenant"], "warning", '--scope "$http_x_tenant": clients write that themselves'),
    ([*SERVE, "--owner", "$http_x_tenant"], "danger", '--owner "$http_x_tenant": clients write that themselves'),
    ([*SERVE, "--owner", "${http_x_tenant}"], "danger", '--owner "${http_x_tenant}": clients write that themselves'),
    ([*SAFE, "--owner", "$http_x_api_key"], "warning", '--owner "$http_x_api_key": a new token begins new keys'),
    ([*SAFE, "--owner", "$http_authorization"], "warning", "an effect may happen twice: a new token begins new keys"),
    ([*SAFE, "--owner", "$host${cookie_sid}"], "warning", '--owner "$host${cookie_sid}": a new token begins new keys'),
    ([*SERVE, "--scope", "$request_uri"], "warning", '--scope "$request_uri": clients write that themselves'),
    ([*SAFE, "--on-store-error", "open"], "danger", "on-store-error is open"),
    ([*SAFE, "--rerun-completed", "on"], "danger", "rerun-completed is on: what is done runs again"),
    ([*SAFE, "--on-failed", "retry"], "danger", "on-failed is retry: a 500 that comes after"),
    ([*SAFE, "--class", "408 503 not_run"], "danger", "a proxy answers 503 after the request was sent"),
    ([*SAFE, "--class", "5xx not_run "], "danger", "a proxy answers 5xx after the request was sent"),
    ([*SAFE, "--location", "/v1 on_expired=rerun"], "warning", "on_expired=rerun lets an effect happen twice there"),
    ([*SAFE, "--retention", "1h"], "warning", "retention is 1h: a client or a broker that repeats later"),
    ([*SAFE[:3], "--owner", "$jwt_sub"], "warning", "/hapax-status is open to this machine"),
    ([*SAFE[:3], "--status", "0.0.0.0:8081"], "warning", "--status 0.0.0.0:8081: whoever reaches that address"),
    ([*SAFE, "--listen", "0.0.0.0:8080"], "warning", "--listen 0.0.0.0:8080 without --tls-cert"),
    (["serve", "--upstream", "http://10.0.0.1:9000"], "warning", '--upstream is not encrypted on the way to "10.0.0.1'),
    (CONSUME, "warning", "no --owner: where the messages of several tenants are in one queue"),
    ([*CONSUME, "--from", "amqp://u:p@10.0.0.1/?queue=q"], "danger", '--from is not encrypted on the way to "10.0.0.1'),
    ([*CONSUME, "--from", "amqps://mq/?queue=q&tls_verify=off"], "danger", "--from does not verify whom it talks to"),
    ([*CONSUME, "--from", "kafka://localhost:1,mq:9092/t?group=g"], "danger", 'not encrypted on the way to "mq"'),
    ([*CONSUME, "--from", "kafka://mq/t?group=g&security.protocol=sasl_plaintext"], "danger", "--from is not enc"),
    ([*CONSUME, "--from", "sqs://eu-west-1/q?endpoint=http://mq:9324"], "danger", 'not encrypted on the way to "mq"'),
    (["lambda"], "warning", "no --owner: tenants who are told apart by something else than credentials"),
    (["lambda", "--on-store-error", "open"], "danger", "on-store-error is open"),
    ([*CONSUME, "--to", "http://[fd00::1]:9000/"], "warning", '--to is not encrypted on the way to "fd00::1"'),
])
def test_check_warns_of_each_dangerous_setting(hapax, store, words, level, said):
    """With its level, what follows, and what to set instead."""
    given = dict(zip(words[1::2], words[2::2]))  # a later one counts
    words = [words[0], *(word for option in given.items() for word in option)]
    hapax("init", "--store", store)
    lines = [line for line in checked(hapax, store, *words) if said in line[1]]
    assert len(lines) == 1 and lines[0][0] == level
    assert "; " in lines[0][1]


@pytest.mark.some(3)
@pytest.mark.parametrize("words, said", [
    ([*SAFE, "--class", "409+retry-after not_run"], '--class "'),
    ([*SAFE, "--class", "503 unknown"], '--class "'),
    ([*SERVE, "--class", "503 not_run"], '--class "'),  # under rerun it is so anyway
    ([*SERVE, "--owner", "$http_authorization"], "clients write that themselves"),
    ([*SERVE, "--owner", "$ssl_client_s_dn"], "--owner"),
    ([*SAFE, "--scope", "$http_x_tenant"], "--scope"),
    ([*CONSUME, "--owner", "tenant"], "--owner:"),
    (["consume", "--from", "amqps://mq/?queue=q", "--to", "https://api/"], "not encrypted"),
    (["consume", "--from", "kafka://mq/t?group=g&sasl.username=u&sasl.password=p", "--to", "https://a/"], "not enc"),
    (["consume", "--from", "kafka://mq/t?group=g&security.protocol=ssl", "--to", "https://api/"], "not encrypted"),
])
def test_check_does_not_warn_of_what_is_safe(hapax, store, words, said):
    hapax("init", "--store", store)
    assert not [line for line in checked(hapax, store, *words) if said in line[1] and line[0] != "ok"]


def test_check_warns_of_a_missing_secret_and_of_cores(hapax, store, tmp_path):
    hapax("init", "--store", store)
    assert "warning no secret: who reads the store" in hapax("check", "--store", store).out
    assert "warning no secret" in hapax("check", "--store", store, HAPAX_SECRET_FILE="").out
    assert "HAPAX_CORE_DUMPS" not in hapax("check", "--store", store).out
    assert "warning HAPAX_CORE_DUMPS is on" in hapax("check", "--store", store, HAPAX_CORE_DUMPS="on").out


def test_check_takes_doors_with_their_own_mistakes(hapax, store):
    """A wrong option is told as the door itself tells it; what is no door has no settings to judge."""
    done = hapax("check", "--store", store, "--", "serve", "--upstream", "nowhere")
    assert done.code == 2 and '--upstream "nowhere"' in done.err
    for words in (["list"], [], ["nothing"]):
        done = hapax("check", "--store", store, "--", *words)
        assert done.code == 2 and "serve, consume, lambda, door or run" in done.err


# ---- show, list -------------------------------------------------------------------------

def test_show_prints_the_stored_outcome(hapax, store):
    hapax.completed(store, "order-1", 201, r"Content-Type: text/plain\r\nX: y\r\n", r"line 1\nline 2\n", "cards")
    text = hapax("show", "--store", store, "--scope", "cards", "order-1")
    assert text.code == 0
    for part in (r"^state +completed$", r"^scope +cards$", r"^status +201$", r"^headers +Content-Type: text/plain$",
                 r"^ +X: y$", r"^ +line 2$", r"^expires .*\(in 23h59m\)$"):
        assert re.search(part, text.out, re.M), part
    record = hapax("show", "--store", store, "--scope", "cards", "order-1", "--json").json
    more = {"body", "body_size", "trace", "repeat", "now_us", "steps"}
    assert record.keys() == RECORD | more and record["steps"] == []
    assert record["headers"] == ["Content-Type: text/plain", "X: y"]
    assert (record["status"], record["body"], record["attempt"]) == (201, "line 1\nline 2\n", 1)
    assert record["lease_until_us"] is None and record["resolved_by"] is None
    assert record["expires_us"] - record["updated_us"] == 86400 * 10**6
    by_id = hapax("show", "--store", store, "--id", record["id"], "--json").json
    assert by_id == {**record, "now_us": by_id["now_us"], "steps": None}


def test_a_body_that_is_no_text_is_base64(hapax, store):
    hapax.completed(store, "k", body=r"\xff\x00\x01a")
    record = hapax("show", "--store", store, "k", "--json").json
    assert base64.b64decode(record["body_base64"]) == b"\xff\x00\x01a"
    assert "body" not in record
    assert "4 bytes, not text" in hapax("show", "--store", store, "k").out


def test_foreign_bytes_do_not_reach_the_terminal(hapax, store):
    hapax.completed(store, "k", headers=r"X: \x1b[2J\x9b\r\n", body=r"a\x1b]0;title\x07b\xc2\x9bc", scope="s\x1b[1m")
    for result in (hapax("show", "--store", store, "--scope", "s\x1b[1m", "k"), hapax("list", "--store", store),
                   hapax("show", "--store", store, "--scope", "s\x1b[1m", "k", "--json")):
        assert result.code == 0
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out)
    assert r"\x1b]0;title\x07b" in hapax("show", "--store", store, "--scope", "s\x1b[1m", "k").out
    assert hapax("list", "--store", store, "--json").json["scope"] == "s\x1b[1m"


def test_an_operation_that_is_not_there_is_a_no(hapax, store):
    hapax("init", "--store", store)
    assert hapax("show", "--store", store, "k").code == 1
    result = hapax("show", "--store", store, "k", "--json")
    assert result.code == 1 and result.json["state"] == "absent"


# The likeliest mistakes with a key: its quotes, its scope, its owner.
def test_a_key_is_found_as_it_stands_in_its_header(hapax, store):
    hapax.completed(store, "d", body="plain")
    hapax.completed(store, '"q"', body="quoted")
    assert hapax("show", "--store", store, '"d"', "--json").json["body"] == "plain"
    assert hapax("show", "--store", store, '"q"', "--json").json["body"] == "quoted"
    assert hapax("show", "--store", store, '"q"', "--json").json["steps"] == []
    assert hapax("resolve", "--store", store, '"d"', "--forget", "--force").code == 0
    assert hapax("show", "--store", store, "d").code == 1
    wrong = hapax("show", "--store", store, "'d'")
    assert wrong.code == 1 and 'in the scope "default"' in wrong.err and "--scope, --owner" in wrong.err
    assert "quotes are no part of a key" in wrong.err
    assert "quotes" not in hapax("show", "--store", store, "--scope", "s", "d").err


# An operation of an owner is found under that owner's name alone, and listed by it.
def test_an_owner_has_keys_of_its_own(hapax, folder, store):
    hapax.completed(store, "k", body="nobody's")
    for owner in ("acme", "other"):
        hapax.op(store, "owned", "k", "1", owner, f"POST /{owner}")
    show = hapax("show", "--store", store, "k", "--owner", "acme")
    assert re.search(r"^what +POST /acme$", show.out, re.M) and re.search(r"^owner +611983f3442023dd", show.out, re.M)
    assert hapax("show", "--store", store, "k", "--json").json["body"] == "nobody's"
    def whats(*words):
        return [line["what"] for line in hapax("list", "--store", store, "--json", *words).lines]
    assert whats("--owner", "acme") == ["POST /acme"] and whats("--owner", "nobody") == []
    assert sorted(whats()) == ["", "POST /acme", "POST /other"]
    assert re.search(r"default +POST /acme$", hapax("list", "--store", store).out, re.M)
    done = hapax("resolve", "--store", store, "k", "--owner", "acme", "--complete", "200", "--force")
    assert done.code == 0
    assert hapax("show", "--store", store, "k", "--owner", "other", "--json").json["state"] == "started"
    for words in (["list"], ["show", "k"]):
        assert hapax(*words, "--store", store, "--owner", "").code == 2
        assert hapax(*words, "--store", store, "--owner", "o" * 256).code == 2


def test_a_running_attempt_shows_its_lease(hapax, store):
    assert hapax.op(store, "claim", "k", "1", 3600000, "hold") == "claimed"
    text = hapax("show", "--store", store, "k").out
    assert re.search(r"^state +started$", text, re.M)
    assert re.search(r"^lease +live for another (59m.*|1h)$", text, re.M)
    assert re.search(r"^hold +yes", text, re.M)
    record = hapax("list", "--store", store, "--json").json
    assert record["hold"] and record["lease_until_us"] - record["updated_us"] == 3600 * 10**6


def test_list_picks_by_state_scope_and_age(hapax, store):
    hapax.completed(store, "a", scope="one")
    hapax.completed(store, "b", scope="two")
    hapax.op(store, "claim", "c", "1", 60000)
    hapax.unknown(store, "d")
    def states(*words):
        return sorted(line["state"] for line in hapax("list", "--store", store, "--json", *words).lines)
    assert states() == ["completed", "completed", "started", "unknown"]
    assert states("--state", "started", "--state", "unknown") == ["started", "unknown"]
    assert states("--scope", "one") == ["completed"]
    assert states("--older", "1h") == [] and len(states("--older", "0")) == 4
    assert len(states("--limit", "3")) == 3
    empty = hapax("list", "--store", store, "--scope", "none")
    assert (empty.code, empty.out) == (0, "") and "there are none" in empty.err
    assert hapax("list", "--store", store, "--json", "--scope", "none").out == ""
    assert all(line.keys() == RECORD for line in hapax("list", "--store", store, "--json").lines)


def test_list_goes_on_past_a_page(hapax, store):
    made = 2600  # more than a page has
    hapax.many_unknown(f"{store}?sync=off", [f"k{n}" for n in range(made)])

    def ids(limit):
        return [line["id"] for line in hapax("list", "--store", store, "--json", "--limit", limit).lines]
    assert len(set(ids(2500))) == 2500
    assert len(ids(10**9)) == made
    table = hapax("list", "--store", store, "--limit", "5")
    head, *rows = table.out.splitlines()
    assert head.split() == ["ID", "STATE", "ATTEMPT", "AGE", "LEASE", "SCOPE", "WHAT"]
    assert len(rows) == 5 and all(len(row) == len(rows[0]) for row in rows)
    assert "there may be more; this is --limit 5" in table.err


# ---- resolve ----------------------------------------------------------------------------

def test_an_unknown_operation_is_completed_by_hand(hapax, folder, store):
    hapax.unknown(store, "k")
    (folder / "receipt").write_bytes(b"paid \xff")
    result = hapax("resolve", "--store", store, "k", "--complete", "201", "--header", "A: b", "--header", "C:d",
                   "--body", folder / "receipt", "--by", "Zoe")
    assert result.code == 0 and result.out.startswith("completed")
    record = hapax("show", "--store", store, "k", "--json").json
    assert (record["state"], record["status"], record["headers"]) == ("completed", 201, ["A: b", "C:d"])
    assert base64.b64decode(record["body_base64"]) == b"paid \xff"
    assert record["resolved_by"] == "Zoe" and record["resolved_us"] == record["updated_us"]
    assert "resolved by   Zoe" in hapax("show", "--store", store, "k").out
    assert hapax.op(store, "claim", "k", "2") == "completed"


# What an operator has replaced is still told, and what held for the attempt is not.
def test_what_was_there_before_is_shown(hapax, folder, store):
    assert hapax.op(store, "claim", "k", "1", 60000, "hold") == "claimed"
    assert hapax.op(store, "fail", "k", "1", "unknown", "default", 502) == "ok"
    (folder / "receipt.json").write_text("{}")
    assert hapax("resolve", "--store", store, "k", "--complete", "200", "--body", folder / "receipt.json").code == 0
    show = hapax("show", "--store", store, "k")
    assert re.search(r"^replaced +unknown, status 502$", show.out, re.M) and not re.search("^hold", show.out, re.M)
    record = hapax("show", "--store", store, "k", "--json").json
    assert (record["replaced_state"], record["replaced_status"], record["hold"]) == ("unknown", 502, True)
    assert record["headers"] == ["Content-Type: application/json"]


# The body's type is guessed from its file's name, where no header gives it.
@pytest.mark.some(3)
@pytest.mark.parametrize("name, words, headers", [
    ("a.html", [], ["Content-Type: text/html"]),
    ("b.TXT", ["--header", "A: b"], ["A: b", "Content-Type: text/plain"]),
    ("c.json", ["--header", "content-type: application/hal+json"], ["content-type: application/hal+json"]),
    ("d", [], []), ("e.weird", [], []), ("x.json/f", [], []),
])
def test_the_type_of_a_body_is_guessed(hapax, folder, store, name, words, headers):
    hapax.unknown(store, "k")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x")
    done = hapax("resolve", "--store", store, "k", "--complete", "200", "--body", folder / name, *words)
    assert done.code == 0
    assert hapax("show", "--store", store, "k", "--json").json["headers"] == headers


def test_a_body_can_come_from_standard_input(hapax, store):
    hapax.unknown(store, "k")
    assert hapax("resolve", "--store", store, "k", "--complete", "200", "--body", "-", stdin=b"typed").code == 0
    assert hapax("show", "--store", store, "k", "--json").json["body"] == "typed"


def test_a_body_over_the_limit_is_refused(hapax, folder, store):
    hapax.unknown(store, "k")
    (folder / "big").write_bytes(b"x" * (16 * 2**20 + 1))
    result = hapax("resolve", "--store", store, "k", "--complete", "200", "--body", "big", "--json")
    assert result.code == 2 and result.json["error"] == "too_big"
    assert "over 16777216 bytes" in result.json["text"]


def test_a_failed_operation_runs_again(hapax, store):
    hapax.unknown(store, "k")
    assert hapax.op(store, "claim", "k", "2") == "unknown"
    result = hapax("resolve", "--store", store, "k", "--fail", "--json")
    assert result.code == 0
    assert result.json["resolved"] is True and result.json["state"] == "failed"
    assert result.json["resolved_by"]
    assert hapax.op(store, "claim", "k", "3") == "claimed"
    assert hapax("show", "--store", store, "k", "--json").json["attempt"] == 2


def test_a_forgotten_operation_is_gone(hapax, store):
    hapax.unknown(store, "k")
    result = hapax("resolve", "--store", store, "k", "--forget", "--json")
    assert (result.code, result.json["state"]) == (0, "absent")
    assert hapax("show", "--store", store, "k").code == 1
    again = hapax("resolve", "--store", store, "k", "--forget")
    assert again.code == 1 and "there is no such operation" in again.err


def test_an_attempt_that_is_not_the_last_is_not_resolved(hapax, store):
    hapax.unknown(store, "k")
    refused = hapax("resolve", "--store", store, "k", "--fail", "--if-attempt", "2", "--json")
    assert refused.code == 1
    assert refused.json["resolved"] is False and refused.json["attempt"] == 1
    assert "number 1, not 2" in refused.json["text"]
    assert hapax("show", "--store", store, "k", "--json").json["state"] == "unknown"
    assert hapax("resolve", "--store", store, "k", "--fail", "--if-attempt", "1").code == 0


def test_a_live_attempt_is_left_alone_unless_forced(hapax, store):
    assert hapax.op(store, "claim", "k", "1", 3600000) == "claimed"
    refused = hapax("resolve", "--store", store, "k", "--fail")
    assert refused.code == 1 and re.search(r"attempt 1 still runs \(its lease lasts another (59m.*|1h)\)", refused.err)
    assert hapax("resolve", "--store", store, "k", "--complete", "200", "--force").code == 0
    assert hapax.op(store, "complete", "k", "1", 500) == "lost"
    assert hapax("show", "--store", store, "k", "--json").json["status"] == 200


def test_a_completed_operation_is_left_alone_unless_forced(hapax, store):
    hapax.completed(store, "k", 201)
    refused = hapax("resolve", "--store", store, "k", "--complete", "500")
    assert refused.code == 1 and "completed already, with status 201" in refused.err
    assert hapax("resolve", "--store", store, "k", "--complete", "500", "--force").code == 0
    assert hapax("show", "--store", store, "k", "--json").json["status"] == 500


def test_an_operation_is_resolved_by_its_id(hapax, store):
    hapax.unknown(store, "k")
    name = hapax("list", "--store", store, "--json").json["id"]
    assert hapax("resolve", "--store", store, "--id", name, "--fail").code == 0


@pytest.fixture(params=["rocksdb", "redis", *(pytest.param(kind, marks=pytest.mark.ci)
                                              for kind in ("keeper", "postgres"))])
def any_store(request, hapax, store):
    if request.param == "redis":
        with Redis().start() as server:
            yield server.uri()
    elif request.param == "postgres":
        with Postgres().start() as server:
            uri = server.uri(server.database())
            assert hapax("init", "--store", uri).code == 0
            yield uri
    else:
        assert hapax("init", "--store", store).code == 0
        if request.param == "keeper":
            hapax.keep(store)
        yield store


def test_many_unknown_operations_are_resolved_at_once(hapax, folder, any_store):
    """More than a page. Those of other scopes and states stay; each act leaves two lines, which a dry run does not."""
    keys = [f"k{i}" for i in range(105)]
    hapax.many_unknown(any_store, keys)
    hapax.op(any_store, "claim", "other", "1", 30000, "hold", 86400000, "other")
    assert hapax.op(any_store, "fail", "other", "1", "unknown", "other") == "ok"
    hapax.completed(any_store, "done")
    many = ["resolve", "--store", any_store, "--state", "unknown", "--scope", "default", "--older", "0",
            "--audit", "trail"]
    tried = hapax(*many, "--fail", "--dry-run", "--limit", "3")
    assert tried.code == 0 and "3 operations would be resolved as failed; --dry-run changed nothing" in tried.out
    assert len(re.findall(r"^failed  .* unknown ", tried.out, re.M)) == 3 and "--limit 3" in tried.err
    assert not (folder / "trail").exists()
    *failed, last = hapax(*many, "--fail", "--json").lines
    assert last == {"found": 105, "resolved": 105, "passed_over": 0, "more": False, "dry_run": False}
    assert {(line["state"], line["result"]) for line in failed} == {("unknown", "failed")}
    assert len({line["id"] for line in failed}) == 105
    states = [line["state"] for line in hapax("list", "--store", any_store, "--json").lines]
    assert sorted(states) == sorted(["failed"] * 105 + ["unknown", "completed"])
    trail = [json.loads(line) for line in (folder / "trail").read_text().splitlines()]
    assert [line["end"] for line in trail].count("ok") == 105 == [line["end"] for line in trail].count("asked")
    assert {line["id"] for line in trail} == {line["id"] for line in failed}
    none = hapax(*many, "--fail")
    assert (none.code, none.out) == (0, "") and "there are none" in none.err


def test_many_are_chosen_by_owner_and_those_that_run_are_passed_over(hapax, store):
    assert hapax.op(store, "owned", "k", "1", "acme", "POST /charges") == "claimed"
    def resolved(owner):
        return hapax("resolve", "--store", store, "--state", "started", "--owner", owner, "--forget", "--json").lines
    assert [line.get("found") for line in resolved("other")] == [0]
    line, last = resolved("acme")
    assert (line["what"], line["result"], last["passed_over"]) == ("POST /charges", "passed over", 1)
    assert hapax("list", "--store", store, "--json").json["state"] == "started"


# Each kind of act, of which a forget leaves no record: who did it by the system's word, and what stood there.
def test_every_act_of_an_operator_leaves_lines(hapax, folder, any_store):
    def resolve(*words):
        """The lines that the act added."""
        before = trail.read_text() if trail.exists() else ""
        result = hapax("resolve", "--store", any_store, *words, HAPAX_AUDIT_FILE=str(trail))
        return result, [json.loads(line) for line in trail.read_text()[len(before):].splitlines()]

    trail, me = folder / "trail", pwd.getpwuid(os.getuid()).pw_name
    shown = re.sub(":[^:@/]*@", ":***@", any_store)
    hapax.unknown(any_store, "k")
    result, (asked, answered) = resolve("k", "--complete", "201", "--by", "Zoe")
    assert result.code == 0 and (asked["user"], asked["by"], asked["store"]) == (me, "Zoe", shown)
    assert (asked["act"], asked["status"]) == ("complete", 201)
    assert (asked["was"], asked["was_in"], asked["was_attempt"], asked["end"]) == ("unknown", "default", 1, "asked")
    assert answered["end"] == "ok" and answered["id"] == asked["id"]
    result, (asked, answered) = resolve("k", "--forget")
    assert result.code == 1 and (asked["was"], asked["was_status"], answered["end"]) == ("completed", 201, "completed")
    result, (asked, answered) = resolve("k", "--forget", "--force")
    assert result.code == 0 and (asked["act"], asked["force"], answered["end"]) == ("forget", "yes", "ok")
    result, (asked, answered) = resolve("k", "--fail")
    assert result.code == 1 and (asked["was"], answered["end"]) == ("absent", "absent")
    assert trail.stat().st_mode & 0o777 == 0o600 and '"k"' not in trail.read_text()


def test_without_a_line_in_the_audit_file_nothing_is_done(hapax, folder, store):
    hapax.unknown(store, "k")
    full = hapax("resolve", "--store", store, "k", "--forget", "--audit", "/dev/full")
    assert full.code == 3 and 'not done, since the audit file "/dev/full" takes no line: No space left' in full.err
    many = hapax("resolve", "--store", store, "--state", "unknown", "--forget", "--audit", "/dev/full")
    assert many.code == 3 and "not done" in many.err
    none = hapax("resolve", "--store", store, "k", "--forget", "--audit", folder / "no/trail")
    assert none.code == 2 and "cannot open the audit file" in none.err
    assert hapax("show", "--store", store, "k", "--json").json["state"] == "unknown"


# The file may not grow by its second line. A keeper has the store's files, which the limit would meet as well.
@pytest.mark.parametrize("words", [["switch", "shadow"], ["erase", "--scope", "s"]])
def test_an_act_whose_last_line_is_not_taken_is_not_called_not_done(hapax, folder, store, words):
    hapax.keep(store)
    words = [*words, "--store", f"unix:{folder}/store/keeper.sock", "--audit", "trail"]
    assert hapax(*words).code == 0
    size = (folder / "trail").stat().st_size
    (folder / "trail").unlink()
    done = hapax.run("sh", "-c", 'trap "" XFSZ; exec prlimit --fsize="$0" "$@"', size * 3 // 4, HAPAX, *words)
    assert done.code == 0 and "lacks how this act ended: No space left" in done.err and "not done" not in done.err
    assert json.loads((folder / "trail").read_text().splitlines()[0])["end"] == "asked"


@pytest.fixture
def with_log(hapax):
    """Runs a command for which the socket `log` of its folder is the system's log."""
    if hapax.run("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt").code != 0:
        pytest.skip("this machine lets nobody mount a socket of his own")
    script = ('mkdir -p d && mount -t tmpfs none d && touch d/log d/null && mount --bind /dev/null d/null && '
              'mount --bind log d/log && mount --rbind d /dev && exec "$0" "$@"')
    return lambda *words: hapax.run("unshare", "-rm", "sh", "-c", script, HAPAX, *words)


def test_the_lines_go_to_the_systems_log(hapax, folder, store, with_log):
    hapax.unknown(store, "k")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(folder / "log"))
        log.settimeout(PATIENCE)
        done = with_log("resolve", "--store", store, "k", "--fail")
        assert done.code == 0 and done.err == "", done.err
        lines = [log.recv(9000).decode() for _ in range(2)]
    assert [re.match(r"<85>.* hapax\[\d+\]: (\{.*)", line) is not None for line in lines] == [True, True], lines
    assert [json.loads(line[line.index("{"):])["end"] for line in lines] == ["asked", "ok"]


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_log_whose_daemon_is_gone_takes_no_lines(hapax, folder, store, with_log, kind):
    """Its socket is still there."""
    assert hapax("init", "--store", store).code == 0
    with socket.socket(socket.AF_UNIX, kind) as log:
        log.bind(str(folder / "log"))
        if kind == socket.SOCK_STREAM:
            log.listen()
        assert with_log("switch", "on", "--store", store).err == ""
    done = with_log("switch", "on", "--store", store)
    assert done.code == 0 and done.err.startswith("hapax switch: done, but this act leaves no audit line: "), done.err


def test_a_record_that_changes_meanwhile_is_passed_over(hapax, folder, store):
    """The command is stopped between what it lists and what it asks: its audit file is a pipe that is full."""
    hapax.unknown(store, "k")
    keeper = hapax.keep(store)
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    process = hapax.start("resolve", "--store", store, "--state", "unknown", "--fail", "--audit", "pipe", "--json")
    wait_until(lambda: "pipe" in pathlib.Path(f"/proc/{process.pid}/wchan").read_text(), "the first line")
    assert hapax("resolve", "--store", store, "k", "--complete", "200").code == 0
    os.set_blocking(reader, True)
    while os.read(reader, 65536)[-1:] == b"x":
        pass
    line, last = map(json.loads, process.communicate(timeout=PATIENCE)[0].splitlines())
    assert line["result"] == "passed over" and (last["resolved"], last["passed_over"]) == (0, 1)
    assert hapax("show", "--store", store, "k", "--json").json["status"] == 200
    os.close(reader), os.close(writer)
    end(keeper)


def test_check_says_how_many_wait_for_an_operator(hapax, store):
    assert hapax("init", "--store", store).code == 0
    assert "unknown" not in hapax("check", "--store", store).out
    hapax.many_unknown(store, ["a", "b"])
    check = hapax("check", "--store", store)
    assert check.code == 0 and re.search(r"^warning +2 operations are unknown, one for \d+(ms|s):", check.out, re.M)


def test_an_act_without_a_trail_says_first_that_it_is_done(hapax, store):
    hapax.many_unknown(store, ["a"])
    done = hapax("resolve", "--store", store, "a", "--fail")
    said = "" if os.path.exists("/dev/log") else "hapax resolve: done, but this act leaves no audit line: "
    assert done.code == 0 and done.err.startswith(said) and bool(done.err) == bool(said)
    assert hapax("resolve", "--store", store, "a", "--forget", "--audit", "trail").err == ""


# ---- purge ------------------------------------------------------------------------------

def test_purge_removes_what_has_expired_and_nothing_else(hapax, store):
    hapax.completed(store, "short", retention_ms=1)
    hapax.completed(store, "long")
    wait_until(lambda: hapax("show", "--store", store, "short").code == 1, "expiry")
    assert hapax("purge", "--store", store, "--json").json == {"purged": 1, "settled": 0}
    assert hapax("purge", "--store", store).out == "removed 0 expired records\n"
    assert hapax("show", "--store", store, "long").code == 0


def test_purge_makes_dead_claims_under_hold_unknown(hapax, store):
    assert hapax.op(store, "claim", "held", "1", 1, "hold") == "claimed"
    assert hapax.op(store, "claim", "again", "1", 1, "rerun") == "claimed"
    wait_until(lambda: "1 left unfinished is now unknown" in hapax("purge", "--store", store).out,
               "the lease being over")
    assert hapax("purge", "--store", store, "--json").json == {"purged": 0, "settled": 0}
    assert [line["state"] for line in hapax("list", "--state", "unknown", "--store",
                                            store, "--json").lines] == ["unknown"]
    assert [line["state"] for line in hapax("list", "--state", "started", "--store",
                                            store, "--json").lines] == ["started"]


def test_purge_goes_on_until_a_signal(hapax, store):
    hapax("init", "--store", store)
    process = hapax.start("purge", "--store", store, "--every", "1s", "--json")
    for _ in range(2):
        assert json.loads(read_line(process)) == {"purged": 0, "settled": 0}
    assert end(process, signal.SIGINT) == 0


@pytest.mark.ci
def test_a_signal_amid_a_sweep_ends_it(hapax, store):
    """The signal waits for the first call of the sweep, which has more to look at."""
    hapax("bench", "--store", store, "--seconds", "1", "--duplicates", "0", "--clients", "512", "--size", "0")
    assert end(hapax.start("purge", "--every", "1h", "--store", store)) == 0


# ---- secrets ----------------------------------------------------------------------------

def write_secret(folder, name, text, mode=0o600):
    path = folder / name
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


def test_a_store_has_one_secret(hapax, folder, store):
    one, other = write_secret(folder, "one", b"first\n"), write_secret(folder, "other", b"second")
    assert hapax("init", "--store", store, HAPAX_SECRET_FILE=one).code == 0
    assert hapax("show", "--store", store, "k", HAPAX_SECRET_FILE=one).code == 1
    mismatch = hapax("show", "--store", store, "k", HAPAX_SECRET_FILE=other)
    assert mismatch.code == 3 and "another secret" in mismatch.err
    none = hapax("show", "--store", store, "k", "--json")
    assert none.code == 3 and none.json["error"] == "refused" and "HAPAX_SECRET_FILE" in none.json["text"]
    assert hapax("init", "--store", store, HAPAX_SECRET_FILE=other).code == 3
    assert hapax("list", "--store", store, "--json").out == ""
    assert hapax.op(store, "bind", "first") == "none"


def test_looking_ties_a_store_to_no_secret(hapax, folder, store):
    hapax("init", "--store", store)
    assert hapax("show", "--store", store, "k").code == 1
    assert hapax("init", "--store", store, HAPAX_SECRET_FILE=write_secret(folder, "one", b"first")).code == 0


@pytest.mark.parametrize("text, mode, why", [
    (b"hush", 0o644, "everybody can read it"),
    (b"", 0o600, "it is empty"),
    (b"\n", 0o600, "it is empty"),
    (b"x" * 4097, 0o600, "it is over 4096 bytes"),
])
def test_a_bad_secret_file_is_refused(hapax, folder, store, text, mode, why):
    hapax("init", "--store", store)
    path = write_secret(folder, "secret", text, mode)
    result = hapax("show", "--store", store, "k", HAPAX_SECRET_FILE=path)
    assert result.code == 2
    assert why in result.err and path in result.err
    assert text.decode().strip() == "" or text.decode().strip() not in result.err


def test_a_secret_of_the_greatest_length_is_taken(hapax, folder, store):
    path = write_secret(folder, "secret", b"x" * 4096 + b"\n")
    assert hapax("init", "--store", store, HAPAX_SECRET_FILE=path).code == 0
    missing = hapax("show", "--store", store, "k", HAPAX_SECRET_FILE=f"{folder}/none")
    assert missing.code == 2 and "No such file" in missing.err


# ---- keep -------------------------------------------------------------------------------

def test_a_held_store_is_reached_by_both_its_names(hapax, folder, store):
    keeper = hapax.keep(store)
    assert keeper.ready == f"hapax keep: holding {store}, serving unix:{folder}/store/keeper.sock (pid {keeper.pid})\n"
    assert (folder / "store/keeper.sock").stat().st_mode & 0o777 == 0o600
    hapax.completed(store, "k", body="once")
    for name in (store, f"unix:{folder}/store/keeper.sock"):
        assert hapax("show", "--store", name, "k", "--json").json["body"] == "once"
        assert len(hapax("list", "--store", name, "--json", "--scope", "default").lines) == 1
        assert hapax("check", "--store", name).code == 0
        assert hapax("purge", "--store", name).code == 0
        assert hapax("bench", "--store", name, "--seconds", "1", "--json").json["cycles"] > 0
    hapax.unknown(store, "u")
    assert hapax("resolve", "--store", store, "u", "--fail").code == 0
    assert end(keeper) == 0
    assert not (folder / "store/keeper.sock").exists()
    assert hapax("show", "--store", store, "k").code == 0


# How long a request may wait is counted by the clock that goes on while the machine sleeps, at both ends.
def test_the_service_manager_is_told(hapax, store, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        keeper = hapax.keep(store, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        assert [manager.recv(64) for _ in range(4)] == [b"READY=1"] + [b"WATCHDOG=1"] * 3
        assert end(keeper) == 0
    for wrong in ("", "x", "/" + "x" * 200, str(tmp_path / "none")):
        assert end(hapax.keep(store, NOTIFY_SOCKET=wrong, WATCHDOG_USEC="no number")) == 0


# The beat is the loop's own. It comes in time, too, while the loop pauses for two seconds, its database being away.
def test_a_relay_feeds_the_watchdog(hapax, tmp_path):
    away = f"127.0.0.1:{g.free_port()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        relay = hapax.start("relay", "--from", f"postgres://{away}/shop", "--to", f"amqp://{away}",
                            NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        began = time.monotonic()
        assert [manager.recv(64) for _ in range(17)] == [b"READY=1"] + [b"WATCHDOG=1"] * 16
        assert time.monotonic() - began < 12  # by its pauses alone it would be 24
        assert end(relay) == 0


def test_a_completion_knows_commands_and_options(hapax):
    script = hapax("help", "--completion", "bash").out
    ask = 'COMP_WORDS=(hapax "$@"); COMP_CWORD=$#; _hapax; printf "%s\\n" "${COMPREPLY[@]}"'
    for words, expected in ((["se"], "serve"), (["keep", "--li"], "--listen"), (["show", "--js"], "--json")):
        done = subprocess.run(["bash", "-c", script + ask, "bash", *words], capture_output=True, text=True, check=True)
        assert done.stdout == expected + "\n" and not done.stderr
    zsh = hapax("help", "--completion", "zsh").out
    assert zsh.startswith("#compdef hapax\n") and "--listen=[" in zsh
    wrong = hapax("help", "--completion", "fish")
    assert wrong.code == 2 and "bash or zsh" in wrong.err


def test_a_keeper_whose_machine_was_suspended_answers(hapax, tmp_path):
    (tmp_path / "slept").write_bytes(bytes(1800))
    keeper = hapax.start("keep", "--store", f"rocksdb:{tmp_path}/store",
                         LD_PRELOAD=str(HAPAX.parent / "tests/e2e/relay/libsuspended.so"),
                         HAPAX_SUSPENDED=str(tmp_path / "slept"), ASAN_OPTIONS="verify_asan_link_order=0")
    read_line(keeper)
    done = hapax("list", "--store", f"unix:{tmp_path}/store/keeper.sock")
    assert done.code == 0, done
    end(keeper)


def test_keep_serves_a_second_socket_and_says_so_in_json(hapax, folder, store):
    listen = f"unix:{folder}/more.sock"
    keeper = hapax.start("keep", "--store", store, "--listen", listen, "--mode", "0666", "--json")
    ready = json.loads(read_line(keeper))
    assert ready == {"holding": store, "serving": [f"unix:{folder}/store/keeper.sock", listen], "pid": keeper.pid}
    assert (folder / "more.sock").stat().st_mode & 0o777 == 0o666
    check = hapax("check", "--store", listen)
    assert check.code == 0 and "more.sock\" is open to each user of this machine" in check.out
    hapax.completed(listen, "k")
    assert hapax("show", "--store", store, "k").code == 0
    assert end(keeper, signal.SIGINT) == 0
    assert not (folder / "more.sock").exists()


def test_a_group_may_be_let_in(hapax, folder, store):
    hapax.keep(store, "--group", os.getgid())
    made = (folder / "store/keeper.sock").stat()
    assert (made.st_mode & 0o777, made.st_gid) == (0o660, os.getgid())
    check = hapax("check", "--store", store)
    assert check.code == 0 and f"is open to the group {os.getgid()}" in check.out
    assert hapax("keep", "--store", f"rocksdb:{folder}/b", "--group", "no-such-group").code in (2, 3)
    assert hapax("keep", "--store", f"rocksdb:{folder}/b", "--group", "a&b=c").code == 2


def test_a_second_keeper_is_refused_with_the_pid_of_the_first(hapax, store):
    keeper = hapax.keep(store)
    second = hapax("keep", "--store", store)
    assert second.code == 3
    assert f"process {keeper.pid} holds it" in second.err
    as_json = hapax("keep", "--store", store, "--json")
    assert as_json.code == 3 and as_json.json["error"] == "refused"
    assert hapax("init", "--store", store).code == 0


def test_a_stale_socket_is_replaced(hapax, folder, store):
    hapax("init", "--store", store)
    for path in (folder / "store/keeper.sock", folder / "more.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    hapax.keep(store, "--listen", f"unix:{folder}/more.sock")
    assert hapax("list", "--store", f"unix:{folder}/more.sock").code == 0
    assert hapax("list", "--store", f"unix:{folder}/store/keeper.sock").code == 0


def test_a_file_that_is_no_socket_is_not_replaced(hapax, folder, store):
    (folder / "notes").write_text("mine")
    result = hapax("keep", "--store", store, "--listen", f"unix:{folder}/notes")
    assert result.code in (2, 3) and f"{folder}/notes" in result.err
    assert (folder / "notes").read_text() == "mine"


def test_a_killed_keeper_loses_nothing(hapax, store):
    keeper = hapax.keep(store)
    for key in range(20):
        hapax.completed(store, f"k{key}")
    assert end(keeper, signal.SIGKILL) == -signal.SIGKILL
    hapax.keep(store)
    assert len(hapax("list", "--store", store, "--json", "--state", "completed").lines) == 20


def test_a_keeper_ends_while_clients_are_busy(hapax, store):
    keeper = hapax.keep(store)
    clients = [hapax.start("bench", "--store", store, "--seconds", "30", "--json") for _ in range(2)]
    wait_until(lambda: len(hapax("list", "--store", store, "--json", "--limit", "50").lines) == 50, "load")
    assert end(keeper) == 0
    for client in clients:
        end(client, signal.SIGINT)
    assert len(hapax("list", "--store", store, "--json", "--limit", "50").lines) == 50


def test_a_store_without_its_keeper_cannot_be_reached(hapax, folder):
    result = hapax("list", "--store", f"unix:{folder}/nobody.sock")
    assert result.code == 3
    assert f"{folder}/nobody.sock" in result.err


# ---- bench ------------------------------------------------------------------------------

def test_bench_measures_what_it_says(hapax, store):
    result = hapax("bench", "--store", store, "--clients", "8", "--seconds", "1", "--duplicates", "50", "--size", "1k",
                   "--json").json
    assert result["store"] == store
    assert (result["clients"], result["duplicates"], result["size"]) == (8, 50, 1024)
    assert result["ops"] == result["claimed"] + result["cycles"] + result["replayed"] + result["refused"]
    assert result["cycles"] == result["claimed"] > 0
    repeats = result["replayed"] + result["refused"]
    drawn = repeats + result["claimed"]
    assert abs(repeats - drawn / 2) < 3 * drawn ** 0.5 + 1  # six standard deviations
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"]
    assert 900_000 < result["elapsed_us"] < 60_000_000
    record = hapax("list", "--store", store, "--json", "--limit", "1").json
    assert record["scope"] == "bench"
    assert record["expires_us"] - record["updated_us"] == 60 * 10**6


def test_bench_prints_for_people(hapax):
    text = hapax("bench", "--store", "memory:", "--seconds", "1").out
    assert text.index("cycles/s ") < text.index("ops/s  ")  # the first figure is the one that is quoted
    for part in (r"^ops/s +\d+", r"^cycles/s +\d+", r"p50 .* p99 .* p99\.9 ", r"\d+ claimed, \d+ replayed, \d+ refused",
                 "and expire"):
        assert re.search(part, text, re.M), part


def test_bench_ends_early_with_its_figures(hapax, store):
    process = hapax.start("bench", "--store", store, "--seconds", "600", "--json")
    wait_until(lambda: '"id"' in hapax("list", "--store", store, "--json", "--limit", "1").out, "a first record")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["elapsed_us"] < 300_000_000
