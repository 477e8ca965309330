"""Pages, read tag by tag."""

import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags and attributes of a page; it complains where they do not nest."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def assert_whole(html):
    """A page that needs nothing but itself: no other file, and each of its own things under one name."""
    assert not re.search(r"https?:|//|src=|<link|<script|<image|@import|url\((?!#)", html)
    attributes = Tags(html).attributes
    ids = [value for name, value in attributes if name == "id"]
    used = {value for name, value in attributes if name.endswith("href")}
    used |= {f"#{name}" for _, value in attributes if value for name in re.findall(r"url\(#([^)]*)\)", value)}
    assert len(ids) == len(set(ids))
    assert used <= {f"#{name}" for name in ids}
