"""Markdown of this project as pages of the site: titles and headings get names, and links lead to the pages, headers, examples
and figures of the site. A link to what does not exist, or to a heading that is not there, is an error.
"""
import posixpath
import re

from headers import escape

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^(#{1,6}) (.*)$")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def page_name(path):
    return "page_" + re.sub(r"\W", "_", path.removesuffix(".md")).strip("_").lower()


def slug(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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
        blank = not line
        if runs and runs[-1][0] == code:
            runs[-1][1].append(line)
        else:
            runs.append((code, [line]))
    return runs


class Site:
    """`root`: of the checkout. `pages`: the text of each file that becomes a page."""

    def __init__(self, root, pages, public_headers):
        self.root, self.pages, self.headers = root, pages, set(public_headers)
        self.anchors = {path: {slug(match[2]) for code, lines in prose_and_code(text) if not code
                               for match in map(_HEADING.match, lines) if match} for path, text in pages.items()}
        self.problems = []

    def page(self, path, is_main=False):
        """The page that `path` becomes."""
        out, name = [], page_name(path)
        for code, lines in prose_and_code(self.pages[path]):
            if code:
                out += [re.sub(r"^( {0,3}```)(\w+)$", r"\1{.\2}", line) for line in lines]
                continue
            for at, line in enumerate(lines):
                match = _HEADING.match(line)
                if match:
                    whole = "mainpage" if is_main else name
                    anchor = f"{name}--{slug(match[2])}" if len(match[1]) > 1 else whole
                    lines[at] = f"{match[1]} {match[2].replace('`', '')} {{#{anchor}}}"
            out.append(self.prose(path, "\n".join(lines)))
        return "\n".join(out)

    def prose(self, path, text):
        """Escaped, with the links of the site."""
        parts, end = [], 0
        for match in _LINK.finditer(text):
            if text.count("`", text.rfind("\n\n", 0, match.start()) + 1, match.start()) % 2:
                continue  # between backticks
            parts += [_escape_lines(text[end:match.start()]), self.link(path, *match.groups())]
            end = match.end()
        return "".join(parts + [_escape_lines(text[end:])])

    def link(self, path, bang, words, target):
        if re.match(r"\w+:", target):
            return f"{bang}[{words}]({target})"
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if not (self.root / file).exists():
            self.problems.append(f"{path}: a link to {target}, which is not there")
        elif anchor and anchor not in self.anchors.get(file, ()):
            self.problems.append(f"{path}: a link to {target}: {file} has no such heading")
        elif bang:
            return f"![{words}]({posixpath.basename(file)})"
        elif file in self.pages:
            return f"[{escape(words)}](@ref {page_name(file)}{'--' + anchor if anchor else ''})"
        elif file in self.headers:
            return f"[{escape(words)}](@ref {file})"
        elif re.fullmatch(r"examples/\w+\.cpp", file):
            return f"<a href=\"{posixpath.basename(file).removesuffix('.cpp')}_8cpp-example.html\">{escape(words)}</a>"
        return escape(words) if words.strip("`") == file else f"{escape(words)} (`{file}`)"


def _escape_lines(text):
    return re.sub(r"(?m)^(\s*)((?:\\[>#])+)", lambda match: match[1] + match[2].replace("\\", ""),
                  re.sub(r"\\(&\w+;)", r"\1", escape(text))).replace(" {\\#", " {#")
