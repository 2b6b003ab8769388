"""The command line, end to end: every command, every exit status, against real stores."""
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest
from conftest import HAPAX, ROOT, end, read_line, wait_until

COMMANDS = ["serve", "keep", "init", "check", "show", "list", "resolve", "purge", "bench", "help"]
RECORD = {"id", "scope", "state", "attempt", "fence", "stale", "hold", "ran", "reruns", "fingerprint", "caller",
          "created_us", "updated_us", "lease_until_us", "expires_us", "status", "headers", "body_kept",
          "resolved_us", "resolved_by"}


# ---- help -------------------------------------------------------------------------------

def test_no_command_prints_the_commands_and_is_a_usage_error(hapax):
    result = hapax()
    assert result.code == 2
    assert all(f"  {command} " in result.out for command in COMMANDS)


def test_version_is_one_line(hapax):
    result = hapax("--version")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"hapax \d+\.\d+\.\d+\n", result.out)


# A page is 80 columns wide, and a screen long.
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_a_screen(hapax, command):
    result = hapax(command, "--help")
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0].startswith(f"usage: hapax {command}")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 48
    assert hapax("help", command).out == result.out


def test_every_option_in_the_synopsis_is_explained(hapax):
    for command in COMMANDS:
        text = hapax(command, "--help").out
        synopsis, rest = text.split("\n\n", 1)
        for option in re.findall(r"--[a-z-]+", synopsis):
            assert re.search(rf"^  {option}\b", rest, re.M), f"{command} {option}"


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
    (["lsit"], 'no command "lsit"'),
    (["--store", "memory:", "list"], "options come after the command"),
    (["list", "--stat", "x"], 'no option "--stat"'),
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
    (["show", ""], "KEY and --scope have 1 to 255 bytes"),
    (["show", "k" * 256], "KEY and --scope have 1 to 255 bytes"),
    (["show", "k", "--step", "a:b"], "no ':'"),
    (["show", "--id", "abc"], '--id "abc" is not 64 hex digits'),
    (["show", "--id", "g" * 64], "is not 64 hex digits"),
    (["show", "k", "--id", "0" * 64], "not by both"),
    (["show", "--id", "0" * 64, "--scope", "s"], "--scope and --step go with a KEY"),
    (["resolve", "k"], "one of --complete STATUS, --fail and --forget"),
    (["resolve", "k", "--fail", "--forget"], "one of --complete STATUS, --fail and --forget"),
    (["resolve", "k", "--complete", "1000"], "is not within 0 to 999"),
    (["resolve", "k", "--fail", "--body", "x"], "--header and --body go with --complete"),
    (["resolve", "k", "--complete", "200", "--header", "no colon"], "is not of the form 'Name: value'"),
    (["resolve", "k", "--complete", "200", "--header", "A: b\r\nC: d"], "is not of the form 'Name: value'"),
    (["resolve", "k", "--complete", "200", "--body", "missing"], 'cannot open --body "missing"'),
    (["resolve", "k", "--fail", "--by", "x" * 65], "--by is not of 1 to 64 bytes"),
    (["keep", "--store", "memory:"], "only an embedded store"),
    (["keep", "--mode", "0999"], "is not octal from 0600"),
    (["keep", "--mode", "77777"], "is not octal from 0600"),
    (["keep", "--listen", "/tmp/x"], "is not unix:PATH"),
    (["bench", "--duplicates", "100"], "is not within 0 to 99"),
    (["bench", "--clients", "5000"], "is not within 1 to 4096"),
    (["bench", "--size", "17m"], "is not within 0 to 16777216 bytes"),
    (["purge", "--every", "10ms"], "is not within 1000 to"),
    (["help", "x"], 'no command "x"'),
    (["list", "--store", "nothing"], "is not a URI"),
    (["list", "--store", "mysql://x"], "is of no known scheme"),
])
def test_what_is_wrong_is_said(hapax, words, text):
    result = hapax(*words)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert result.err.startswith("hapax") and result.err.count("\n") == 1


def test_a_failure_is_an_object_with_json(hapax):
    result = hapax("list", "--limit", "x", "--json")
    assert (result.code, result.err) == (2, "")
    assert result.json == {"error": "invalid", "text": '--limit "x" is not a whole number'}
    assert hapax("list", "--json", "--store", "mysql:x").json["error"] == "unsupported"
    assert hapax("list", "--json", "--store", "unix:nobody.sock").json["error"] == "unavailable"


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
    assert safe.lines and all(line.keys() == {"danger", "text"} and not line["danger"] for line in safe.lines)
    unsafe = hapax("check", "--store", store + "?sync=off")
    assert unsafe.code == 1
    assert re.search(r"^danger  ", unsafe.out, re.M)


# ---- show, list -------------------------------------------------------------------------

def test_show_prints_the_stored_outcome(hapax, store):
    hapax.completed(store, "order-1", 201, r"Content-Type: text/plain\r\nX: y\r\n", r"line 1\nline 2\n", "cards")
    text = hapax("show", "--store", store, "--scope", "cards", "order-1")
    assert text.code == 0
    for part in (r"^state +completed$", r"^scope +cards$", r"^status +201$", r"^headers +Content-Type: text/plain$",
                 r"^ +X: y$", r"^ +line 2$", r"^expires .*\(in 23h59m\)$"):
        assert re.search(part, text.out, re.M), part
    record = hapax("show", "--store", store, "--scope", "cards", "order-1", "--json").json
    assert record.keys() == RECORD | {"body", "steps"} and record["steps"] == []
    assert record["headers"] == ["Content-Type: text/plain", "X: y"]
    assert (record["status"], record["body"], record["attempt"]) == (201, "line 1\nline 2\n", 1)
    assert record["lease_until_us"] is None and record["resolved_by"] is None
    assert record["expires_us"] - record["updated_us"] == 86400 * 10**6
    assert hapax("show", "--store", store, "--id", record["id"], "--json").json == {**record, "steps": None}


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
    made = 0
    while made <= 2500:  # more than a page has; all at once, as they expire in a minute
        made += hapax("bench", "--store", store, "--clients", "4096", "--seconds", "1", "--json").json["claimed"]
    def ids(limit):
        return [line["id"] for line in hapax("list", "--store", store, "--json", "--limit", limit).lines]
    assert len(set(ids(2500))) == 2500
    assert len(ids(10**9)) == made
    table = hapax("list", "--store", store, "--limit", "5")
    head, *rows = table.out.splitlines()
    assert head.split() == ["ID", "STATE", "ATTEMPT", "AGE", "LEASE", "SCOPE"]
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


def test_keep_serves_a_second_socket_and_says_so_in_json(hapax, folder, store):
    listen = f"unix:{folder}/more.sock"
    keeper = hapax.start("keep", "--store", store, "--listen", listen, "--mode", "0666", "--json")
    ready = json.loads(read_line(keeper))
    assert ready == {"holding": store, "serving": [f"unix:{folder}/store/keeper.sock", listen], "pid": keeper.pid}
    assert (folder / "more.sock").stat().st_mode & 0o777 == 0o666
    hapax.completed(listen, "k")
    assert hapax("show", "--store", store, "k").code == 0
    assert end(keeper, signal.SIGINT) == 0
    assert not (folder / "more.sock").exists()


def test_a_group_may_be_let_in(hapax, folder, store):
    hapax.keep(store, "--group", os.getgid())
    made = (folder / "store/keeper.sock").stat()
    assert (made.st_mode & 0o777, made.st_gid) == (0o660, os.getgid())
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
    for part in (r"^ops/s +\d+", r"^cycles/s +\d+", r"p50 .* p99 .* p99\.9 ", r"\d+ claimed, \d+ replayed, \d+ refused",
                 "expire after a minute"):
        assert re.search(part, text, re.M), part


def test_bench_ends_early_with_its_figures(hapax, store):
    process = hapax.start("bench", "--store", store, "--seconds", "600", "--json")
    wait_until(lambda: '"id"' in hapax("list", "--store", store, "--json", "--limit", "1").out, "a first record")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["elapsed_us"] < 300_000_000
