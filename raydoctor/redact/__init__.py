"""Takes secrets out of texts, command lines, environments and JSON, and leaves in what a diagnosis needs.

The redactor recognizes a secret by its *shape* (`shapes.py`: `AKIA…`, a private key), by the *name* that it
is assigned to (`names.py`, `assigned.py`), by its *place* (`places.py`: a URL's password, `mysql -p X`;
`sentences.py`: "the password is X"), by the *structure* around it (`blocks.py`: YAML, Kubernetes, netrc;
`elements.py`: command lines and environments), or because the caller knows it (`literals.py`).

Before that, `decode.py` decodes a text: colours, escapes, URL codes, HTML, base64 and UTF-16; `wrapped.py`
joins lines that a terminal has broken. A secret found in a decoded text is replaced in the original, so that
JSON stays JSON and a line keeps its number.

A bare random string stays, because Ray's ids, session names, and hashes of wheels and commits are random
strings as well, and are evidence. Therefore no check uses entropy alone, and `detect-secrets` (1.5) is not
used: in 300 kB of Ray's logs its line scanner reports 23,000 strings of high entropy, at 0.14 MB/s.

This package is pure: bytes in, bytes out, without files, clock or network.
"""

from __future__ import annotations

from raydoctor.redact.redactor import RedactionLedger, Redactor

__all__ = ["RedactionLedger", "Redactor"]
