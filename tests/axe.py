"""What axe finds on a page of Chromium: for test_book.py and test_lab.py."""

# A page in a file may read no style sheet as text, which is what axe would preload.
OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
    "preload": False,
}


def axe_findings(page) -> list[str]:
    """Each broken rule, with the element that breaks it, of a page of playwright."""
    from axe_playwright_python.sync_playwright import Axe  # here, for tests/test_book.py where it is not installed

    violations = Axe().run(page, options=OPTIONS).response["violations"]
    return [f"{violation['id']}: {node['html'][:200]}" for violation in violations for node in violation["nodes"]]
