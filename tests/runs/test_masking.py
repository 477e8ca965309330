"""Hidden gradients: the laws that a robust net keeps, and who breaks them."""

from types import SimpleNamespace

import pytest

from helpers.grids import finished
from helpers.toys import ATOM, HALF, METHOD
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.types import Question
from splitmix.report.grid_page import masking_table
from splitmix.runs.measure.grid import Sweep
from splitmix.runs.measure.masking import at_most, check_masking, falling, planned, white_is_strongest


def test_each_law_holds_or_does_not():
    assert falling([0.8, 0.5, 0.5])
    assert not falling([0.5, 0.8])
    assert white_is_strongest([0.4, 0.6])
    assert not white_is_strongest([0.6, 0.4])
    assert at_most(0.25)([0.0])
    assert not at_most(0.25)([0.4])


def test_every_width_and_dial_is_checked_for_each_law():
    mixes = {width: METHOD.compose(width) for width in (ATOM, HALF)}
    checks = list(planned(mixes, (0.0, 1.0), Question(), PGD(), classes=4))
    assert len(checks) == 2 * 2 * 4  # steps, transfer from the other dial and the other width, a large change
    transfers = [check for check in checks if check.law.startswith("transfer")]
    assert all(check.asked[0].surrogate is None for check in transfers)
    assert transfers[0].asked[1].surrogate == (mixes[ATOM], 1.0)
    assert transfers[1].asked[1].surrogate == (mixes[HALF], 0.0)
    assert all(question.robust == check.robust for check in checks for question in check.asked)


def test_findings_have_verdicts():
    findings = check_masking(finished(), Sweep(), workers=1)
    table = masking_table(findings)
    assert "BROKEN" in table.to_text()  # these clients answer alike however strong the attack is
    assert "do not trust the robust accuracies" in table.caption


def test_steps_are_counted_of_pgd_alone():
    attack = SimpleNamespace(name="Spell", weak=False)
    with pytest.raises(UserError, match="steps are counted of PGD, not of Spell"):
        check_masking(finished(), Sweep(attack=attack), workers=1)
