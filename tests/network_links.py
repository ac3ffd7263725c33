"""Whether this machine allows network namespaces with links. In CI it must: there, what is missing is a failure."""

import pytest
from installed import IN_CI

from course_lib.cluster import Link, limited_links
from course_lib.errors import CourseError


def _no_links() -> str:
    try:
        limited_links.require(Link(100))
    except CourseError as error:
        return str(error)
    return ""


NO_LINKS = _no_links()
needs_links = pytest.mark.skipif(bool(NO_LINKS) and not IN_CI, reason=NO_LINKS)
