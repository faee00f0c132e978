"""Reports as pages for a browser: one file without scripts or styles from elsewhere.

`markup` escapes, `document` is the frame of a page, `axis`, `timeline`, `curves`, `graph` and `flame` draw,
`report` and `hung` compose. `fragment` is the block that a notebook shows. The charts are drawn here and not
by a library: they are lines, marks and words, a library would add 50 to 3,000 KiB to each report, and most
need scripts or styles in attributes, which the page's policy forbids.
"""
