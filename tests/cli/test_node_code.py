"""`shoal node code`: what is printed fits together, and no two codes are alike."""

from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.contracts.pools import Admission, claim_with_code, code_fits


def made() -> tuple[str, str]:
    result = CliRunner().invoke(app, ["node", "code"])
    assert result.exit_code == 0
    code, public = (line.rsplit(" ", 1)[1] for line in result.output.splitlines())
    return code, public


def test_a_code_admits_to_the_pool_that_lists_its_public_half() -> None:
    code, public = made()
    claim = claim_with_code(code, "tiny", "open", "a" * 64)
    assert code_fits(claim, Admission(codes=[public]), "tiny", "open", "a" * 64)
    assert not code_fits(claim, Admission(codes=[made()[1]]), "tiny", "open", "a" * 64)
    assert code not in claim.to_json().decode(), "the code itself does not travel"


def test_the_help_shows_an_example() -> None:
    assert "Example: shoal node code" in CliRunner().invoke(app, ["node", "code", "--help"]).output
