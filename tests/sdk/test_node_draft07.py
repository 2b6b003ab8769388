"""The gate's own cases of draft-07 (tests/e2e/gate/test_draft07.py), before the middlewares of sdk/node.

What is behind a middleware hands each request on to the API that stands behind the gate (forward.js). Cases about
settings of nginx are left out.
"""
import pathlib
import tempfile

import pytest

import gate as g
from conftest import read_line
from doors import Door, Store
from test_draft07 import (  # noqa: F401  (run here)
    test_2_1_a_string_is_a_key, test_2_1_an_item_stands_once, test_2_1_the_string_is_compared_and_not_its_spelling,
    test_2_1_what_is_no_string_is_refused, test_2_2_a_key_is_for_one_payload, test_2_2_uuids_are_keys_as_they_are,
    test_2_4_a_fingerprint_of_the_whole_payload, test_2_5_2_each_request_is_enforced,
    test_2_5_2_the_key_is_found_in_its_header, test_2_6_a_concurrent_request_is_a_conflict,
    test_2_7_a_conflict_needs_no_correction, test_2_7_other_errors_are_the_resources, test_5_keys_have_one_fixed_format,
    test_5_the_lookup_is_by_more_than_the_key)
from test_node import HERE, Program


# Each kind of request is sent through one of them in turn, and all cases through each by .ci/run.
pytestmark = pytest.mark.some()
FRAMEWORKS = ["express", "fastify", "nest", "hono"]


class Stand:
    """A service in the place of the gate."""
    connect, send, post, later = g.Gate.connect, g.Gate.send, g.Gate.post, g.Gate.later

    def __init__(self, framework, folder):
        self.program = Program(HERE / "forward.js", framework, HAPAX_DOOR=f"unix:{folder}/door.sock")
        self.port = int(read_line(self.program.process))


@pytest.fixture(scope="module")
def stands():
    """All services, and the folder of their door."""
    with tempfile.TemporaryDirectory(prefix="hapax-node-") as folder:
        folder = pathlib.Path(folder)
        made = {framework: Stand(framework, folder) for framework in FRAMEWORKS}
        yield made, folder
        for stand in made.values():
            stand.program.__exit__()


@pytest.fixture(params=FRAMEWORKS)
def gate(request, api, stands):
    """Each case has a door of its own, to which the service connects again."""
    made, folder = stands
    stand = made[request.param]
    assert stand.program(api=api.port) == {"api": api.port}
    door = Door(Store("memory", folder), folder)
    yield stand
    door.close()
