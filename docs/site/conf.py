"""The documentation as a site (tools/docs). The pages are the repository's own, where they stand."""

from pygments.lexers.special import TextLexer

project = "Hapax"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "README.md", "NEWS.md", "SECURITY.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md", "sdk/*/README.md",
]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # cli.md is made from the help of the commands, whose headings begin at the third level
    "misc.highlighting_failure",  # samples with "…" in them
]
html_theme = "furo"
html_title = "Hapax"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app):
    app.add_lexer("hex", TextLexer)
