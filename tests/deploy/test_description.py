"""docker-compose.yml is written by hand, and its services are those that the generator makes."""

import pytest

from deploy.compose import compose_file
from deploy.description import described
from deploy.federation import Federation

GENERATED, WRITTEN = compose_file(Federation.of()), described()


def test_they_have_the_same_services_and_networks():
    assert list(WRITTEN["services"]) == list(GENERATED["services"])
    assert WRITTEN["networks"] == GENERATED["networks"]
    assert WRITTEN["name"] == GENERATED["name"]


@pytest.mark.parametrize("name", WRITTEN["services"])
def test_a_service_is_the_generated_one(name):
    written, generated = (_with_program(tree["services"][name]) for tree in (WRITTEN, GENERATED))
    written.pop("x-memory", None)
    assert written == generated


def _with_program(service):
    """A service whose entrypoint and command are one program with its options, in any order."""
    program = [*service.pop("entrypoint"), *service.pop("command", [])]
    if "deploy.warm" in program:
        program = program[:3] + sorted(program[3:])
    return {**service, "program": program}
