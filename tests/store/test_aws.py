"""The AWS client (src/aws) against a fake of AWS that checks signatures (tests/servers/aws_fake.py): what becomes of
calls whose service throttles, fails, breaks off and hangs, and where keys come from.
"""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "servers"))
from aws_fake import FakeAws  # noqa: E402
from conftest import BUILD, PATIENCE, read_line, wait_until  # noqa: E402
from process import free_port  # noqa: E402

CALL = BUILD / "tests/store/aws_call"
SECRET = "sec/ret+KEY"


class Answer(NamedTuple):
    result: str
    status: int
    tries: int
    unsure: bool
    error: str
    len: int
    ms: int
    text: str

    @classmethod
    def read(cls, line):
        result, status, tries, unsure, error, size, ms, text = line.rstrip("\n").split("\t")
        return cls(result, int(status), int(tries), unsure == "1", error, int(size), int(ms), text)


class Bed:
    """A fake, a folder for files, and an environment of nothing but PATH and HOME, the sanitizers' settings and none of
    AWS."""

    def __init__(self, fake, folder):
        self.fake, self.folder, self.processes = fake, folder, []
        self.env = {name: value for name, value in os.environ.items() if name == "PATH" or name.endswith("_OPTIONS")}
        self.env.update(HOME=str(folder), AWS_EC2_METADATA_DISABLED="true")
        self.static = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": SECRET}
        fake.know("AKID", SECRET)

    def words(self, settings, operation="PutItem", body='{"a":1}'):
        settings = {"endpoint": self.fake.url, "deadline_ms": 25000, "try_ms": 20000, "connect_ms": 20000, **settings}
        return [str(CALL)] + [f"{name}={value}" for name, value in settings.items()] + [operation, body]

    def run(self, env=None, **settings):
        done = subprocess.run(self.words(settings), env={**self.env, **(self.static if env is None else env)},
                              capture_output=True, text=True, timeout=PATIENCE)
        assert done.stderr == "", done.stderr
        assert SECRET not in done.stdout
        if done.stdout.startswith("open\t"):
            return done.stdout.split("\t")[1].rstrip("\n")
        answers = [Answer.read(line) for line in done.stdout.splitlines()]
        return answers if len(answers) > 1 else answers[0]

    def until(self, true, what, env=None, **settings):
        """Calls whose time is short, until it was enough for what is to be seen; their answer or answers."""
        given = []

        def seen():
            given[:] = [self.run(env, **settings)]
            return true(given[0])

        wait_until(seen, what)
        return given[0]

    def start(self, env, **settings):
        """A handle that is kept; step() makes one call by it."""
        process = subprocess.Popen(self.words({"step": 1, "rounds": 1000000, **settings}), env={**self.env, **env},
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)

        def step():
            process.stdin.write("\n")
            process.stdin.flush()
            return Answer.read(read_line(process))

        return step

    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)


@pytest.fixture
def bed(folder):
    with FakeAws() as fake:
        bed = Bed(fake, folder)
        yield bed
        for process in bed.processes:
            process.kill()
            process.communicate()


# ---- calls ------------------------------------------------------------------------------------


def test_a_signed_call_is_answered(bed):
    answer = bed.run()
    assert answer[:6] == ("ok", 200, 1, False, "", 11) and answer.text == ""
    assert bed.fake.calls == [("PutItem", b'{"a":1}', "AKID")]


def test_connections_are_kept_and_bounded(bed):
    assert all(answer.result == "ok" for answer in bed.run(rounds=20))
    assert bed.fake.connections == 1
    answers = bed.run(n=40, connections=4)
    assert all(answer.result == "ok" for answer in answers) and len(answers) == 40
    assert 2 <= bed.fake.connections <= 5


def test_calls_run_from_a_loop_too(bed):
    assert all(answer.result == "ok" for answer in bed.run(n=40, connections=4, loop=1, rounds=3))
    assert bed.fake.connections <= 4


def test_a_long_request_is_sent_at_once_and_whole(bed):
    body = json.dumps({"a": "x" * 120000})
    done = subprocess.run(bed.words({}, body=body), env={**bed.env, **bed.static}, capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.stdout.startswith("ok\t") and bed.fake.calls[0][1].decode() == body


@pytest.mark.parametrize("name", ["ThrottlingException", "ProvisionedThroughputExceededException",
                                  "RequestLimitExceeded", "TooManyRequestsException", "LimitExceededException"])
def test_throttled_calls_are_surely_not_applied_and_tried_again(bed, name):
    bed.fake.script = [bed.fake.error(400, name)] * 2
    assert bed.run()[:5] == ("ok", 200, 3, False, name)
    bed.fake.script = [bed.fake.error(503, name)] * 3 + [bed.fake.error(400, name, headers=[("Retry-After", "100")])]
    answer = bed.run()  # and for that one there is no time
    assert answer[:5] == ("unavailable", 400, 4, False, name) and name in answer.text


def test_what_is_no_rate_is_refused(bed):
    bed.fake.script = [bed.fake.error(400, "OverLimit")]
    assert bed.run()[:5] == ("refused", 400, 1, False, "OverLimit")


def test_retry_after_is_waited_for(bed):
    bed.fake.script = [bed.fake.error(400, "ThrottlingException", headers=[("Retry-After", "1")])]
    assert bed.run().ms >= 1000
    bed.fake.script = [bed.fake.error(400, "ThrottlingException", headers=[("Retry-After", "100")])]
    answer = bed.run()
    assert answer.result == "unavailable" and answer.ms < 20000  # there is no time for it, and 25 s are not waited for


@pytest.mark.some(1)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_failure_of_the_service_may_have_been_applied(bed, status):
    bed.fake.script = [bed.fake.error(status, "InternalServerError")]
    assert bed.run()[:5] == ("ok", 200, 2, True, "InternalServerError")
    bed.fake.script = [bed.fake.error(status, "")]
    answer = bed.run(once=1)
    assert answer[:4] == ("indeterminate", status, 1, True) and len(bed.fake.calls) == 3


@pytest.mark.some(2)
@pytest.mark.parametrize("how", ["reset", "cut", "short", "damaged"])
def test_a_reply_that_is_not_whole_may_have_been_applied(bed, how):
    bed.fake.script = [getattr(bed.fake, how)]
    assert bed.run()[:4] == ("ok", 200, 2, True)
    bed.fake.script = [getattr(bed.fake, how)]
    answer = bed.run(once=1)
    assert answer[:4] == ("indeterminate", 0, 1, True) and "got no answer" in answer.text


def test_a_kept_connection_that_breaks_is_not_sent_on_in_silence(bed):
    """libcurl would send the request again by itself, and say nothing."""
    step = bed.start(bed.static, once=1)
    assert step().result == "ok"
    bed.fake.script = [bed.fake.cut]
    assert step()[:4] == ("indeterminate", 0, 1, True)
    assert len(bed.fake.calls) == 2


def test_an_answer_to_a_repeat_says_that_it_may_be_one(bed):
    bed.fake.script = [bed.fake.cut, bed.fake.error(400, "ConditionalCheckFailedException")]
    assert bed.run()[:5] == ("refused", 400, 2, True, "ConditionalCheckFailedException")


def test_an_error_has_the_name_of_the_reply_that_refuses(bed):
    bed.fake.script = [bed.fake.error(400, "ThrottlingException"), bed.fake.error(403, "")]
    assert bed.run()[:5] == ("refused", 403, 2, False, "")


def test_a_slow_reply_ends_the_try(bed):
    bed.fake.script = [bed.fake.hang]
    answer = bed.run(try_ms=200)
    assert answer[:2] == ("ok", 200) and answer.tries >= 2 and answer.unsure and answer.ms >= 200


def left(bed, answers):
    """What reached the service in this run is never said to have surely not."""
    with bed.fake.lock:
        calls = len(bed.fake.calls)
        bed.fake.calls.clear()
    assert [answer.result for answer in answers].count("indeterminate") >= calls
    return True


def test_nothing_goes_on_past_the_deadline(bed):
    bed.fake.script = [bed.fake.hang] * 10000
    answers = bed.until(lambda answers: left(bed, answers) and [answer.result for answer in answers]
                        == ["indeterminate"] * 2 + ["unavailable"] * 4,
                        "two that had left", deadline_ms=500, n=6, connections=2)
    assert all(answer.ms < 15000 for answer in answers)  # a try has 20 s


def test_who_is_not_there_was_surely_not_reached(bed):
    nobody = f"http://127.0.0.1:{free_port()}"
    answer = bed.until(lambda answer: answer.tries > 1, "a second try", endpoint=nobody, deadline_ms=300)
    assert (answer.result, answer.status, answer.unsure) == ("unavailable", 0, False)
    answer = bed.run(endpoint="http://nowhere.invalid", deadline_ms=300)
    assert (answer.result, answer.unsure) == ("unavailable", False)
    answer = bed.run(endpoint=f"https://127.0.0.1:{bed.fake.port}", deadline_ms=500)
    assert (answer.result, answer.unsure) == ("unavailable", False) and not bed.fake.calls


def test_a_reply_over_the_limit_is_not_read_to_its_end(bed):
    bed.fake.script = [bed.fake.long((24 << 20) + 1)]
    answer = bed.run()
    assert answer[:4] == ("indeterminate", 0, 1, True) and "24 MiB" in answer.text
    bed.fake.script = [bed.fake.long(20 << 20)]
    assert bed.run()[:6] == ("ok", 200, 1, False, "", 20 << 20)


def test_long_polls_are_cancelled(bed):
    bed.fake.script = [bed.fake.hang] * 10000
    answers = bed.until(lambda answers: left(bed, answers) and [answer.result for answer in answers]
                        == ["indeterminate"] * 3 + ["unavailable"] * 2,
                        "three that had left", n=5, connections=3, cancel=100)
    assert all(answer.ms < 15000 for answer in answers)  # a try has 20 s


def test_redirects_are_not_followed(bed):
    bed.fake.script = [lambda request: request.reply(307, "", [("Location", "/other")])]
    assert bed.run(once=1)[:3] == ("indeterminate", 307, 1) and len(bed.fake.calls) == 1


def test_denied_is_said_with_its_reason_and_errors_without(bed):
    bed.fake.script = [bed.fake.error(400, "AccessDeniedException", "User: x is not\nauthorized")]
    answer = bed.run()
    assert answer[:3] == ("refused", 400,
                          1) and answer.text.endswith("AccessDeniedException: User: x is not authorized")
    bed.fake.script = [bed.fake.error(400, "ValidationException", "the key is customer-17")]
    assert "customer" not in bed.run().text


def test_a_proxy_is_not_asked_for_http(bed):
    proxy = f"http://127.0.0.1:{free_port()}"
    assert bed.run({**bed.static, "http_proxy": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy}).result == "ok"


def test_a_proxy_is_asked_for_https(bed):
    env = {**bed.static, "HTTPS_PROXY": bed.fake.url}
    answer = bed.until(lambda _: bed.fake.asked, "a proxy that is asked", env, endpoint="https://dynamodb.example:8443",
                       deadline_ms=300)
    assert (answer.result, answer.unsure) == ("unavailable", False)
    assert set(bed.fake.asked) == {"proxy dynamodb.example:8443"} and not bed.fake.calls
    answer = bed.run({**env, "NO_PROXY": "127.0.0.1"}, endpoint=f"https://127.0.0.1:{free_port()}", deadline_ms=300)
    assert answer.result == "unavailable" and len(set(bed.fake.asked)) == 1


def test_a_certificate_must_be_of_a_ca_that_is_known(bed):
    path = bed.folder / "both.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", path, "-out", bed.folder / "ca"],
                   check=True, capture_output=True)
    path.write_text(path.read_text() + (bed.folder / "ca").read_text())
    with FakeAws(certificate=path) as fake:
        fake.know("AKID", SECRET)
        trusts = {**bed.static, "AWS_CA_BUNDLE": str(bed.folder / "ca")}
        assert [answer[:3] for answer in bed.run(trusts, endpoint=fake.url, rounds=3)] == [("ok", 200, 1)] * 3
        assert fake.connections == 1
        fake.script = [fake.cut]
        assert bed.run(trusts, endpoint=fake.url)[:4] == ("ok", 200, 2, True)
        before = len(fake.calls)
        # a last try may have no time for TLS
        answer = bed.until(lambda answer: "certificate" in answer.text, "the reason",
                           endpoint=fake.url, deadline_ms=600)
        assert (answer.result, answer.unsure) == ("unavailable", False)
        assert len(fake.calls) == before
    assert "AWS_CA_BUNDLE" in bed.run({**bed.static, "AWS_CA_BUNDLE": "/nonexistent"})


# ---- settings ---------------------------------------------------------------------------------


def test_endpoints_and_regions_come_from_the_environment(bed):
    own = bed.words({})
    own.remove(f"endpoint={bed.fake.url}")

    def run(*words, **env):
        done = subprocess.run(own[:-2] + list(words) + own[-2:],
                              env={**bed.env, **bed.static, **env}, capture_output=True,
                              text=True, timeout=PATIENCE)
        return done.stdout

    assert run(AWS_ENDPOINT_URL_DYNAMODB=bed.fake.url, AWS_ENDPOINT_URL="http://nowhere.invalid").startswith("ok\t")
    assert run(AWS_ENDPOINT_URL=bed.fake.url).startswith("ok\t")
    assert '"dynamodb.eu-central-1.amazonaws.com"' in run(
        "deadline_ms=1", AWS_ENDPOINT_URL=bed.fake.url, AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true")
    assert '"dynamodb-fips.cn-north-1.amazonaws.com.cn"' in run(
        "deadline_ms=1", "region=cn-north-1", AWS_USE_FIPS_ENDPOINT="true")
    assert '"dynamodb.us-gov-west-1.amazonaws.com"' in run(
        "deadline_ms=1", "region=us-gov-west-1", AWS_USE_FIPS_ENDPOINT="true")
    assert run("endpoint=http://u:geheim@h").startswith("open\tendpoint is no http")
    assert run("region=EU!").startswith('open\tregion "EU!"')


# ---- keys -------------------------------------------------------------------------------------


def test_keys_that_are_refused_are_asked_for_anew_once(bed):
    bed.fake.keys.clear()
    answer = bed.run()
    assert answer[:5] == ("refused", 400, 2, False, "UnrecognizedClientException")
    path = bed.file("keys", "[default]\naws_access_key_id = OLD\naws_secret_access_key = old\n")
    step = bed.start({"AWS_SHARED_CREDENTIALS_FILE": path})
    bed.fake.know("OLD", "old")
    assert step().tries == 1
    bed.fake.keys.clear()
    bed.fake.know("NEW", "new")
    bed.file("keys", "[default]\naws_access_key_id = NEW\naws_secret_access_key = new\n")
    assert step()[:3] == ("ok", 200, 2)
    assert step()[:3] == ("ok", 200, 1)


def test_a_clock_that_is_wrong_is_told_of(bed):
    bed.fake.date = "Mon, 09 Sep 2030 23:36:00 GMT"
    answer = bed.run({"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "other"})
    assert answer[:5] == ("refused", 400, 2, False, "InvalidSignatureException")
    assert "this machine's clock is" in answer.text and answer.text.endswith("s behind the service's")


def test_without_keys_it_says_where_it_looked(bed):
    answer = bed.run({})
    assert answer[:3] == ("refused", 0, 0) and not bed.fake.calls
    for word in ("environment", "web identity", 'profile "default"',
                 ".aws/credentials", "container", "metadata is off"):
        assert word in answer.text, answer.text


def test_a_file_whose_name_is_too_long_is_not_passed_over(bed):
    bed.fake.know("AKID", SECRET)
    bed.file(".aws/credentials", f"[default]\naws_access_key_id = AKID\naws_secret_access_key = {SECRET}\n")
    answer = bed.run({"AWS_CONFIG_FILE": "/x" * 600})
    assert answer.result == "refused" and "AWS_CONFIG_FILE" in answer.text


def test_keys_that_are_gone_do_not_take_back_what_may_have_been_applied(bed):
    role = "[profile app]\nrole_arn = arn:aws:iam::1:role/app\nsource_profile = base\n"
    path = bed.file("config", role)
    bed.file(".aws/credentials", f"[base]\naws_access_key_id = AKID\naws_secret_access_key = {SECRET}\n")
    bed.fake.lives_s = 2
    step = bed.start({"AWS_PROFILE": "app", "AWS_CONFIG_FILE": path, "AWS_ENDPOINT_URL_STS": bed.fake.url}, try_ms=2500,
                     deadline_ms=7000)

    def hang(request):
        bed.file("config", role + "mfa_serial = x\n")
        bed.fake.hang(request)

    bed.fake.script = [hang]
    answer = step()
    assert (answer.result, answer.unsure) == ("indeterminate",
                                              True) and answer.tries >= 1 and "mfa_serial" in answer.text


def test_a_role_of_an_instance_gives_keys_that_are_renewed(bed):
    bed.fake.lives_s = 3600
    step = bed.start({"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": bed.fake.url + "/"})
    assert [step().result for _ in range(3)] == ["ok"] * 3
    assert bed.fake.asked == ["imds PUT /latest/api/token", "imds GET /latest/meta-data/iam/security-credentials/",
                              "imds GET /latest/meta-data/iam/security-credentials/hapax-role"]
    bed.fake.keys.clear()  # all sessions of the role are revoked
    answer = step()
    assert answer[:3] == ("ok", 200, 2) and bed.fake.issue == 2


def test_keys_that_expire_while_it_runs_are_renewed_in_time(bed):
    bed.fake.lives_s = 2
    step = bed.start({"AWS_CONTAINER_CREDENTIALS_FULL_URI": bed.fake.url + "/creds"})
    end = time.monotonic() + PATIENCE
    while bed.fake.issue < 3:
        assert time.monotonic() < end
        answer = step()
        assert answer.result == "ok" and answer.tries <= 2, answer


def test_keys_are_used_on_while_their_renewal_fails(bed):
    bed.fake.lives_s = 200  # always to be renewed
    step = bed.start({"AWS_CONTAINER_CREDENTIALS_FULL_URI": bed.fake.url + "/creds"})
    assert step().result == "ok"
    bed.fake.down = True
    bed.fake.asked.clear()
    assert [step().result for _ in range(5)] == ["ok"] * 5
    bed.fake.keys.clear()  # and a refusal asks in vain
    answer = step()
    assert answer[:2] == ("refused", 400) and answer.error == "UnrecognizedClientException"
    assert bed.fake.asked == ["container"] * 2


def test_an_agent_that_is_down_is_no_refusal(bed):
    bed.fake.down = True
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": bed.fake.url + "/creds"}
    answer = bed.until(lambda answer: "answered 500" in answer.text, "the reason", env, deadline_ms=300)
    assert (answer.result, answer.tries) == ("unavailable", 0)
    step = bed.start(env)
    threading.Timer(0.5, setattr, (bed.fake, "down", False)).start()
    assert step().result == "ok"


def test_a_container_authorizes_itself_with_what_is_in_its_file_now(bed):
    path = bed.file("token", "first\n")
    bed.fake.container_token = "first"
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": bed.fake.url + "/creds",
           "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": path,
           "AWS_CONTAINER_AUTHORIZATION_TOKEN": "wrong"}
    step = bed.start(env)
    assert step().result == "ok"
    bed.fake.container_token = "second"
    bed.fake.keys.clear()
    bed.file("token", "second")
    assert step()[:3] == ("ok", 200, 2)
    bed.file("token", "two\nlines")
    assert "holds no token" in bed.run(env).text
    answer = bed.run({**env, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/creds"})
    assert answer.result == "refused" and "FULL_URI is not asked" in answer.text


def test_web_identity_reads_its_file_at_each_renewal(bed):
    bed.fake.web_tokens = {"jwt.1"}
    path = bed.file("jwt", "jwt.1")
    env = {"AWS_WEB_IDENTITY_TOKEN_FILE": path, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r+x",
           "AWS_ENDPOINT_URL_STS": bed.fake.url,
           "AWS_ROLE_SESSION_NAME": "pod"}
    step = bed.start(env)
    assert step().result == "ok"
    bed.file("jwt", "jwt.2")
    bed.fake.web_tokens = {"jwt.2"}
    bed.fake.keys.clear()
    assert step()[:3] == ("ok", 200, 2)
    assert bed.fake.asked == ["sts AssumeRoleWithWebIdentity jwt.1", "sts AssumeRoleWithWebIdentity jwt.2"]
    bed.file("jwt", "jwt.3")
    answer = bed.run(env)
    assert answer.result == "refused" and "InvalidIdentityToken" in answer.text and "jwt" not in answer.text
    answer = bed.run({**env, "AWS_WEB_IDENTITY_TOKEN_FILE": path + "-not"})
    assert answer.result == "refused" and "No such file" in answer.text
    bed.file("jwt", "x" * 20001)
    assert "File too large" in bed.run(env).text


def test_a_profile_assumes_its_role(bed):
    bed.fake.service = "dynamodb"
    bed.file(".aws/config", """
[profile app]
role_arn = arn:aws:iam::1:role/app
source_profile = base
external_id = e=1&2
[profile far]
role_arn = arn:aws:iam::1:role/far
source_profile = app
""")
    bed.file(".aws/credentials", f"[base]\naws_access_key_id = AKID\naws_secret_access_key = {SECRET}\n")
    env = {"AWS_PROFILE": "app", "AWS_ENDPOINT_URL_STS": bed.fake.url}
    assert bed.run(env).result == "ok"
    assert bed.fake.calls[-1][2] == "ASIA1" and bed.fake.asked == ["sts AssumeRole"]
    assert bed.run(env, profile="far").result == "ok"
    assert bed.fake.calls[-1][2] == "ASIA3"
