"""Markdown of this project as pages of the site: links lead to the pages, the C++ reference, examples and figures. A link to what does
not exist, or to a heading that is not there, is an error.

Guides are written as GitHub reads them. Where Python-Markdown, which MkDocs uses, reads another thing, the text is changed.
"""
import posixpath
import re

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^(#{1,6}) (.*)$")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_ITEM = re.compile(r"^(\s*)([-*]|\d+\.) ")
# Files that are shown as pages of their own.
SHOWN = re.compile(r"examples/\w+\.(cpp|toml)|docs/recipes/[\w.-]+")


def slug(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def title(text):
    """The text of the first heading; None where there is none."""
    found = re.search(r"^# (.*)$", text, re.M)
    return found and found[1].replace("`", "")


def without_comments(text):
    """Comments that begin a line outside of fences are left out, with all of their lines."""
    lines, fenced, comment = [], False, False
    for line in text.split("\n"):
        fenced ^= bool(_FENCE.match(line)) and not comment
        comment |= line.startswith("<!--") and not fenced
        if not comment:
            lines.append(line)
        comment &= "-->" not in line
    return "\n".join(lines)


def prose_and_code(text):
    """Runs of lines, each with whether it is code."""
    runs, fenced, indented, blank = [], False, False, True
    for line in without_comments(text).split("\n"):
        fence = _FENCE.match(line)
        indented = line.startswith("    ") and (blank or indented) or indented and not line
        code = bool(fence) or fenced or indented
        fenced ^= bool(fence)
        blank = not line or bool(_HEADING.match(line))
        if runs and runs[-1][0] == code:
            runs[-1][1].append(line)
        else:
            runs.append((code, [line]))
    return runs


def as_python_markdown(lines):
    """Lines of prose: a list begins after a blank line, nested items are indented by four, a fence begins after a blank line, and code
    in a table has its bars as they are."""
    out, indents = [], []
    for line in lines:
        item = _ITEM.match(line)
        if not item:
            if line and not line.startswith(" "):
                indents = []
        else:
            indent = len(item[1])
            indents = [each for each in indents if each < indent] + [indent]
            if out and out[-1] and len(indents) == 1 and not _is_in_list(out):
                out.append("")
            line = " " * 4 * (len(indents) - 1) + line.lstrip()
        if line.startswith("|"):
            line = re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)
        out.append(line)
    return out


def _is_in_list(lines):
    """Whether the paragraph at the end of the lines is an item."""
    for line in reversed(lines):
        if not line:
            return False
        if _ITEM.match(line):
            return True
    return False


class Site:
    """`root`: of the checkout. `pages`: the text of each file that becomes a page. `reference`: for each public header its page in
    the C++ reference, as a path within the site."""

    def __init__(self, root, pages, reference):
        self.root, self.pages, self.reference = root, pages, reference
        self.anchors = {path: {slug(match[2]) for code, lines in prose_and_code(text) if not code
                               for match in map(_HEADING.match, lines) if match} for path, text in pages.items()}
        self.problems = []
        self.shown = set()  # files that pages link to, to be shown

    def page(self, path):
        """The page that `path` becomes."""
        out = []
        for code, lines in prose_and_code(self.pages[path]):
            if code and out and out[-1]:
                out.append("")
            out += lines if code else self.prose(path, "\n".join(as_python_markdown(lines))).split("\n")
        return "\n".join(out)

    def prose(self, path, text):
        """Without HTML, with the links of the site."""
        parts, end = [], 0
        for match in _LINK.finditer(text):
            if text.count("`", text.rfind("\n\n", 0, match.start()) + 1, match.start()) % 2:
                continue  # between backticks
            parts += [_escaped(text[end:match.start()]), self.link(path, *match.groups())]
            end = match.end()
        return "".join(parts + [_escaped(text[end:])])

    def link(self, path, bang, words, target):
        if re.match(r"\w+:", target):
            return f"{bang}[{words}]({target})"
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if not (self.root / file).exists():
            self.problems.append(f"{path}: a link to {target}, which is not there")
        elif anchor and anchor not in self.anchors.get(file, ()):
            self.problems.append(f"{path}: a link to {target}: {file} has no such heading")
        elif bang or file in self.pages:
            return f"{bang}[{words}]({target})"
        elif file in self.reference:
            return f'<a href="{posixpath.relpath(self.reference[file], posixpath.dirname(path) or ".")}">{_escaped(words)}</a>'
        elif SHOWN.fullmatch(file):
            self.shown.add(file)
            return f"[{words}]({target}.md)"
        return _escaped(words) if words.strip("`") == file else f"{_escaped(words)} (`{file}`)"


def _escaped(text):
    """No tag but what is code: Markdown between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"<(?=[\w/!?])", "&lt;", part) for part in parts[::2]]
    return "".join(parts)
