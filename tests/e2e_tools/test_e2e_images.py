"""What tools/archives.sh builds is what the end-to-end tests load: an image that nobody builds would be found missing after an hour of building."""

import re

from e2e import ROOT
from e2e.conftest import ARCHIVE_OF
from e2e.story import ROLES

from shoal_operator.children import names


def built() -> dict[str, list[str]]:
    """Roles by archive, as the script has them."""
    (line,) = re.findall(r"^declare -A archives=\((.*)\)$", (ROOT / "tools" / "archives.sh").read_text(), re.M)
    return {
        archive: roles.split()
        for archive, quoted, plain in re.findall(r'\[(\w+)\]=(?:"([^"]*)"|(\w+))', line)
        for roles in [quoted or plain]
    }


def test_every_image_of_the_story_is_built_into_the_archive_that_it_is_loaded_from() -> None:
    assert {role: archive for archive, roles in built().items() for role in roles} == {
        role: ARCHIVE_OF.get(role, role) for role in ROLES
    }


def test_the_story_needs_every_image_that_the_operator_starts_itself_and_the_charts_store() -> None:
    assert set(ROLES) == {*names.IMAGES, "operator", "minio"}
