"""Profiles as operators give them: durations as everywhere else, and no certificate longer than what was said."""

from pathlib import Path

import pytest

from holdfast.cli import derived
from holdfast.core.own_ca.ca import CaOptions
from holdfast.operations.own_ca.authorities import profile_of
from holdfast.operations.own_ca.cas import CaSettings, ProfileSettings, changed

DAY = 86400


@pytest.mark.parametrize("name", ["default", "short"])
def test_a_profile_that_sets_only_its_lifetime_issues_for_no_longer_on_request(name: str) -> None:
    after = changed(CaOptions(), CaSettings(profiles=[ProfileSettings(name=name, lifetime_s=6 * DAY)]))
    found = after.profile(name)
    assert found is not None
    assert profile_of(found).max_lifetime.days == 6


def test_a_longest_lifetime_is_kept_unless_the_lifetime_changes_alone() -> None:
    given = ProfileSettings(name="short", lifetime_s=6 * DAY, max_lifetime_s=9 * DAY)
    both = changed(CaOptions(), CaSettings(profiles=[given]))
    other = changed(both, CaSettings(profiles=[ProfileSettings(name="short", client_auth=True)]))
    assert [each.max_lifetime_s for each in other.profiles] == [398 * DAY, 9 * DAY]
    shorter = changed(other, CaSettings(profiles=[ProfileSettings(name="short", lifetime_s=DAY)]))
    assert [each.max_lifetime_s for each in shorter.profiles] == [398 * DAY, DAY]


@pytest.mark.parametrize(
    "text",
    [
        'name = "short"\nlifetime = "6d"\nmax_lifetime = "1w"\nbackdate = "10m"\n',
        '{"name": "short", "lifetime": "6d", "max_lifetime": "1w", "backdate_s": 600}',
    ],
)
def test_a_file_writes_durations_as_they_are_written_everywhere(tmp_path: Path, text: str) -> None:
    file = tmp_path / "short"
    file.write_text(text)
    wanted = {"name": "short", "lifetime_s": 6 * DAY, "max_lifetime_s": 7 * DAY, "backdate_s": 600}
    assert derived._profile({}, str(file)) == wanted
