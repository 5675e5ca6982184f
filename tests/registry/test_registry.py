"""Tests of the registry, which finds objects by name in this process and in installed packages."""

import pytest

from gdpfed.registry import Registry

GROUP = "gdpfed.test_things"


class ThingError(ValueError):
    """Error of the test's registry for a name that cannot be used."""


@pytest.fixture
def things():
    registry: Registry[int] = Registry("thing", GROUP, error=ThingError)
    registry.register("one", 1)
    return registry


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a package with given entry points on the path, as an installer would."""

    def put(package, **points):
        (tmp_path / f"{package}.py").write_text("two = 2\n")
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in points.items()]
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_what_is_registered_is_found(things):
    assert things.register("ten", 10) == 10
    assert (things.get("one"), things.get("ten"), things.names()) == (1, 10, ["one", "ten"])


def test_an_installed_package_adds_names(things, install):
    install("package_of_two", two="package_of_two:two")
    assert things.names() == ["one", "two"]
    assert things.get("two") == 2


def test_unknown_name_lists_the_known_ones(things, install):
    install("package_of_more", more="nowhere:nothing")
    with pytest.raises(ThingError, match=r"^thing 'tow' is not known: use more or one$"):
        things.get("tow")
    with pytest.raises(ValueError, match="^thing 'tow' is not known: none is installed$"):
        Registry("thing", "no.such.group").get("tow")


def test_a_name_is_given_once(things, install):
    things.register("one", 1)
    with pytest.raises(ThingError, match="there is a thing 'one' already"):
        things.register("one", 3)
    install("package_of_one", one="package_of_one:two")
    with pytest.raises(ThingError, match=r"'one' is there more than once \(package package_of_one\)"):
        things.get("one")


def test_an_entry_point_that_cannot_be_loaded_names_its_package(things, install):
    install("package_of_ruin", ruin="package_of_ruin:absent")
    with pytest.raises(ThingError, match="'ruin' of package package_of_ruin cannot be loaded from .*absent"):
        things.get("ruin")


def test_what_is_built_in_is_loaded_when_it_is_asked_for(install):
    things: Registry[int] = Registry(
        "thing", GROUP, built_in={"three": "package_of_three:two", "gone": "nowhere:nothing"}
    )
    assert things.names() == ["gone", "three"]
    with pytest.raises(ValueError, match="'gone' of gdpfed itself cannot be loaded from nowhere:nothing"):
        things.get("gone")
    install("package_of_three", gone="package_of_three:two")
    assert things.get("three") == 2
    with pytest.raises(ValueError, match=r"more than once \(gdpfed itself, package package_of_three\)"):
        things.get("gone")
