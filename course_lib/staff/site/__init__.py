"""The course as a web site: lessons, exercises without answers, and the library's reference. Needs the extra `book`.

No cell is executed: pages show the outputs that the notebooks store. Nothing is
fetched, while it is built or while it is read: formulas become MathML, and
scripts, fonts and pictures lie beside the pages.
"""

from course_lib.staff.site.build_site import Book, build

__all__ = ["Book", "build"]
