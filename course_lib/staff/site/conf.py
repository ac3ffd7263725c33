"""Sphinx's settings for the site. Sphinx runs this file; nothing imports it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # the checkout, whose library the reference shows

project = html_title = "Distributed training, proved"
language = "en"
extensions = ["myst_nb", "sphinx.ext.autodoc", "course_lib.staff.site.sphinx_extension"]
templates_path = ["templates"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # a type without a page stays text

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_heading_slug_func = "course_lib.staff.site.source_pages.anchor"
myst_update_mathjax = False

add_module_names = False
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "sphinx_book_theme"
html_theme_options = {
    "navbar_persistent": [],  # the search stands in the sidebar
    "max_navbar_depth": 1,  # deeper, the theme folds with buttons that have no name to hear
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "use_download_button": False,  # a page's source is not the notebook; the checkout and Colab have that
    "use_fullscreen_button": False,
    "footer_content_items": ["extra-footer.html"],
    "extra_footer": "<p>Distributed training, proved. Apache License 2.0.</p>",
}
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js", "views.js"]
html_favicon = "static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_domain_indices = False
