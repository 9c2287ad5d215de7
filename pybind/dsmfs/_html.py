"""Tables for notebooks."""

from __future__ import annotations

import html


def html_table(title: str, rows: dict[str, object]) -> str:
    """Return a table with a line for each of `rows`."""
    body = "".join(f"<tr><th>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"
