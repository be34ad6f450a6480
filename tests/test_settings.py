"""The environment is parsed in one place, and a bad value lists the good ones."""

from pathlib import Path

import pytest

from eqsat import rule
from eqsat.errors import SettingsError
from eqsat.settings import PRECISIONS, Debug, Settings, SettingsWarning


def test_precisions_are_found_where_rules_are():
    assert rule.PRECISIONS is PRECISIONS


def test_defaults_need_nothing_set():
    settings = Settings.from_environment({})
    assert settings.debug is Debug.NONE
    assert settings.cache_dir is not None and settings.cache_dir.name.startswith("eqsat")
    assert settings.num_threads >= 1
    assert settings.search_nodes == Settings.search_nodes


def test_every_variable_is_read():
    settings = Settings.from_environment(
        {
            "EQSAT_DEBUG": " 3 ",
            "EQSAT_CACHE_DIR": "/some/where",
            "EQSAT_NUM_THREADS": "7",
            "EQSAT_SEARCH_SECONDS": "0.5",
            "EQSAT_SEARCH_NODES": "1000",
            "EQSAT_SEARCH_MEMORY_MB": "64",
            "EQSAT_PRECISION": "tf32",
        }
    )
    assert settings == Settings(Debug.KERNEL, Path("/some/where"), 7, 0.5, 1000, 64, "tf32")


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("EQSAT_DEBUG", "4")
    assert Settings.from_environment().debug is Debug.SOURCE


@pytest.mark.parametrize("text", ["5", "-1", "yes", "1.0", "²", "01"])
def test_a_bad_debug_level_lists_the_good_ones(text):
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"EQSAT_DEBUG": text})
    assert str(caught.value) == (
        f"EQSAT_DEBUG is {text!r}. Use one of 0 (nothing), 1 (summary), 2 (explain), "
        "3 (kernel IR), 4 (source)."
    )


@pytest.mark.parametrize(
    "name", ["EQSAT_NUM_THREADS", "EQSAT_SEARCH_NODES", "EQSAT_SEARCH_MEMORY_MB"]
)
@pytest.mark.parametrize("text", ["0", "-3", "many", "1e3", "²", "9" * 5000])
def test_a_bad_count_says_what_is_wanted(name, text):
    with pytest.raises(SettingsError, match=rf"{name} is .*Use a whole number: .* from 1"):
        Settings.from_environment({name: text})


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_bad_seconds_say_what_is_wanted(text):
    with pytest.raises(SettingsError, match=r"EQSAT_SEARCH_SECONDS is .* number of seconds"):
        Settings.from_environment({"EQSAT_SEARCH_SECONDS": text})


def test_an_empty_value_counts_as_unset():
    assert Settings.from_environment({"EQSAT_DEBUG": "", "EQSAT_NUM_THREADS": " "}).debug == 0


@pytest.mark.parametrize("text", ["off", "OFF", " off "])
def test_the_cache_can_be_switched_off(text):
    assert Settings.from_environment({"EQSAT_CACHE_DIR": text}).cache_dir is None


def test_the_cache_folder_follows_the_xdg_rules(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    for given, expected in [
        ({}, "/home/someone/.cache/eqsat"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/eqsat"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/eqsat"),
        ({"EQSAT_CACHE_DIR": "~/mine"}, "/home/someone/mine"),
        ({"EQSAT_CACHE_DIR": "here"}, str(Path.cwd() / "here")),
    ]:
        assert Settings.from_environment(given).cache_dir == Path(expected)


def test_a_bad_precision_lists_the_good_ones():
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"EQSAT_PRECISION": "half"})
    assert str(caught.value) == (
        "EQSAT_PRECISION is 'half'. Use one of exact, default, tf32, bf16."
    )


def test_a_misspelt_variable_is_named():
    with pytest.warns(
        SettingsWarning, match="EQSAT_CACHEDIR is set.*Did you mean `EQSAT_CACHE_DIR"
    ):
        settings = Settings.from_environment({"EQSAT_CACHEDIR": "off", "OTHER": "x"})
    assert settings.cache_dir is not None
